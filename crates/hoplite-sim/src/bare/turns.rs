//! Turns of cores, timed on this machine.

use std::time::{Duration, Instant};

use hoplite_core::io::Input;
use hoplite_types::peer::PeerMessage;
use rustix::time::{clock_gettime, ClockId, Timespec};

/// One call of `Core::handle`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Turn {
    /// Processor time of this thread, without the time that the system gave to others.
    pub took: Duration,
    /// Wall-clock time.
    pub passed: Duration,
    /// The input of the core.
    pub during: &'static str,
}

impl Turn {
    pub fn time(during: &'static str, turn: impl FnOnce()) -> Turn {
        let (began, had) = (Instant::now(), processor_time());
        turn();
        Turn { took: processor_time().saturating_sub(had), passed: began.elapsed(), during }
    }
}

fn processor_time() -> Duration {
    let Timespec { tv_sec, tv_nsec } = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(tv_sec as u64, tv_nsec as u32)
}

/// The shortest times of each turn over several equal runs. This removes disturbances of single runs, such as the
/// allocation of memory by the system, and leaves the time of the core itself.
pub(crate) fn least(mut runs: Vec<Vec<Turn>>) -> Result<Vec<Turn>, String> {
    let mut turns = runs.pop().unwrap_or_default();
    for run in runs {
        let same = run.len() == turns.len() && run.iter().zip(&turns).all(|(a, b)| a.during == b.during);
        if !same {
            return Err("the same cores did not do the same again".to_owned());
        }
        for (turn, again) in turns.iter_mut().zip(run) {
            turn.took = turn.took.min(again.took);
            turn.passed = turn.passed.min(again.passed);
        }
    }
    Ok(turns)
}

pub(super) fn name(input: &Input) -> &'static str {
    match input {
        Input::Client { .. } => "call",
        Input::Peer { message, .. } => message_name(message),
        Input::PeerBroken { .. } => "broken-connection",
        Input::PeerGone { .. } => "peer-gone",
        Input::Datagram { .. } => "gossip",
        Input::Tick => "timer",
        _ => "stream",
    }
}

fn message_name(message: &PeerMessage) -> &'static str {
    match message {
        PeerMessage::Directory { .. } => "directory-request",
        PeerMessage::Answer { .. } => "directory-answer",
        PeerMessage::ResyncRequest { .. } => "resync-request",
        PeerMessage::InventoryRequest { .. } => "inventory-request",
        PeerMessage::Inventory { .. } => "inventory",
        PeerMessage::BackupIds { .. } => "backup",
        PeerMessage::Members { .. } => "members",
        _ => "message",
    }
}
