//! Paused processes, and slow processes that handle their input late.

use std::time::Duration;

use super::{Place, World};
use crate::event::{FlowEvent, SimEvent};
use crate::names::index_of;
use crate::net::TroubleId;

/// Datagrams that a kernel keeps for a process that does not read them.
const DATAGRAMS_MAX: usize = 256;

/// How a node's process is running.
#[derive(Default, Debug)]
pub(crate) struct Process {
    /// It stands still, for this reason; what happens to it waits here.
    pub paused: Option<TroubleId>,
    pub held: Vec<SimEvent>,
    /// It handles each input this much late, for this reason.
    pub slow: Option<(TroubleId, Duration)>,
    /// When it will have handled all that has happened to it.
    busy_until: Duration,
    /// How long it has been at what it handles now.
    pub turn: Duration,
    /// When it last stood still or was slow.
    pub hampered_at: Duration,
}

impl Process {
    /// It has handled an input.
    pub fn end_turn(&mut self, now: Duration) {
        self.busy_until = self.busy_until.max(now) + std::mem::take(&mut self.turn);
    }
}

/// What waits for longer than this counts as hampered.
const HAMPERED_AFTER: Duration = Duration::from_millis(5);

/// Who has to run for something to happen.
enum Runs {
    Nobody,
    /// Any thread of the process there.
    DataThread(usize),
    /// The control thread of the process there.
    Control(usize),
}

impl World {
    /// Puts off what happens to a process that does not run, or runs slowly; returns what may
    /// happen now.
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
                // The receiver's kernel takes what comes, and the sender's hears of it.
                (Some(flow), FlowEvent::Credit(_) | FlowEvent::Reset) => Runs::DataThread(flow.from.index),
                // What comes behind something that is held up waits with it.
                (Some(flow), _) if self.is_held_up(flow) => Runs::Nobody,
                (Some(flow), _) => Runs::DataThread(index_of(flow.to.addr)),
            },
            // It has waited long enough; only a pause stops it.
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
