//! `cargo +nightly fuzz run frames`: arbitrary bytes as calls, answers, peer messages and streams.
//! The same entry runs over seeded inputs in `cargo test -p hoplite-wire`.
#![no_main]

#[path = "../../crates/hoplite-wire/tests/wire/entry.rs"]
mod entry;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    entry::take_anything(bytes);
});
