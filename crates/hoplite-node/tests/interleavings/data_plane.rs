//! Folds with the node's own `Sum`.

#[path = "../../src/data_plane/fold/shared.rs"]
mod shared;
#[path = "../../src/data_plane/fold/sum.rs"]
mod sum;

use std::sync::Arc;

use hoplite_core::io::FoldRule;
use hoplite_types::peer::BulkHead;
use hoplite_types::{Dtype, Op, TransferId};
use loom::future::block_on;
use loom::thread::spawn;

use crate::copies::Copy;
use crate::sync::Notify;
use crate::{append, copy, model, SIZE};
use shared::SharedSum;
use sum::Sum;

/// A sum of `source` and one stream that will land.
fn sum_of(out: Arc<Copy>, rule: FoldRule, source: Arc<Copy>) -> SharedSum {
    let mut sum = Sum::new(out, rule, true);
    sum.add_sources(vec![source]);
    SharedSum::new(sum)
}

/// A step of the fold, whenever it is woken. True when every input is in.
fn step(sum: &SharedSum) -> bool {
    let mut sum = sum.lock();
    sum.fold_landed().unwrap();
    sum.publish(None).unwrap();
    sum.is_complete()
}

/// A source is being written by one thread, a stream lands by another, and the fold sleeps between its steps.
#[test]
fn a_shared_sum_ends_whichever_input_is_last() {
    let rule = FoldRule { op: Op::Sum, dtype: Dtype::U8, offset: 0, divide_by: None, open: false };
    model(move || {
        let ((_, source), (_, out)) = (copy(), copy());
        let sum = sum_of(out.clone(), rule, source.clone());
        let wake = Arc::new(Notify::new());
        let following = source.follow(wake.clone());
        assert!(sum.begin(&BulkHead { transfer: TransferId(1), offset: 0, size: SIZE }));
        let writer = spawn(move || {
            append(&source, 1);
            append(&source, 2);
        });
        let bundle = spawn({
            let (sum, wake) = (sum.clone(), wake.clone());
            move || {
                while sum.landed() < SIZE {
                    let from = sum.landed() as u8;
                    sum.land(1, |bytes| {
                        bytes[0] = 10 * (from + 1);
                        Ok(1)
                    })
                    .unwrap()
                    .unwrap();
                }
                // The order that its last byte has landed.
                wake.notify_one();
            }
        });
        block_on(async {
            while !step(&sum) {
                wake.notified().await;
            }
        });
        drop(following);
        writer.join().unwrap();
        bundle.join().unwrap();
        assert_eq!(out.reader().bytes(0, SIZE), [11, 22]);
    });
}
