//! Turns of control loops, as long as they took on this machine.

use std::time::Duration;

use hoplite_core::io::Input;
use hoplite_words::peer::PeerMessage;

/// One call of `Core::handle`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Turn {
    pub took: Duration,
    /// What the core was told.
    pub during: &'static str,
}

/// The same turns, done several times: of each the shortest time. What the system gave to others meanwhile is
/// gone from that, and what the core itself takes is not.
pub(crate) fn least(mut runs: Vec<Vec<Turn>>) -> Result<Vec<Turn>, String> {
    let mut turns = runs.pop().unwrap_or_default();
    for run in runs {
        let same = run.len() == turns.len() && run.iter().zip(&turns).all(|(a, b)| a.during == b.during);
        if !same {
            return Err("the same cores did not do the same again".to_owned());
        }
        turns.iter_mut().zip(run).for_each(|(turn, again)| turn.took = turn.took.min(again.took));
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
