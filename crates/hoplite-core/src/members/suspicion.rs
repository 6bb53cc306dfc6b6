//! Tells suspects at once that they are suspected, so that a living one can deny it in time (Lifeguard's buddy
//! system). This works in clusters of any size.
//!
//! Foca leaves the telling to gossip. Among a thousand members gossip may reach the suspect after its time-out. It
//! never does if nobody has heard the suspecting nodes for a while.

use foca::{Codec, Header, Member, Message, PostcardCodec, Timer};

use super::{Change, Gossiper, Members};

/// Limit on the suspects that are notified when messages arrive again. Those spread the suspicion to the others.
const TOLD_MAX: usize = 16;

/// The suspect whose time-out this timer is.
pub(super) fn ended_by(timer: &Timer<Gossiper>) -> Option<Gossiper> {
    match timer {
        Timer::ChangeSuspectToDown { member_id, .. } => Some(*member_id),
        _ => None,
    }
}

impl Members {
    /// Notifies the suspect of the suspicion that it has to deny. It answers under its next incarnation.
    fn tell_suspect(&self, suspect: &Gossiper) -> Option<Change> {
        let known = self.foca.iter_members().find(|member| member.id() == suspect)?;
        // This number belongs to no probe of ours, so the answer tells only about its sender. An incarnation of 0
        // tells the suspect nothing about us.
        let header = Header {
            src: *self.foca.identity(),
            src_incarnation: 0,
            dst: *suspect,
            message: Message::Ping(0),
        };
        let mut bytes = Vec::new();
        PostcardCodec.encode_header(&header, &mut bytes).ok()?;
        bytes.extend(1u16.to_be_bytes());
        PostcardCodec
            .encode_member(&Member::new(*suspect, known.incarnation(), known.state()), &mut bytes)
            .ok()?;
        Some(Change::Datagram { to: suspect.addr, bytes })
    }

    /// Notifies suspects whose timers are younger than `timer`: we suspect them ourselves, or we were isolated. They
    /// may not know of it yet.
    pub(super) fn tell_suspects_since(&self, timer: u64) -> Vec<Change> {
        let younger = self.timers.iter().filter(|((_, number), _)| *number > timer);
        let suspects = younger.filter_map(|(_, timer)| ended_by(timer)).take(TOLD_MAX);
        suspects.filter_map(|suspect| self.tell_suspect(&suspect)).collect()
    }

    /// When a suspect's time is up, foca notifies it that it is down, even if it has proven since that it is alive.
    /// Such a member would then rejoin without need, so its notification is dropped.
    pub(super) fn spare_the_living(&self, suspect: Option<Gossiper>, news: &mut Vec<Change>) {
        let is_active = |suspect: &Gossiper| self.foca.iter_members().any(|member| member.id() == suspect);
        if let Some(living) = suspect.filter(is_active) {
            news.retain(|change| !matches!(change, Change::Datagram { to, .. } if *to == living.addr));
        }
    }
}
