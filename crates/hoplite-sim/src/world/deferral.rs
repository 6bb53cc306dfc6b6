//! Paused processes, and slow processes that handle their input late.

use std::time::Duration;

use super::{Place, World};
use crate::event::{FlowEvent, SimEvent};
use crate::names::index_of;
use crate::net::TroubleId;

/// Most datagrams that a kernel keeps for a process that does not read them.
const DATAGRAMS_MAX: usize = 256;

/// The state of a node's process.
#[derive(Default, Debug)]
pub(crate) struct Process {
    /// The trouble that pauses the process. Its events wait in `held`.
    pub paused: Option<TroubleId>,
    pub held: Vec<SimEvent>,
    /// The trouble that makes the process slow, and the delay of each input.
    pub slow: Option<(TroubleId, Duration)>,
    /// The time at which it will have handled all its events so far.
    busy_until: Duration,
    /// Time that the current turn has taken so far.
    pub turn: Duration,
    /// The last time at which the process was paused or slow.
    pub hampered_at: Duration,
}

impl Process {
    /// The process has handled an input.
    pub fn end_turn(&mut self, now: Duration) {
        self.busy_until = self.busy_until.max(now) + std::mem::take(&mut self.turn);
    }
}

/// A process whose events wait for longer than this counts as slow.
const HAMPERED_AFTER: Duration = Duration::from_millis(5);

/// The thread that must run for an event to happen.
enum Runs {
    Nobody,
    /// Any thread of this node's process.
    DataThread(usize),
    /// The control thread of this node's process.
    Control(usize),
}

impl World {
    /// Delays an event of a process that is paused or slow. Returns the event if it may happen now.
    pub(super) fn defer(&mut self, event: SimEvent) -> Option<SimEvent> {
        let (index, control) = match self.who_runs(&event) {
            Runs::Nobody => return Some(event),
            Runs::DataThread(index) => (index, false),
            Runs::Control(index) => (index, true),
        };
        let now = self.queue.now();
        let process = &mut self.nodes[index].process;
        if process.paused.is_some() {
            process.hampered_at = now;
            let is_datagram = matches!(event, SimEvent::Datagram { .. });
            let datagrams = || process.held.iter().filter(|held| matches!(held, SimEvent::Datagram { .. }));
            if !is_datagram || datagrams().count() < DATAGRAMS_MAX {
                process.held.push(event);
            }
            return None;
        }
        if !control || (process.slow.is_none() && process.busy_until <= now) {
            return Some(event);
        }
        let lag = process.slow.map_or(Duration::ZERO, |(_, lag)| lag);
        process.busy_until = process.busy_until.max(now + lag);
        let at = process.busy_until;
        if process.slow.is_some() || at > now + HAMPERED_AFTER {
            process.hampered_at = now;
        }
        self.queue.push(at, SimEvent::Late(Box::new(event)));
        None
    }

    fn who_runs(&self, event: &SimEvent) -> Runs {
        let there = |place: &Place| place.index;
        match event {
            SimEvent::Boot { place }
            | SimEvent::Report { place, .. }
            | SimEvent::Tick { place }
            | SimEvent::Exit { place }
            | SimEvent::PeerLost { place, .. } => Runs::Control(there(place)),
            SimEvent::Control { to, .. } | SimEvent::LinkClosed { to, .. } => {
                Runs::Control(index_of(to.addr))
            }
            SimEvent::LinkLost { link, .. } => match self.control_links.caller(*link) {
                Some(place) => Runs::Control(place.index),
                None => Runs::Nobody,
            },
            SimEvent::Datagram { to, .. } => Runs::Control(index_of(*to)),
            SimEvent::Call { client, .. } | SimEvent::ClientGone { client } => {
                Runs::Control(there(&self.sessions[client].place))
            }
            SimEvent::SendStep { place, .. }
            | SimEvent::DialFailed { place, .. }
            | SimEvent::FoldStep { place, .. }
            | SimEvent::StallCheck { place, .. } => Runs::DataThread(there(place)),
            SimEvent::Flow { flow, event } => match (self.flows.get(flow), event) {
                (None, _) => Runs::Nobody,
                // These events are for the sender, so its process must run.
                (Some(flow), FlowEvent::Credit(_) | FlowEvent::Reset) => Runs::DataThread(flow.from.index),
                // Events behind one that is held up wait with it.
                (Some(flow), _) if self.is_held_up(flow) => Runs::Nobody,
                (Some(flow), _) => Runs::DataThread(index_of(flow.to.addr)),
            },
            // The event has waited long enough. Only a pause delays it further.
            SimEvent::Late(inner) => match self.who_runs(inner) {
                Runs::Control(index) => Runs::DataThread(index),
                runs => runs,
            },
            SimEvent::Dial { .. }
            | SimEvent::LinkFreed { .. }
            | SimEvent::Answer { .. }
            | SimEvent::FlowFreed { .. }
            | SimEvent::Task { .. }
            | SimEvent::Verdict(_)
            | SimEvent::Fault(_)
            | SimEvent::Relief(_) => Runs::Nobody,
        }
    }
}
