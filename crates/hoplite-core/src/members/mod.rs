//! Membership: SWIM gossip by the `foca` crate, driven by our clock and random numbers.
//!
//! - here: takes datagrams and timers, returns changes of the membership
//! - `identity`: a node's identity in gossip
//! - `local_health`: extends deadlines by the time that this process did not run, or heard nobody
//! - `suspicion`: tells suspects, so that they can deny it
//! - `rejoin`: rejoins after one side declared the other dead
//! - `discovery`: joins through seeds, and finds lost members again

mod discovery;
mod identity;
mod local_health;
mod rejoin;
mod suspicion;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
use std::num::NonZeroUsize;
use std::time::Duration;

use foca::{
    AccumulatingRuntime, Codec, Foca, Header, Member, OwnedNotification, PeriodicParams, PostcardCodec, Timer,
};
use hoplite_types::NodeId;
use rand::{rngs::SmallRng, Rng, SeedableRng};

use crate::Config;
use discovery::JOIN_RETRY;
use identity::Gossiper;
use local_health::ISOLATED_AFTER;

/// Largest gossip datagram: it fits an Ethernet frame without fragments.
const DATAGRAM_BYTES_MAX: usize = 1400;

/// Members that are asked to probe a silent one on our behalf.
const INDIRECT_PROBES: usize = 3;

/// How often we look for members that we do not know yet.
const ANNOUNCE_PERIOD: Duration = Duration::from_secs(5);

/// How often updates are spread, besides those that travel with probes.
const GOSSIP_PERIOD: Duration = Duration::from_millis(200);

/// An effect of a call into [`Members`].
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Change {
    Up(NodeId),
    Down(NodeId),
    /// We were declared dead, and have rejoined.
    Rejoined,
    Datagram {
        to: SocketAddr,
        bytes: Vec<u8>,
    },
}

/// The gossip state machine.
pub(crate) struct Members {
    foca: Foca<Gossiper, PostcardCodec, SmallRng, foca::NoCustomBroadcast>,
    runtime: AccumulatingRuntime<Gossiper>,
    settings: foca::Config,
    rng: SmallRng,
    /// Foca's own timers, by due time and order of arrival.
    timers: BTreeMap<(Duration, u64), Timer<Gossiper>>,
    timer_count: u64,
    seeds: Vec<SocketAddr>,
    next_join: Option<Duration>,
    /// Addresses at which members went down, and until when we contact them; in the order in which we do.
    lost: VecDeque<(SocketAddr, Duration)>,
    next_contact: Option<Duration>,
    /// When we last received a message, and whether we have declared a member dead since.
    last_heard: Duration,
    declared: bool,
    alive: usize,
}

impl Members {
    pub fn new(config: &Config) -> Self {
        let seeds: Vec<_> = config.seeds.iter().copied().filter(|seed| *seed != config.node.addr).collect();
        let mut settings = foca::Config::simple();
        settings.probe_period = config.probe_period;
        settings.probe_rtt = config.probe_timeout;
        settings.num_indirect_probes = NonZeroUsize::new(INDIRECT_PROBES).expect("not zero");
        settings.suspect_to_down_after = config.suspicion;
        settings.max_packet_size = NonZeroUsize::new(DATAGRAM_BYTES_MAX).expect("not zero");
        settings.notify_down_members = true;
        let one = NonZeroUsize::MIN;
        settings.periodic_announce = Some(PeriodicParams { frequency: ANNOUNCE_PERIOD, num_members: one });
        settings.periodic_announce_to_down_members = None;
        settings.periodic_gossip = Some(PeriodicParams { frequency: GOSSIP_PERIOD, num_members: one });
        let mut rng = SmallRng::seed_from_u64(config.seed);
        let its_rng = SmallRng::seed_from_u64(rng.next_u64());
        Members {
            foca: Foca::new(Gossiper::of(config.node), settings.clone(), its_rng, PostcardCodec),
            settings,
            rng,
            runtime: AccumulatingRuntime::new(),
            timers: BTreeMap::new(),
            timer_count: 0,
            next_join: (!seeds.is_empty()).then_some(Duration::ZERO),
            seeds,
            lost: VecDeque::new(),
            next_contact: None,
            last_heard: Duration::ZERO,
            declared: false,
            alive: 0,
        }
    }

