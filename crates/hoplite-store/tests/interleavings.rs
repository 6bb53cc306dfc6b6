//! Every order in which a writing client and the daemon may access a progress block, and every value that memory may
//! show them: a model checker runs the block's own code with its own atomics.

#[path = "../src/block.rs"]
#[allow(dead_code, reason = "what the model does not use")]
mod block;

mod sync {
    pub use loom::sync::atomic::{fence, AtomicU32, AtomicU64, Ordering};
}

use std::sync::Arc;

use block::{ProgressBlock, State};
use loom::model;
use loom::thread::spawn;

/// A follower that asks to be woken by an advance is woken, or sees it when it looks once more. Else it sleeps for
/// ever.
#[test]
fn an_advance_wakes_or_is_seen() {
    model(|| {
        let block = Arc::new(ProgressBlock::default());
        let writer = spawn({
            let block = block.clone();
            move || {
                block.publish(10);
                block.take_wanted()
            }
        });
        block.want();
        let seen = block.watermark() == 10;
        let told = writer.join().unwrap();
        assert!(told || seen, "the daemon sleeps, and the client does not wake it");
    });
}

/// Two advances, of which the first may have answered the question.
#[test]
fn one_of_two_advances_wakes_unless_the_last_is_seen() {
    model(|| {
        let block = Arc::new(ProgressBlock::default());
        let writer = spawn({
            let block = block.clone();
            move || {
                [10, 20].map(|to| {
                    block.publish(to);
                    block.take_wanted()
                })
            }
        });
        block.want();
        let seen = block.watermark();
        let [first, second] = writer.join().unwrap();
        assert!(seen == 20 || second || (first && seen < 20), "nobody tells of the last advance");
    });
}

/// A reader that has seen a seal, or an end, sees every byte that was published before it.
#[test]
fn a_seal_is_never_seen_before_the_bytes() {
    model(|| {
        let block = Arc::new(ProgressBlock::default());
        let writer = spawn({
            let block = block.clone();
            move || {
                block.publish(10);
                block.finish(State::Sealed);
            }
        });
        // As a follower looks: the tick first, so that it does not sleep through what comes after.
        let tick = block.tick();
        let state = block.state();
        let watermark = block.watermark();
        if state == State::Sealed {
            assert_eq!(watermark, 10);
        }
        writer.join().unwrap();
        assert!(tick == block.tick() || tick < 2, "it would sleep on a tick that never changes");
    });
}
