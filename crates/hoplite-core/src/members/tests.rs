use super::*;

fn member(port: u16, seeds: impl IntoIterator<Item = u16>) -> (NodeId, Members) {
    let node = NodeId { addr: ([127, 0, 0, 1], port).into(), incarnation: 7 };
    let mut config = Config::new(node, 0, u64::from(port));
    config.seeds = seeds.into_iter().map(|port| ([127, 0, 0, 1], port).into()).collect();
    (node, Members::new(&config))
}

/// Runs gossip among `nodes` until `until`. Returns every member that came up or went down, with the node that saw
/// it.
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

/// Runs gossip while no node receives any message.
fn run_apart(nodes: &mut [(NodeId, Members)], from: Duration, until: Duration) -> Vec<(NodeId, Change)> {
    let apart = nodes.chunks_mut(1);
    apart.flat_map(|alone| run(alone, from, until)).collect()
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
fn who_shows_in_time_that_it_lives_is_not_told_that_it_is_dead() {
    let mut nodes: Vec<_> = (1..=2).map(|port| member(port, (port > 1).then_some(1))).collect();
    run(&mut nodes, Duration::ZERO, Duration::from_secs(10));
    let suspected = run_apart(&mut nodes, Duration::from_secs(10), Duration::from_millis(10_350));
    assert_eq!(suspected, [], "cut off for a moment: suspected, and not given up yet");
    let seen = run(&mut nodes, Duration::from_millis(10_350), Duration::from_secs(20));
    assert_eq!(seen, []);
}

#[test]
fn who_did_not_run_suspects_nobody_for_it() {
    let mut nodes: Vec<_> = (1..=4).map(|port| member(port, (port > 1).then_some(1))).collect();
    run(&mut nodes, Duration::ZERO, Duration::from_secs(10));
    // All processes pause for a minute, then continue with the messages under way.
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
        // And they watch each other as before.
        let (dead, _) = all.swap_remove(victim);
        let seen = run(&mut all, Duration::from_secs(110), Duration::from_secs(112));
        assert_eq!(seen.iter().filter(|(_, change)| *change == Change::Down(dead)).count(), 5);
    }
}

#[test]
fn halves_that_started_apart_find_each_other_through_their_seeds() {
    let mut half: Vec<_> = [1, 2].map(|port| member(port, 1..=4)).into();
    let mut other: Vec<_> = [3, 4].map(|port| member(port, 1..=4)).into();
    run(&mut half, Duration::ZERO, Duration::from_secs(5000));
    run(&mut other, Duration::ZERO, Duration::from_secs(5000));
    assert!(half.iter().chain(&other).all(|(_, members)| members.alive == 1));
    half.append(&mut other);
    run(&mut half, Duration::from_secs(5000), Duration::from_secs(5010));
    assert!(half.iter().all(|(_, members)| members.alive == 3 && members.next_contact.is_none()));
}

#[test]
fn rubbish_is_ignored() {
    let (_, mut members) = member(1, None);
    assert_eq!(members.on_datagram(Duration::ZERO, &[1, 2, 3]), []);
}

/// Each node runs only from time to time, for a moment, one after the other. It reads its messages, then runs its
/// timers.
fn run_starved(
    nodes: &mut [(NodeId, Members)],
    from: Duration,
    until: Duration,
    every: Duration,
) -> Vec<(Duration, NodeId, Change)> {
    let (mut seen, mut mail) = (Vec::new(), Vec::new());
    let share = every / nodes.len() as u32;
    let mut now = from;
    for turn in (0..nodes.len()).cycle() {
        if now >= until {
            break;
        }
        let (node, members) = &mut nodes[turn];
        let (mine, others): (Vec<_>, Vec<_>) = mail.into_iter().partition(|(to, _)| *to == node.addr);
        mail = others;
        let read = mine.into_iter().flat_map(|(_, bytes): (_, Vec<u8>)| members.on_datagram(now, &bytes));
        let mut changes: Vec<_> = read.collect();
        changes.extend(members.on_time(now));
        for change in changes {
            match change {
                Change::Datagram { to, bytes } => mail.push((to, bytes)),
                other => seen.push((now, *node, other)),
            }
        }
        now += share;
    }
    seen
}

/// A starved node must not count missed messages against others. But it must detect dead ones in the end.
#[test]
fn the_starved_take_nobody_living_for_dead_and_notice_the_dead_in_the_end() {
    for every_ms in [100, 200, 350, 500, 1000] {
        let every = Duration::from_millis(every_ms);
        let mut nodes: Vec<_> = (1..=6).map(|port| member(port, (port > 1).then_some(1))).collect();
        let began = Duration::from_secs(10);
        run(&mut nodes, Duration::ZERO, began);
        let starved = began + Duration::from_secs(60);
        let seen = run_starved(&mut nodes, began, starved, every);
        assert_eq!(seen, [], "every {every_ms} ms");
        let (dead, _) = nodes.pop().unwrap();
        let seen = run_starved(&mut nodes, starved, starved + Duration::from_secs(60), every);
        let downs = seen.iter().filter(|(_, _, change)| matches!(change, Change::Down(_)));
        let noticed: Vec<_> = downs.map(|(at, _, change)| (*at - starved, change)).collect();
        assert!(
            noticed.iter().all(|(_, change)| **change == Change::Down(dead)),
            "{every_ms} ms: {noticed:?}"
        );
        assert_eq!(noticed.len(), 5, "every {every_ms} ms: {noticed:?}");
        let last = noticed.iter().map(|(at, _)| *at).max();
        assert!(last < Some(every * 25 + Duration::from_secs(1)), "every {every_ms} ms: {last:?}");
    }
}
