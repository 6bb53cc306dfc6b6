//! Measures a running node: put relative to a private memcpy, get of a local object, copying get,
//! and the round trip of a small call.
//!
//! `cargo run --release -p hoplite-client --example client_speed <socket> [MiB ...]`

use std::hint::black_box;
use std::sync::Arc;
use std::time::{Duration, Instant};

use hoplite_client::{never, Client};
use hoplite_types::{Error, ErrorKind, Header, ObjectId, Result};

const ROUNDS: usize = 7;
const SMALL_CALLS: u32 = 2000;
const TIMEOUT: Option<Duration> = Some(Duration::from_secs(60));

fn main() -> Result<()> {
    let mut arguments = std::env::args().skip(1);
    let usage = || Error::new(ErrorKind::BadArgument, "usage: speed <socket> [MiB ...]");
    let path = arguments.next().ok_or_else(usage)?;
    let mut sizes: Vec<usize> = arguments.filter_map(|mib| mib.parse().ok()).collect();
    if sizes.is_empty() {
        sizes = vec![1, 64, 1024];
    }
    let client = Client::connect(path.as_ref(), Duration::from_secs(5))?;
    println!("node {}", client.node());
    let status = median(|| {
        for _ in 0..SMALL_CALLS {
            black_box(client.status(&mut never)?);
        }
        Ok(())
    })?;
    println!("status round trip: {:?}", status / SMALL_CALLS);
    for mib in sizes {
        measure(&client, mib << 20)?;
    }
    Ok(())
}

fn measure(client: &Arc<Client>, size: usize) -> Result<()> {
    let source = vec![7_u8; size];
    let mut private = vec![1_u8; size];
    let memcpy = median(|| {
        black_box(&mut private).copy_from_slice(black_box(&source));
        Ok(())
    })?;
    let mut number = 0;
    let mut put = || {
        number += 1;
        let id = ObjectId::from_name(&format!("speed {} {size} {number}", std::process::id()));
        let started = Instant::now();
        client.put(id, Header::default(), &[&source], TIMEOUT, &mut never)?;
        Ok((id, started.elapsed()))
    };
    let mut puts = Vec::new();
    for _ in 0..ROUNDS {
        let (id, took) = put()?;
        puts.push(took);
        client.delete(vec![id], TIMEOUT, &mut never)?;
    }
    let first = puts[0];
    puts.sort_unstable();
    let (id, _) = put()?;
    let get = median(|| client.get(id, TIMEOUT, false, &mut never).map(drop))?;
    let copying = median(|| {
        let mut room = &mut private[..];
        client.get_into(id, TIMEOUT, false, &mut room, &mut never).map(drop)
    })?;
    assert!(private == source);
    client.delete(vec![id], TIMEOUT, &mut never)?;
    let ratio = |took: Duration| memcpy.as_secs_f64() / took.as_secs_f64();
    println!(
        "{:5} MiB: memcpy {memcpy:.1?}; put {:.2} of it (first {:.2}, median {:?}); get {get:?}; \
         copying get {:.2}",
        size >> 20,
        ratio(puts[ROUNDS / 2]),
        ratio(first),
        puts[ROUNDS / 2],
        ratio(copying),
    );
    Ok(())
}

fn median(mut work: impl FnMut() -> Result<()>) -> Result<Duration> {
    let mut took = Vec::new();
    for _ in 0..ROUNDS {
        let started = Instant::now();
        work()?;
        took.push(started.elapsed());
    }
    took.sort_unstable();
    Ok(took[ROUNDS / 2])
}
