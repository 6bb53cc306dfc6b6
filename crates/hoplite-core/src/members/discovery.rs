//! Discovery: joins through the seeds, and contacts the addresses of lost members until they are found again.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::time::Duration;

use super::{Gossiper, Members};

/// How often we contact an address at which a member was lost, or should be (a seed). So the parts of a split cluster
/// find each other again.
const CONTACT_PERIOD: Duration = Duration::from_secs(1);

/// How long, and at how many addresses, lost members are contacted, besides the seeds. The seeds repair a partition
/// that lasts longer or is larger.
const CONTACT_FOR: Duration = Duration::from_secs(3600);
const CONTACTS_MAX: usize = 256;

/// Pause before a seed that has not answered is asked again.
pub(super) const JOIN_RETRY: Duration = Duration::from_millis(250);

impl Members {
    /// Contacts every seed until one of them has admitted us.
    pub(super) fn join(&mut self, now: Duration) {
        if self.alive > 0 {
            self.next_join = None;
            // The seed that admitted us may be cut off from the other seeds, as we are.
            self.next_contact.get_or_insert(now + CONTACT_PERIOD);
            return;
        }
        for seed in &self.seeds {
            let _ = self.foca.announce(Gossiper::unknown(*seed), &mut self.runtime);
        }
        self.next_join = Some(now + JOIN_RETRY);
    }

    /// Contacts one address at which a member was lost, and one seed that is no member; each time the next ones.
    pub(super) fn contact_lost_members(&mut self, now: Duration) {
        self.lost.retain(|&(_, until)| until > now);
        let lost = self.lost.pop_front();
        self.lost.extend(lost);
        let known: BTreeSet<_> = self.foca.iter_members().map(|member| member.id().addr).collect();
        let missing =
            self.seeds.iter().position(|seed| !known.contains(seed)).map(|at| self.seeds.remove(at));
        self.seeds.extend(missing);
        let addresses: BTreeSet<_> = lost.map(|(addr, _)| addr).into_iter().chain(missing).collect();
        for &addr in &addresses {
            let _ = self.foca.announce(Gossiper::unknown(addr), &mut self.runtime);
        }
        self.next_contact = (!addresses.is_empty()).then_some(now + CONTACT_PERIOD);
    }

    pub(super) fn note_lost(&mut self, now: Duration, addr: SocketAddr) {
        self.note_found(addr);
        self.lost.push_front((addr, now + CONTACT_FOR));
        self.lost.truncate(CONTACTS_MAX);
        self.next_contact.get_or_insert(now + CONTACT_PERIOD);
    }

    /// Whether no member is being looked for: there is no seed, and no member was lost.
    pub fn expects_nobody(&self) -> bool {
        self.seeds.is_empty() && self.lost.is_empty()
    }

    pub(super) fn note_found(&mut self, addr: SocketAddr) {
        self.lost.retain(|&(known, _)| known != addr);
    }
}
