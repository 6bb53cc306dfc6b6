//! Tells suspects at once that they are suspected, so that a living one can deny it in time (Lifeguard's buddy
//! system). This works in clusters of any size.
//!
//! Foca leaves the telling to gossip. Among a thousand members gossip may reach the suspect after its time-out. It
//! never does if nobody has heard the suspecting nodes for a while.

use foca::{Codec, Header, Member, Message, PostcardCodec, Timer};

use super::{Change, Gossiper, Members};

/// Suspects that are told when we hear somebody again: the others learn of it from those that are.
const TOLD_MAX: usize = 16;

/// Whose time this timer ends.
pub(super) fn ended_by(timer: &Timer<Gossiper>) -> Option<Gossiper> {
    match timer {
        Timer::ChangeSuspectToDown { member_id, .. } => Some(*member_id),
        _ => None,
    }
}

impl Members {
    /// Tells the suspect what it is to take back. It answers under its next incarnation.
    fn tell_suspect(&self, suspect: &Gossiper) -> Option<Change> {
        let known = self.foca.iter_members().find(|member| member.id() == suspect)?;
        // A number that stands for no probe of ours: the answer counts for its sender alone. Nor does the suspect learn
        // anything of us from our incarnation.
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

    /// Tells those whose timers are younger than that one: we suspect them ourselves, or we were isolated, and they
    /// need not have heard of it.
    pub(super) fn tell_suspects_since(&self, timer: u64) -> Vec<Change> {
        let younger = self.timers.iter().filter(|((_, number), _)| *number > timer);
        let suspects = younger.filter_map(|(_, timer)| ended_by(timer)).take(TOLD_MAX);
        suspects.filter_map(|suspect| self.tell_suspect(&suspect)).collect()
    }

    /// Foca tells suspects that they are down when their time is up, also those that have shown since that they live;
    /// and these would come back as if they had been.
    pub(super) fn spare_the_living(&self, suspect: Option<Gossiper>, news: &mut Vec<Change>) {
        let is_active = |suspect: &Gossiper| self.foca.iter_members().any(|member| member.id() == suspect);
        if let Some(living) = suspect.filter(is_active) {
            news.retain(|change| !matches!(change, Change::Datagram { to, .. } if *to == living.addr));
        }
    }
}