    /// The seeds that this node was started with, without its own address.
    pub fn seeds(&self) -> impl Iterator<Item = SocketAddr> + '_ {
        self.seeds.iter().copied()
    }

    /// Whether other members may have declared us dead if we did not run for this time.
    pub fn may_be_held_for_dead_after(&self, time: Duration) -> bool {
        time >= self.settings.suspect_to_down_after
    }

    pub fn next_deadline(&self) -> Option<Duration> {
        let timer = self.timers.keys().next().map(|&(due, _)| due);
        [timer, self.next_join, self.next_contact].into_iter().flatten().min()
    }

    pub fn on_datagram(&mut self, now: Duration, bytes: &[u8]) -> Vec<Change> {
        self.excuse_pause(now);
        let isolated_for = now.saturating_sub(std::mem::replace(&mut self.last_heard, now));
        let isolated = self.alive > 0 && isolated_for > self.settings.probe_period * ISOLATED_AFTER;
        let declared = std::mem::take(&mut self.declared);
        let header: Option<Header<Gossiper>> = PostcardCodec.decode_header(bytes).ok();
        let before = match header {
            Some(header) if (isolated && declared) || self.must_rejoin(&header) => self.rejoin(header.src),
            _ => Vec::new(),
        };
        let mut changes = before;
        if isolated {
            self.postpone(isolated_for);
            changes.extend(self.tell_suspects_since(0));
        }
        // Foca returns an error for malformed or misaddressed packets. Anyone can send those.
        let _ = self.foca.handle_data(bytes, &mut self.runtime);
        changes.extend(self.drain(now));
        changes
    }

    pub fn on_time(&mut self, now: Duration) -> Vec<Change> {
        self.excuse_pause(now);
        let mut changes = Vec::new();
        while let Some((&(due, number), _)) = self.timers.first_key_value() {
            if due > now {
                break;
            }
            let timer = self.timers.remove(&(due, number)).expect("just seen");
            let (suspect, before) = (suspicion::ended_by(&timer), self.timer_count);
            // Foca refuses a timer of a past epoch by its token; there is nothing to do about it.
            let _ = self.foca.handle_timer(timer, &mut self.runtime);
            let mut news = self.drain(now);
            self.spare_the_living(suspect, &mut news);
            news.extend(self.tell_suspects_since(before));
            if news.iter().any(|change| matches!(change, Change::Down(_))) {
                self.declared = true;
                // Many calls may wait for this, so it does not wait for the next round.
                let _ = self.foca.gossip(&mut self.runtime);
            }
            changes.extend(news);
            changes.extend(self.drain(now));
        }
        if self.next_join.is_some_and(|due| due <= now) {
            self.join(now);
            changes.extend(self.drain(now));
        }
        if self.next_contact.is_some_and(|due| due <= now) {
            self.contact_lost_members(now);
            changes.extend(self.drain(now));
        }
        changes
    }

    /// There is proof that the process is gone: all members may learn of it at once. If it lives after all, it is
    /// notified and rejoins like any other member that was declared dead.
    pub fn on_gone(&mut self, now: Duration, node: NodeId) -> Vec<Change> {
        let known = self.foca.iter_members().find(|member| member.id().node() == node);
        if let Some(known) = known.map(|member| *member.id()) {
            let _ = self.foca.apply_many([Member::down(known)].into_iter(), true, &mut self.runtime);
            // Not only with the next probe.
            let _ = self.foca.gossip(&mut self.runtime);
        }
        self.drain(now)
    }

    /// Every member, this node included, with the number of times that each was declared dead while it lived.
    pub fn with_lives(&self) -> Vec<(NodeId, u32)> {
        let others = self.foca.iter_members().map(|member| *member.id());
        others.chain([*self.foca.identity()]).map(|member| (member.node(), member.life)).collect()
    }

    /// A member reports that these are members.
    pub fn on_heard(&mut self, now: Duration, members: Vec<(NodeId, u32)>) -> Vec<Change> {
        let me = self.foca.identity().addr;
        let others = members.into_iter().filter(|(node, _)| node.addr != me);
        let alive = others.map(|(node, life)| Member::alive(Gossiper { life, ..Gossiper::of(node) }));
        let alive: Vec<_> = alive.collect();
        let _ = self.foca.apply_many(alive.into_iter(), false, &mut self.runtime);
        self.drain(now)
    }

    /// Leaves the cluster, so that the others need not detect it.
    pub fn leave(&mut self, now: Duration) -> Vec<Change> {
        let _ = self.foca.leave_cluster(&mut self.runtime);
        self.drain(now)
    }

    fn drain(&mut self, now: Duration) -> Vec<Change> {
        let mut changes = Vec::new();
        while let Some(news) = self.runtime.to_notify() {
            match news {
                OwnedNotification::MemberUp(member) => {
                    self.note_found(member.addr);
                    changes.push(Change::Up(member.node()));
                }
                OwnedNotification::MemberDown(member) => {
                    self.note_lost(now, member.addr);
                    changes.push(Change::Down(member.node()));
                }
                // The same process under its next life is no change.
                OwnedNotification::Rename(old, new) if old.node() == new.node() => {}
                OwnedNotification::Rename(old, new) => {
                    changes.push(Change::Down(old.node()));
                    if self.foca.iter_members().any(|member| *member.id() == new) {
                        changes.push(Change::Up(new.node()));
                    }
                }
                OwnedNotification::Rejoin(_) => {
                    changes.push(Change::Rejoined);
                    // Foca probes no member until it receives a message again; but the members it knows may be dead.
                    let _ = self.foca.apply_many(std::iter::empty(), false, &mut self.runtime);
                }
                _ => {}
            }
        }
        while let Some((after, timer)) = self.runtime.to_schedule() {
            self.timer_count += 1;
            self.timers.insert((now + after, self.timer_count), timer);
        }
        while let Some((to, bytes)) = self.runtime.to_send() {
            changes.push(Change::Datagram { to: to.addr, bytes: bytes.to_vec() });
        }
        self.alive = self.foca.num_members();
        if self.alive == 0 && self.next_join.is_none() && !self.seeds.is_empty() {
            // All members are gone: the seeds are the only way back.
            self.next_join = Some(now + JOIN_RETRY);
        }
        changes
    }
}
