//! The arena behaves the same between two mappings in one process and between two processes.

mod peer;

use std::path::PathBuf;
use std::time::{Duration, Instant};

use hoplite_store::{Arena, Followed, Mapping, State, PREFAULT_AHEAD};
use peer::{fill, holds_pattern, numbered, Peer};

const ARENA: u64 = 8 << 20;
const OFFSET: u64 = 4096;
const SIZE: u64 = 1_000_003;

/// Long enough to mean "never".
const NEVER: Duration = Duration::from_secs(60);

fn arena() -> Arena {
    Arena::create(ARENA).unwrap()
}

#[test]
fn peer_process() {
    peer::run_if_peer();
}

/// Each behaviour is a function of an arena and a peer; this makes two tests of it.
macro_rules! between_mappings_and_processes {
    ($($behaviour:ident)*) => {
        mod between_mappings {
            use super::*;
            $(#[test] fn $behaviour() { let a = arena(); super::$behaviour(&a, Peer::in_thread(&a)); })*
        }
        mod between_processes {
            use super::*;
            $(#[test] fn $behaviour() { let a = arena(); super::$behaviour(&a, Peer::in_process(&a)); })*
        }
    };
}

between_mappings_and_processes! {
    what_the_peer_writes_is_read_here
    what_is_written_here_is_followed_by_the_peer
    a_seal_wakes_a_follower
    a_copy_shown_late_wakes_its_followers
    an_abort_wakes_a_follower_and_wins_over_bytes
    an_empty_object_is_sealed_and_followed
    the_want_is_taken_once
    bytes_reused_start_over
    removals_are_seen_at_once
}

#[test]
fn a_window_has_a_watermark_of_its_own_and_its_bytes_are_the_whole_ones() {
    let arena = arena();
    let mut whole = arena.mapping().create(OFFSET, 256).unwrap();
    let window = |block, from, size| arena.mapping().create_window(block, OFFSET + from, size);
    let mut parts = [window(64, 0, 128).unwrap(), window(192, 128, 128).unwrap()];
    for (byte, part) in (1..).zip(&mut parts) {
        part.unpublished(0, 100).fill(byte);
        part.publish(100);
        assert_eq!((part.reader().watermark(), whole.reader().watermark()), (100, 0));
        part.unpublished(100, 128).fill(byte);
        part.publish(128);
        part.seal();
    }
    assert_eq!(whole.state(), State::Writing);
    whole.publish(256);
    assert_eq!(whole.reader().bytes(127, 129), [1, 2]);
    for block in [ARENA, ARENA - 32, 100] {
        assert!(window(block, 0, 128).is_err(), "a block at {block}");
    }
}

fn removals_are_seen_at_once(arena: &Arena, mut peer: Peer) {
    for count in 0..3 {
        peer.expect("removals 7", &count.to_string());
        arena.mapping().count_removal(numbered(7));
    }
    // Up to the last byte, behind which the counters lie.
    fill(&mut arena.mapping().create(ARENA - 128, 128).unwrap(), 128);
    peer.expect("removals 7", "3");
}

/// Ids that callers number themselves are spread over the counters as random ones are.
#[test]
fn few_objects_share_a_counter() {
    let (arena, ids) = (arena(), 0..500);
    for id in ids.clone() {
        arena.mapping().count_removal(numbered(id));
    }
    let alone = ids.filter(|&id| arena.mapping().removals(numbered(id)) == 1).count();
    assert!(alone > 250, "only {alone} of 500 have a counter to themselves");
}

fn what_the_peer_writes_is_read_here(arena: &Arena, mut peer: Peer) {
    let reader = arena.mapping().create(OFFSET, SIZE).unwrap().reader();
    peer.expect(&format!("write {OFFSET} {SIZE}"), "ok");
    assert_eq!((reader.watermark(), reader.state()), (0, State::Writing));
    for to in [1, 4096, 4096, SIZE - 1, SIZE] {
        peer.expect(&format!("fill {to}"), "ok");
        assert_eq!(reader.watermark(), to);
        assert!(holds_pattern(&reader, to));
    }
    peer.expect("seal", "ok");
    assert_eq!(reader.state(), State::Sealed);
    assert_eq!(reader.follow(SIZE, Duration::ZERO), Followed::Sealed);
    assert_eq!(reader.follow(0, Duration::ZERO), Followed::Advanced(SIZE));
}

fn what_is_written_here_is_followed_by_the_peer(arena: &Arena, mut peer: Peer) {
    let mut writer = arena.mapping().create(OFFSET, SIZE).unwrap();
    peer.expect(&format!("read {OFFSET} {SIZE}"), "ok");
    peer.send("chase");
    for to in (0..SIZE).step_by(997) {
        fill(&mut writer, to);
        std::thread::yield_now();
    }
    fill(&mut writer, SIZE);
    writer.seal();
    assert_eq!(peer.answer(), format!("Sealed after {SIZE}"));
}

fn a_seal_wakes_a_follower(arena: &Arena, mut peer: Peer) {
    let mut writer = arena.mapping().create(OFFSET, SIZE).unwrap();
    fill(&mut writer, SIZE);
    peer.expect(&format!("read {OFFSET} {SIZE}"), "ok");
    peer.send(&format!("follow {SIZE}"));
    writer.seal();
    assert_eq!(peer.answer(), "Sealed");
}

fn a_copy_shown_late_wakes_its_followers(arena: &Arena, mut peer: Peer) {
    let mut writer = arena.mapping().create(OFFSET, SIZE).unwrap().unseen();
    fill(&mut writer, 100);
    writer.show();
    peer.expect(&format!("read {OFFSET} {SIZE}"), "ok");
    peer.send("follow 100");
    fill(&mut writer, SIZE);
    assert_eq!(peer.answer(), format!("Advanced({SIZE})"));
    peer.send(&format!("follow {SIZE}"));
    writer.seal();
    assert_eq!(peer.answer(), "Sealed");
}

fn an_abort_wakes_a_follower_and_wins_over_bytes(arena: &Arena, mut peer: Peer) {
    let mut writer = arena.mapping().create(OFFSET, SIZE).unwrap();
    fill(&mut writer, 100);
    peer.expect(&format!("read {OFFSET} {SIZE}"), "ok");
    peer.send("follow 100");
    writer.abort();
    assert_eq!(peer.answer(), "Aborted");
    peer.expect("follow 0", "Aborted");
    peer.expect("state", "Aborted");
}

fn an_empty_object_is_sealed_and_followed(arena: &Arena, mut peer: Peer) {
    // At the very end, where not one data byte would fit.
    let mut writer = arena.mapping().create(ARENA, 0).unwrap();
    assert!(writer.unpublished(0, 0).is_empty());
    peer.expect(&format!("read {ARENA} 0"), "ok");
    peer.send("chase");
    writer.publish(0);
    writer.seal();
    assert_eq!(peer.answer(), "Sealed after 0");
    peer.expect("check 0", "true");
}

fn the_want_is_taken_once(arena: &Arena, mut peer: Peer) {
    let reader = arena.mapping().create(OFFSET, SIZE).unwrap().reader();
    peer.expect(&format!("write {OFFSET} {SIZE}"), "ok");
    peer.expect("take-wanted", "false");
    reader.want();
    peer.expect("take-wanted", "true");
    peer.expect("take-wanted", "false");
}

fn bytes_reused_start_over(arena: &Arena, mut peer: Peer) {
    let mut first = arena.mapping().create(OFFSET, SIZE).unwrap();
    fill(&mut first, SIZE);
    first.reader().want();
    first.seal();
    let mut second = arena.mapping().create(OFFSET, 50).unwrap();
    assert!(!second.take_wanted());
    peer.expect(&format!("read {OFFSET} 50"), "ok");
    peer.expect("watermark", "0");
    peer.expect("state", "Writing");
    fill(&mut second, 50);
    peer.expect("check 50", "true");
}

#[test]
fn a_killed_writer_leaves_a_consistent_watermark() {
    let arena = arena();
    let mut peer = Peer::in_process(&arena);
    let reader = arena.mapping().create(OFFSET, SIZE).unwrap().reader();
    peer.expect(&format!("write {OFFSET} {SIZE}"), "ok");
    peer.expect("fill 70000", "ok");
    peer.expect("half-fill 90000", "ok");
    peer.kill();
    assert_eq!((reader.watermark(), reader.state()), (70_000, State::Writing));
    assert!(holds_pattern(&reader, 70_000));
    // The daemon, told by the closed connection, withdraws it.
    arena.mapping().writer(OFFSET, SIZE).unwrap().abort();
    assert_eq!(reader.follow(70_000, Duration::ZERO), Followed::Aborted);
}

#[test]
fn a_view_cannot_be_written_through() {
    let arena = arena();
    let mut writer = arena.mapping().create(OFFSET, SIZE).unwrap();
    fill(&mut writer, SIZE);
    let mut peer = Peer::in_process(&arena);
    peer.expect(&format!("read {OFFSET} {SIZE}"), "ok");
    peer.expect("scribble", "");
    assert_eq!(peer.signal(), Some(libc::SIGSEGV));
    assert!(holds_pattern(&writer.reader(), SIZE));
}

#[test]
fn a_lone_follower_times_out() {
    let arena = arena();
    let reader = arena.mapping().create(OFFSET, SIZE).unwrap().reader();
    assert_eq!(reader.follow(0, Duration::from_millis(1)), Followed::TimedOut);
}

#[test]
fn copies_outside_the_arena_are_refused() {
    let mapping = arena().mapping();
    for (offset, size) in [
        (0, 1),
        (63, 1),
        (100, 1),
        (64, ARENA - 63),
        (ARENA, 1),
        (ARENA + 64, 0),
        (128, u64::MAX),
        (u64::MAX - 63, 64),
    ] {
        assert!(mapping.create(offset, size).is_err(), "{size} at {offset}");
        assert!(mapping.reader(offset, size).is_err(), "{size} at {offset}");
    }
    assert!(mapping.create(64, ARENA - 64).is_ok());
}

/// Each of these is a bug of the caller, and must not pass unnoticed.
#[test]
fn the_order_of_calls_is_enforced() {
    fn refused(misuse: impl FnOnce(&mut hoplite_store::Writer) + std::panic::UnwindSafe) {
        let arena = arena();
        let mut writer = arena.mapping().create(OFFSET, 100).unwrap();
        fill(&mut writer, 10);
        let mut writer = std::panic::AssertUnwindSafe(writer);
        assert!(std::panic::catch_unwind(move || misuse(&mut writer)).is_err());
    }
    refused(|writer| writer.publish(9));
    refused(|writer| writer.publish(101));
    refused(|writer| writer.unpublished(9, 20).fill(0));
    refused(|writer| writer.unpublished(10, 101).fill(0));
    refused(|writer| assert!(writer.reader().bytes(0, 101).is_empty()));
}

/// A client can write into it what it likes.
#[test]
fn a_forged_progress_block_does_not_stop_the_daemon() {
    let arena = arena();
    let mut writer = arena.mapping().create(OFFSET, 100).unwrap();
    fill(&mut writer, 10);
    assert_eq!(writer.reader().bytes(0, 100).len(), 100);
    writer.abort();
    writer.seal();
    assert_eq!(writer.state(), State::Sealed);
    writer.abort();
    assert_eq!(writer.state(), State::Aborted);
}

#[test]
fn a_file_shorter_than_said_is_refused() {
    let arena = arena();
    let fd = arena.fd().try_clone_to_owned().unwrap();
    assert!(Mapping::attach(fd, ARENA * 2).is_err());
}

#[test]
fn the_size_is_sealed() {
    let arena = arena();
    assert!(rustix::fs::ftruncate(arena.fd(), 0).is_err());
    assert!(rustix::fs::ftruncate(arena.fd(), ARENA * 2).is_err());
}

fn resident(arena: &Arena) -> u64 {
    rustix::fs::fstat(arena.fd()).unwrap().st_blocks as u64 * 512
}

#[test]
fn warming_stops_at_its_mark() {
    let whole = arena();
    assert_eq!(resident(&whole), 0, "an arena uses no memory before it is told to");
    whole.warm_to(0);
    assert_eq!(whole.wait_until_warm(), ARENA, "ahead reaches past the end of a small arena");
    assert_eq!(resident(&whole), ARENA);

    let large = Arena::create(PREFAULT_AHEAD + (64 << 20)).unwrap();
    large.warm_to(0);
    large.warm_to(0);
    assert_eq!(large.wait_until_warm(), PREFAULT_AHEAD);
    assert_eq!(resident(&large), PREFAULT_AHEAD);
    large.warm_to(64 << 20);
    assert_eq!(large.wait_until_warm(), large.bytes());
    assert_eq!(resident(&large), large.bytes());

    // Below the mark a client writes already.
    let busy = Arena::create(PREFAULT_AHEAD + (64 << 20)).unwrap();
    busy.warm_to(64 << 20);
    busy.wait_until_warm();
    assert_eq!(resident(&busy), PREFAULT_AHEAD);
}

#[test]
fn a_writer_faults_in_no_more_than_its_copy() {
    let arena = Arena::create(64 << 20).unwrap();
    let (offset, size) = (5 << 20, 20 << 20);
    let mut writer = arena.mapping().create(offset, size).unwrap();
    writer.unpublished(0, 1)[0] = 1;
    writer.unpublished(size - 1, size)[0] = 1;
    let small = writer.unpublished(9 << 20, (9 << 20) + 1);
    small[0] = 1;
    // The progress block's page lies in front of the copy.
    assert!(resident(&arena) <= size + 4096);
    fill(&mut writer, size);
    assert_eq!(resident(&arena), size + 4096);
    assert!(holds_pattern(&writer.reader(), size));
}

/// The thread that warms arenas has no descriptors but the standard ones, and every signal that can be is
/// left to others: it dies late, and what it shared would go with it.
#[test]
fn the_warming_thread_keeps_out_of_the_way() {
    let arena = arena();
    let is_warmer = |task: &PathBuf| {
        std::fs::read_to_string(task.join("comm")).is_ok_and(|name| name.trim() == "hoplite-warm")
    };
    let aside = |task: &PathBuf| {
        let (Ok(status), Ok(open)) =
            (std::fs::read_to_string(task.join("status")), std::fs::read_dir(task.join("fd")))
        else {
            return true; // Ended meanwhile: another test's.
        };
        let blocked = status.lines().find_map(|line| line.strip_prefix("SigBlk:")).expect("in every status");
        let blocked = u64::from_str_radix(blocked.trim(), 16).expect("hexadecimal");
        let signals = [libc::SIGHUP, libc::SIGINT, libc::SIGTERM, libc::SIGCHLD];
        signals.iter().all(|signal| blocked & (1 << (signal - 1)) != 0) && open.count() <= 3
    };
    let tasks = || std::fs::read_dir("/proc/self/task").unwrap().map(|task| task.unwrap().path());
    let began = Instant::now();
    // It has begun at the latest when its work is done.
    arena.warm_to(ARENA);
    arena.wait_until_warm();
    loop {
        let warmers: Vec<_> = tasks().filter(is_warmer).collect();
        if !warmers.is_empty() && warmers.iter().all(aside) {
            break;
        }
        // Other tests start arenas of their own in the same moment.
        assert!(began.elapsed() < NEVER, "{warmers:?}");
        std::thread::yield_now();
    }
}
