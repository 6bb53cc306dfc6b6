//! Who is alive: SWIM gossip by the `foca` crate, fed with our clock and randomness.

use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
use std::num::NonZeroUsize;
use std::time::Duration;

use foca::{
    AccumulatingRuntime, Codec, Foca, Header, Identity, Member, Message, OwnedNotification, PeriodicParams,
    PostcardCodec, State, Timer,
};
use hoplite_words::NodeId;
use rand::{rngs::SmallRng, Rng, SeedableRng};
use serde::{Deserialize, Serialize};

use crate::Config;

/// Largest gossip datagram: fits an Ethernet frame without fragments.
const DATAGRAM_BYTES_MAX: usize = 1400;

/// Members asked to probe a silent one on our behalf.
const INDIRECT_PROBES: usize = 3;

/// How often we look for members that we do not know yet.
const ANNOUNCE_PERIOD: Duration = Duration::from_secs(5);

/// How often we knock at one of the addresses where a member was, or should be, and is none: so the parts
/// of a split cluster find each other again.
const KNOCK_PERIOD: Duration = Duration::from_secs(1);

/// How long, and at how many addresses: a split that lasts longer, or is larger, is mended by the seeds.
const KNOCK_FOR: Duration = Duration::from_secs(3600);
const KNOCKS_MAX: usize = 256;

/// How often news is spread besides what rides on probes.
const GOSSIP_PERIOD: Duration = Duration::from_millis(200);

/// Timers that come this late mean that we did not run (paused, starved): what we did not hear meanwhile
/// is nobody else's silence. Above what a busy scheduler does to a thread that sleeps most of the time.
const LATE_AFTER: Duration = Duration::from_millis(20);

/// Probe periods without a word from anybody after which it is we who are deaf: what we thought of the others
/// meanwhile is worth nothing once we hear one of them again.
const DEAF_AFTER: u32 = 2;

/// How often a seed that has not answered is asked again.
const JOIN_RETRY: Duration = Duration::from_millis(250);

/// A `NodeId` as gossip sees it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
struct Gossiper {
    addr: SocketAddr,
    incarnation: u64,
    /// How often it was declared dead while it lived (paused, starved, cut off): gossip takes no
    /// death back, so it comes back as somebody new, while to everyone else it is the same node.
    life: u32,
}

impl Gossiper {
    fn of(node: NodeId) -> Self {
        Gossiper { addr: node.addr, incarnation: node.incarnation, life: 0 }
    }

    /// Whoever is there.
    fn unknown(addr: SocketAddr) -> Self {
        Gossiper { addr, incarnation: 0, life: 0 }
    }

    fn node(self) -> NodeId {
        NodeId { addr: self.addr, incarnation: self.incarnation }
    }
}

impl Identity for Gossiper {
    type Addr = SocketAddr;

    fn renew(&self) -> Option<Self> {
        self.life.checked_add(1).map(|life| Gossiper { life, ..*self })
    }

    fn addr(&self) -> SocketAddr {
        self.addr
    }

    fn win_addr_conflict(&self, adversary: &Self) -> bool {
        (self.incarnation, self.life) > (adversary.incarnation, adversary.life)
    }
}

