//! Starts and stops outgoing transfers: single ones, and groups that share a bundle.

use std::sync::Arc;

use hoplite_core::io::{Broken, Input, SendId};
use hoplite_types::{Connections, NodeId, ReductionId, TransferId};
use tokio::sync::{mpsc, Notify};

use super::completion::Completion;
use super::multiplex::{self, Order, Outgoing};
use super::{send, DataPlane};
use crate::copies::Copy;

/// The connections that a transfer uses.
#[derive(Clone, Copy, Debug)]
pub struct Way {
    pub connections: Connections,
    /// The group with whose transfers it shares them.
    pub group: Option<ReductionId>,
}

/// The way to stop a send.
#[derive(Debug)]
pub(super) enum Sending {
    Alone(Arc<Notify>),
    InGroup(mpsc::UnboundedSender<Order>),
}

impl DataPlane {
    /// `Output::Send`.
    pub fn send(
        &mut self,
        send: SendId,
        to: NodeId,
        transfer: TransferId,
        copy: Arc<Copy>,
        offset: u64,
        way: Way,
    ) {
        let broken = Input::SendEnded { send, outcome: Err(Broken) };
        let completion = Completion::new(self.shared.inputs.clone(), broken);
        let Way { connections, group } = way;
        if let Some(group) = group {
            let job = multiplex::Job { send, transfer, copy, offset, completion };
            let orders = self.send_in_group(to, group, connections, job);
            self.sends.insert(send, Sending::InGroup(orders));
            return;
        }
        let stop = Arc::new(Notify::new());
        self.sends.insert(send, Sending::Alone(stop.clone()));
        let thread = self.least_loaded(to.hash64());
        let job = send::Send { send, to, transfer, copy, offset, connections, stop, completion };
        thread.spawn(job.run(self.shared.clone(), thread.pool(), thread.load().busy()));
    }

    pub fn stop_send(&mut self, send: SendId) {
        match self.sends.get(&send) {
            Some(Sending::Alone(stop)) => stop.notify_one(),
            // If the group's task has ended, so has this send.
            Some(Sending::InGroup(orders)) => drop(orders.send(Order::Stop(send))),
            None => {}
        }
    }

    /// Passes the job to the task that sends the group's transfers to that node; starts one if there is none. Returns
    /// its order queue.
    fn send_in_group(
        &mut self,
        to: NodeId,
        group: ReductionId,
        connections: Connections,
        job: multiplex::Job,
    ) -> mpsc::UnboundedSender<Order> {
        let mut order = Order::Send(Box::new(job));
        if let Some(orders) = self.groups.get(&(to, group)) {
            match orders.send(order) {
                Ok(()) => return orders.clone(),
                Err(mpsc::error::SendError(returned)) => order = returned,
            }
        }
        self.groups.retain(|_, orders| !orders.is_closed());
        let (orders, coming) = mpsc::unbounded_channel();
        orders.send(order).expect("its other end is here");
        self.groups.insert((to, group), orders.clone());
        let outgoing = Outgoing::new(to, connections, self.shared.clone(), coming);
        // Always the same thread for a peer, which has its idle connections.
        let thread = &self.threads[to.hash64() as usize % self.threads.len()];
        thread.spawn(outgoing.run(thread.pool(), thread.load().busy()));
        orders
    }
}
