//! Whole daemons on loopback, driven through the clients' protocol.

mod client;
mod detection;
#[path = "../../../hoplite-core/tests/absurd/draw.rs"]
mod draw;
mod node;
mod objects;
mod process;
mod protocol;
mod reductions;
mod shutdown;
mod stalls;
mod strangers;

/// Bytes that differ everywhere.
fn pattern(seed: u64, len: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    (0..len)
        .map(|_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state as u8
        })
        .collect()
}
