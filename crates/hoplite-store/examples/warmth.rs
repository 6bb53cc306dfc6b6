//! Measures what warming and huge pages buy: time to warm, put by this process and by a fresh
//! client (another mapping), a fresh reader's first touch, each beside a private memcpy.
//!
//! `cargo run --release -p hoplite-store --example warmth [MiB]`

use std::io;
use std::time::{Duration, Instant};

use hoplite_store::{copy_streaming, Arena, HugePages, Mapping, PREFAULT_AHEAD};

const PIECE: usize = 1 << 20;

fn main() -> io::Result<()> {
    let mib = std::env::args().nth(1).and_then(|mib| mib.parse().ok()).unwrap_or(1024_usize);
    let size = mib << 20;
    let source = vec![7_u8; size];
    let mut private = vec![1_u8; size];
    let private_copy = time(|| private.copy_from_slice(&source));
    println!("private memcpy of {mib} MiB: {private_copy:?}");
    drop(private);
    for (name, pages, warm) in [
        ("cold, small", HugePages::Never, false),
        ("cold, huge", HugePages::WhereAllowed, false),
        ("small pages", HugePages::Never, true),
        ("huge pages", HugePages::WhereAllowed, true),
    ] {
        let arena = Arena::with_pages(size as u64 + (4 << 20), pages)?;
        let warming = time(|| {
            if warm {
                for mark in (0..arena.bytes()).step_by(PREFAULT_AHEAD as usize) {
                    arena.warm_to(mark);
                    arena.wait_until_warm();
                }
            }
        });
        let own = put(&arena.mapping(), &source)?;
        let own_again = put(&arena.mapping(), &source)?;
        let client = Mapping::attach_with_pages(arena.fd().try_clone_to_owned()?, arena.bytes(), pages)?;
        let fresh = put(&client, &source)?;
        let again = put(&client, &source)?;
        let reader = client.reader(64, size as u64)?;
        let mut sum = 0_u64;
        let touch = time(|| {
            sum = reader.bytes(0, size as u64).iter().step_by(4096).map(|&b| u64::from(b)).sum();
        });
        assert_eq!(sum, 7 * (size as u64 / 4096));
        let ratio = |t: Duration| private_copy.as_secs_f64() / t.as_secs_f64();
        println!(
            "{name:12} warming {warming:>8.1?}; put relative to memcpy: daemon {:.2}, again {:.2}, \
             fresh client {:.2}, again {:.2}; fresh reader's first touch {touch:.1?}",
            ratio(own),
            ratio(own_again),
            ratio(fresh),
            ratio(again)
        );
    }
    Ok(())
}

fn put(mapping: &std::sync::Arc<Mapping>, source: &[u8]) -> io::Result<Duration> {
    let mut writer = mapping.create(64, source.len() as u64)?;
    Ok(time(|| {
        for (i, piece) in source.chunks(PIECE).enumerate() {
            let from = (i * PIECE) as u64;
            let to = from + piece.len() as u64;
            copy_streaming(writer.unpublished(from, to), piece);
            writer.publish(to);
        }
        writer.seal();
    }))
}

fn time(work: impl FnOnce()) -> Duration {
    let started = Instant::now();
    work();
    started.elapsed()
}