/// What a call into [`Members`] brought about.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Change {
    Up(NodeId),
    Down(NodeId),
    /// We were declared dead, and are back.
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
    /// Where members went down, until when we knock there, in the order of our rounds.
    lost: VecDeque<(SocketAddr, Duration)>,
    next_knock: Option<Duration>,
    /// When we last heard anybody, and whether we declared somebody dead since.
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
            next_knock: None,
            last_heard: Duration::ZERO,
            declared: false,
            alive: 0,
        }
    }

    pub fn next_deadline(&self) -> Option<Duration> {
        let timer = self.timers.keys().next().map(|&(due, _)| due);
        [timer, self.next_join, self.next_knock].into_iter().flatten().min()
    }

    pub fn on_datagram(&mut self, now: Duration, bytes: &[u8]) -> Vec<Change> {
        self.excuse_lateness(now);
        let deaf_for = now.saturating_sub(std::mem::replace(&mut self.last_heard, now));
        let deaf = self.alive > 0 && deaf_for > self.settings.probe_period * DEAF_AFTER;
        let declared = std::mem::take(&mut self.declared);
        let header: Option<Header<Gossiper>> = PostcardCodec.decode_header(bytes).ok();
        let before = match header {
            Some(header) if (deaf && declared) || self.gives_way(&header) => self.start_over(header.src),
            _ => Vec::new(),
        };
        if deaf {
            self.postpone(deaf_for);
        }
        // Foca answers malformed or misaddressed packets with an error; anyone can send those.
        let _ = self.foca.handle_data(bytes, &mut self.runtime);
        before.into_iter().chain(self.drain(now)).collect()
    }

    /// Somebody whom we hold for dead speaks, or says that we were held for dead: we were parted. Whether
    /// it is we who lost the larger part of the cluster, so that our opinions of that time are worth nothing.
    fn gives_way(&self, header: &Header<Gossiper>) -> bool {
        let known = || self.foca.iter_membership_state();
        let back = known().any(|member| *member.id() == header.src && member.state() == State::Down);
        let held_dead = header.message == Message::TurnUndead && header.dst == *self.foca.identity();
        if !back && !held_dead {
            return false;
        }
        let me = self.foca.identity().addr;
        let heard =
            |heard: bool| known().filter(move |m| (m.state() == State::Alive) == heard).map(|m| m.id().addr);
        let ours = (heard(true).count() + 1, heard(true).chain([me]).min());
        let theirs = (heard(false).count(), heard(false).min());
        // Of two equal halves, the one without the smallest address.
        ours.0 < theirs.0 || (ours.0 == theirs.0 && theirs.1 < ours.1)
    }

    /// Comes back as somebody new who knows only whom we still hear, by way of `member`. Told of our
    /// opinions, the others would each have to prove that they live.
    fn start_over(&mut self, member: Gossiper) -> Vec<Change> {
        let Some(renewed) = self.foca.identity().renew() else { return Vec::new() };
        let (heard, doubtful): (Vec<_>, Vec<_>) = self
            .foca
            .iter_members()
            .map(|member| (*member.id(), member.state()))
            .partition(|(_, s)| *s == State::Alive);
        let heard = heard.into_iter().map(|(id, _)| Member::alive(id));
        let heard: Vec<_> = heard.collect();
        let rng = SmallRng::seed_from_u64(self.rng.next_u64());
        self.foca = Foca::new(renewed, self.settings.clone(), rng, PostcardCodec);
        self.runtime = AccumulatingRuntime::new();
        self.timers.clear();
        let _ = self.foca.apply_many(heard.into_iter(), false, &mut self.runtime);
        let _ = self.foca.announce(member, &mut self.runtime);
        // Nobody looks after them any more; who lives comes up again.
        let doubtful = doubtful.into_iter().map(|(id, _)| Change::Down(id.node()));
        doubtful.chain([Change::Rejoined]).collect()
    }

    pub fn on_time(&mut self, now: Duration) -> Vec<Change> {
        self.excuse_lateness(now);
        let mut changes = Vec::new();
        while let Some((&(due, number), _)) = self.timers.first_key_value() {
            if due > now {
                break;
            }
            let timer = self.timers.remove(&(due, number)).expect("just seen");
            // A timer of a past epoch is refused by its token; nothing to do about it.
            let _ = self.foca.handle_timer(timer, &mut self.runtime);
            let news = self.drain(now);
            if news.iter().any(|change| matches!(change, Change::Down(_))) {
                self.declared = true;
                // Many may wait for this: it does not wait for the next round.
                let _ = self.foca.gossip(&mut self.runtime);
            }
            changes.extend(news);
            changes.extend(self.drain(now));
        }
        if self.next_join.is_some_and(|due| due <= now) {
            self.join(now);
            changes.extend(self.drain(now));
        }
        if self.next_knock.is_some_and(|due| due <= now) {
            self.knock(now);
            changes.extend(self.drain(now));
        }
        changes
    }

    /// Knocks where a member was lost, at one address after the other.
    fn knock(&mut self, now: Duration) {
        self.lost.retain(|&(_, until)| until > now);
        if let Some((addr, until)) = self.lost.pop_front() {
            self.lost.push_back((addr, until));
            let _ = self.foca.announce(Gossiper::unknown(addr), &mut self.runtime);
        }
        self.next_knock = (!self.lost.is_empty()).then_some(now + KNOCK_PERIOD);
    }

    fn note_lost(&mut self, now: Duration, addr: SocketAddr) {
        self.note_found(addr);
        self.lost.push_front((addr, now + KNOCK_FOR));
        self.lost.truncate(KNOCKS_MAX);
        self.next_knock.get_or_insert(now + KNOCK_PERIOD);
    }

    fn note_found(&mut self, addr: SocketAddr) {
        self.lost.retain(|&(known, _)| known != addr);
    }

    /// Puts every timer off by the time that we did not run: probes and suspects get the whole of theirs
    /// from when we can hear their answers again.
    fn excuse_lateness(&mut self, now: Duration) {
        let Some((&(due, _), _)) = self.timers.first_key_value() else { return };
        let late = now.saturating_sub(due);
        if late >= LATE_AFTER {
            self.postpone(late);
        }
    }

    fn postpone(&mut self, by: Duration) {
        let timers = std::mem::take(&mut self.timers);
        self.timers = timers.into_iter().map(|((due, number), timer)| ((due + by, number), timer)).collect();
    }

    /// There is proof that the process is gone: everyone may know at once. Should it live after all, it
    /// hears of it and comes back like any other that was taken for dead.
    pub fn on_gone(&mut self, now: Duration, node: NodeId) -> Vec<Change> {
        let known = self.foca.iter_members().find(|member| member.id().node() == node);
        if let Some(known) = known.map(|member| *member.id()) {
            let _ = self.foca.apply_many([Member::down(known)].into_iter(), true, &mut self.runtime);
            // Not only with the next probe.
            let _ = self.foca.gossip(&mut self.runtime);
        }
        self.drain(now)
    }

    /// Says goodbye: the others need not find out by themselves.
    pub fn leave(&mut self, now: Duration) -> Vec<Change> {
        let _ = self.foca.leave_cluster(&mut self.runtime);
        self.drain(now)
    }

    /// Knocks at every seed until one of them has let us in.
    fn join(&mut self, now: Duration) {
        if self.alive > 0 {
            self.next_join = None;
            return;
        }
        for seed in &self.seeds {
            let _ = self.foca.announce(Gossiper::unknown(*seed), &mut self.runtime);
        }
        self.next_join = Some(now + JOIN_RETRY);
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
                // The same process under its next life is no news.
                OwnedNotification::Rename(old, new) if old.node() == new.node() => {}
                OwnedNotification::Rename(old, new) => {
                    changes.push(Change::Down(old.node()));
                    if self.foca.iter_members().any(|member| *member.id() == new) {
                        changes.push(Change::Up(new.node()));
                    }
                }
                OwnedNotification::Rejoin(_) => {
                    changes.push(Change::Rejoined);
                    // Until it hears from somebody again, foca probes nobody; but those it knows may be dead.
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
        self.alive = self.foca.iter_members().count();
        if self.alive == 0 && self.next_join.is_none() && !self.seeds.is_empty() {
            // Everyone is gone: the seeds are the only way back.
            self.next_join = Some(now + JOIN_RETRY);
        }
        changes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn member(port: u16, seed: Option<u16>) -> (NodeId, Members) {
        let node = NodeId { addr: ([127, 0, 0, 1], port).into(), incarnation: 7 };
        let mut config = Config::new(node, 0, u64::from(port));
        config.seeds = seed.map(|port| ([127, 0, 0, 1], port).into()).into_iter().collect();
        (node, Members::new(&config))
    }

    /// Runs gossip among `nodes` until `until`; returns who saw whom come up and go down.
    fn run(nodes: &mut [(NodeId, Members)], from: Duration, until: Duration) -> Vec<(NodeId, Change)> {
        let mut seen = Vec::new();
        let mut now = from;
        while now < until {
            let mut mail = Vec::new();
            for (node, members) in nodes.iter_mut() {
                for change in members.on_time(now) {
                    match change {
                        Change::Datagram { to, bytes } => mail.push((to, bytes)),
                        other => seen.push((*node, other)),
                    }
                }
            }
            while let Some((to, bytes)) = mail.pop() {
                let Some((node, members)) = nodes.iter_mut().find(|(node, _)| node.addr == to) else {
                    continue;
                };
                for change in members.on_datagram(now, &bytes) {
                    match change {
                        Change::Datagram { to, bytes } => mail.push((to, bytes)),
                        other => seen.push((*node, other)),
                    }
                }
            }
            now += Duration::from_millis(10);
        }
        seen
    }

    #[test]
    fn everyone_learns_of_everyone_through_one_seed_and_of_a_death() {
        let mut nodes: Vec<_> = (1..=5).map(|port| member(port, (port > 1).then_some(1))).collect();
        let seen = run(&mut nodes, Duration::ZERO, Duration::from_secs(10));
        let ups = seen.iter().filter(|(_, change)| matches!(change, Change::Up(_))).count();
        assert_eq!(ups, 5 * 4);
        let (dead, _) = nodes.pop().unwrap();
        let seen = run(&mut nodes, Duration::from_secs(10), Duration::from_secs(14));
        let downs = seen.iter().filter(|(_, change)| *change == Change::Down(dead)).count();
        assert_eq!(downs, 4, "{seen:?}");
    }

    #[test]
    fn a_member_that_was_declared_dead_comes_back() {
        let mut nodes: Vec<_> = (1..=4).map(|port| member(port, (port > 1).then_some(1))).collect();
        run(&mut nodes, Duration::ZERO, Duration::from_secs(10));
        let (paused, members) = nodes.pop().unwrap();
        let seen = run(&mut nodes, Duration::from_secs(10), Duration::from_secs(14));
        assert_eq!(seen.iter().filter(|(_, change)| *change == Change::Down(paused)).count(), 3);
        nodes.push((paused, members));
        let seen = run(&mut nodes, Duration::from_secs(14), Duration::from_secs(30));
        assert!(seen.contains(&(paused, Change::Rejoined)), "{seen:?}");
        for (node, _) in &nodes[..3] {
            let last = seen.iter().rfind(|(by, change)| {
                by == node && matches!(change, Change::Up(who) | Change::Down(who) if *who == paused)
            });
            assert_eq!(last, Some(&(*node, Change::Up(paused))));
        }
    }

    #[test]
    fn who_did_not_run_suspects_nobody_for_it() {
        let mut nodes: Vec<_> = (1..=4).map(|port| member(port, (port > 1).then_some(1))).collect();
        run(&mut nodes, Duration::ZERO, Duration::from_secs(10));
        // All stand still for a minute, then go on with what they had in hand.
        let seen = run(&mut nodes, Duration::from_secs(70), Duration::from_secs(80));
        assert_eq!(seen, []);
    }

    #[test]
    fn proof_of_a_death_is_enough_and_of_a_living_one_is_taken_back() {
        let mut nodes: Vec<_> = (1..=4).map(|port| member(port, (port > 1).then_some(1))).collect();
        run(&mut nodes, Duration::ZERO, Duration::from_secs(10));
        let node = nodes[3].0;
        let changes = nodes[0].1.on_gone(Duration::from_secs(10), node);
        assert!(changes.contains(&Change::Down(node)), "{changes:?}");
        let seen = run(&mut nodes, Duration::from_secs(10), Duration::from_secs(30));
        assert!(seen.contains(&(node, Change::Rejoined)), "{seen:?}");
        assert!(seen.contains(&(nodes[0].0, Change::Up(node))), "{seen:?}");
    }

    #[test]
    fn who_leaves_is_gone_at_once() {
        let mut nodes: Vec<_> = (1..=3).map(|port| member(port, (port > 1).then_some(1))).collect();
        run(&mut nodes, Duration::ZERO, Duration::from_secs(10));
        let (leaver, mut members) = nodes.pop().unwrap();
        for change in members.leave(Duration::from_secs(10)) {
            if let Change::Datagram { to, bytes } = change {
                let (_, other) = nodes.iter_mut().find(|(node, _)| node.addr == to).unwrap();
                other.on_datagram(Duration::from_secs(10), &bytes);
            }
        }
        let seen = run(&mut nodes, Duration::from_secs(10), Duration::from_millis(10_300));
        assert!(seen.iter().all(|(_, change)| !matches!(change, Change::Down(node) if *node != leaver)));
        assert!(nodes.iter().all(|(_, members)| members.alive == 1), "{seen:?}");
    }

    #[test]
    fn who_was_cut_off_comes_back_without_a_stir_among_the_others() {
        let mut nodes: Vec<_> = (1..=6).map(|port| member(port, (port > 1).then_some(1))).collect();
        run(&mut nodes, Duration::ZERO, Duration::from_secs(10));
        let mut lonely = vec![nodes.pop().unwrap()];
        let cut = lonely[0].0;
        run(&mut nodes, Duration::from_secs(10), Duration::from_secs(13));
        let alone = run(&mut lonely, Duration::from_secs(10), Duration::from_secs(13));
        assert_eq!(alone.iter().filter(|(_, change)| matches!(change, Change::Down(_))).count(), 5);
        nodes.append(&mut lonely);
        let seen = run(&mut nodes, Duration::from_secs(13), Duration::from_secs(30));
        let others: Vec<_> = seen.iter().filter(|(by, _)| *by != cut).collect();
        assert!(others.iter().all(|(_, change)| *change == Change::Up(cut)), "{others:?}");
        assert_eq!(others.len(), 5);
        assert!(nodes.iter().all(|(_, members)| members.alive == 5));
    }

    #[test]
    fn who_was_cut_off_for_a_moment_makes_no_stir_either() {
        for cut_ms in (300..2000).step_by(100) {
            let mut nodes: Vec<_> = (1..=8).map(|port| member(port, (port > 1).then_some(1))).collect();
            run(&mut nodes, Duration::ZERO, Duration::from_secs(10));
            let mut lonely = vec![nodes.remove(5)];
            let cut = lonely[0].0;
            let healed = Duration::from_millis(10_000 + cut_ms);
            run(&mut nodes, Duration::from_secs(10), healed);
            run(&mut lonely, Duration::from_secs(10), healed);
            nodes.append(&mut lonely);
            let seen = run(&mut nodes, healed, Duration::from_secs(20));
            let stir = |(by, change): &&(NodeId, Change)| {
                *by != cut && matches!(change, Change::Down(node) if *node != cut)
            };
            assert_eq!(seen.iter().filter(stir).count(), 0, "cut for {cut_ms} ms: {seen:?}");
            assert!(nodes.iter().all(|(_, members)| members.alive == 7), "cut for {cut_ms} ms");
        }
    }

    #[test]
    fn the_last_two_of_a_split_look_after_each_other_again() {
        for survivor in [0, 1] {
            let mut pair: Vec<_> = (1..=3).map(|port| member(port, (port > 1).then_some(1))).collect();
            run(&mut pair, Duration::ZERO, Duration::from_secs(10));
            let mut third = vec![pair.pop().unwrap()];
            pair.pop();
            run(&mut pair, Duration::from_secs(10), Duration::from_secs(13));
            run(&mut third, Duration::from_secs(10), Duration::from_secs(13));
            pair.append(&mut third);
            run(&mut pair, Duration::from_secs(13), Duration::from_secs(20));
            assert!(pair.iter().all(|(_, members)| members.alive == 1));
            let (dead, _) = pair.remove(1 - survivor);
            let seen = run(&mut pair, Duration::from_secs(20), Duration::from_secs(22));
            assert_eq!(seen, [(pair[0].0, Change::Down(dead))]);
        }
    }

    #[test]
    fn who_rejoins_and_hears_nobody_notices_that_they_are_dead() {
        let mut pair: Vec<_> = (1..=2).map(|port| member(port, (port > 1).then_some(1))).collect();
        run(&mut pair, Duration::ZERO, Duration::from_secs(10));
        let (dead, _) = pair.pop().unwrap();
        let (me, members) = &mut pair[0];
        let down = Member::down(Gossiper::of(*me));
        let _ = members.foca.apply_many([down].into_iter(), true, &mut members.runtime);
        assert!(members.drain(Duration::from_secs(10)).contains(&Change::Rejoined));
        let seen = run(&mut pair, Duration::from_secs(10), Duration::from_secs(12));
        assert_eq!(seen, [(pair[0].0, Change::Down(dead))]);
    }

    #[test]
    fn the_halves_of_a_split_find_each_other_again() {
        for (first_half, victim) in [(3, 0), (3, 5), (1, 0), (1, 4), (5, 5), (5, 1)] {
            let mut all: Vec<_> = (1..=6).map(|port| member(port, (port > 1).then_some(1))).collect();
            run(&mut all, Duration::ZERO, Duration::from_secs(10));
            let mut half = all.split_off(first_half);
            run(&mut all, Duration::from_secs(10), Duration::from_secs(100));
            run(&mut half, Duration::from_secs(10), Duration::from_secs(100));
            assert_eq!(all[0].1.alive + 1 + half[0].1.alive + 1, 6);
            all.append(&mut half);
            run(&mut all, Duration::from_secs(100), Duration::from_secs(110));
            let alive: Vec<_> = all.iter().map(|(_, members)| members.alive).collect();
            assert_eq!(alive, [5; 6]);
            // And they look after each other as before.
            let (dead, _) = all.swap_remove(victim);
            let seen = run(&mut all, Duration::from_secs(110), Duration::from_secs(112));
            assert_eq!(seen.iter().filter(|(_, change)| *change == Change::Down(dead)).count(), 5);
        }
    }

    #[test]
    fn rubbish_is_ignored() {
        let (_, mut members) = member(1, None);
        assert_eq!(members.on_datagram(Duration::ZERO, &[1, 2, 3]), []);
    }
}
