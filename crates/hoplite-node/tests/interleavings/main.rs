//! Every order in which threads may share a copy, and a sum: the node's own code on a model checker's locks and
//! atomics. A thread that sleeps for ever is a deadlock to the checker, which fails the test.

#[path = "../../../hoplite-store/src/block.rs"]
#[allow(dead_code, reason = "what the models do not use")]
mod block;
#[path = "../../src/copy.rs"]
#[allow(dead_code, reason = "what the models do not use")]
mod copy;
#[allow(dead_code, reason = "what the models do not use")]
mod data_plane;
mod sync;

mod copies {
    pub use crate::copy::Copy;
}

use std::sync::Arc;

use copy::Copy;
use hoplite_core::io::Extent;
use hoplite_types::peer::Seal;
use hoplite_types::CopyId;
use loom::future::block_on;
use loom::model::Builder;
use loom::thread::spawn;
use sync::{Mapping, Notify};

/// How often a thread may be interrupted where it does not wait: bugs of this kind take one or two.
const PREEMPTIONS_MAX: usize = 2;

const SIZE: u64 = 2;

fn model(run: impl Fn() + Sync + Send + 'static) {
    let mut builder = Builder::new();
    builder.preemption_bound = Some(PREEMPTIONS_MAX);
    builder.check(run);
}

fn copy() -> (Arc<Mapping>, Arc<Copy>) {
    let memory = Arc::new(Mapping::default());
    let extent = Extent { block: 0, offset: 64, size: SIZE };
    let copy = Copy::open(&memory, CopyId(1), extent).unwrap();
    (memory, Arc::new(copy))
}

/// Publishes one byte more, as a receiver does.
fn append(copy: &Copy, byte: u8) {
    let written = copy.write(|writer| {
        let at = writer.watermark();
        writer.unpublished(at, at + 1)[0] = byte;
        writer.publish(at + 1);
    });
    written.unwrap();
}

#[test]
fn a_follower_of_a_copy_sees_every_byte_and_the_seal() {
    model(|| {
        let (_, copy) = copy();
        let writer = spawn({
            let copy = copy.clone();
            move || {
                append(&copy, 1);
                append(&copy, 2);
                copy.seal(Seal::default());
            }
        });
        block_on(async {
            let following = copy.follow(Arc::new(Notify::new()));
            assert!(following.present(1).await.unwrap() >= 1);
            assert_eq!(following.present(SIZE).await.unwrap(), SIZE);
            assert_eq!(following.sealed().await.unwrap(), &Seal::default());
            assert_eq!(copy.reader().bytes(0, SIZE), [1, 2]);
        });
        writer.join().unwrap();
    });
}

#[test]
fn a_writing_client_reports_progress_when_the_follower_sleeps() {
    model(|| {
        let (memory, copy) = copy();
        let client = spawn({
            let copy = copy.clone();
            move || {
                for to in 1..=SIZE {
                    memory.block.publish(to);
                    if memory.block.take_wanted() {
                        // Its message to the node, which does this.
                        copy.wake();
                    }
                }
            }
        });
        block_on(async {
            let following = copy.follow(Arc::new(Notify::new()));
            assert_eq!(following.present(SIZE).await.unwrap(), SIZE);
        });
        client.join().unwrap();
    });
}

#[test]
fn a_follower_hears_of_the_abort() {
    model(|| {
        let (_, copy) = copy();
        let writer = spawn({
            let copy = copy.clone();
            move || {
                append(&copy, 1);
                copy.abort();
            }
        });
        block_on(async {
            let following = copy.follow(Arc::new(Notify::new()));
            assert!(following.present(SIZE).await.is_err());
            assert!(following.sealed().await.is_err());
        });
        writer.join().unwrap();
    });
}

#[test]
fn a_seal_and_an_abort_at_once_agree_on_one_end() {
    model(|| {
        let (_, copy) = copy();
        append(&copy, 1);
        append(&copy, 2);
        let aborting = spawn({
            let copy = copy.clone();
            move || copy.abort()
        });
        copy.seal(Seal::default());
        let first = copy.seal_if_any().is_ok();
        aborting.join().unwrap();
        assert_eq!(copy.seal_if_any().is_ok(), first, "its fate changed");
    });
}
