//! `cargo run --release -p hoplite-fold --example fold_speed`: how fast each dtype and op folds here.
//!
//! GB/s are bytes of one input per second, so a memcpy of the same length (read one, write one) is
//! the bound to compare with: a fold reads two and writes one. Each figure is the best of several
//! rounds. Once over arrays far larger than the caches, once over pieces that stay in them.

use std::hint::black_box;
use std::time::Instant;

use hoplite_fold::{divide, fold, fold_into};
use hoplite_types::{Dtype, Op};

const ROUNDS: usize = 7;
const LARGE_BYTES: usize = 256 << 20;
/// One grain: what a relay folds at a time.
const GRAIN_BYTES: usize = 256 << 10;

/// Best of [`ROUNDS`], in GB/s, of `work` done over `total` bytes.
fn best(total: usize, mut work: impl FnMut()) -> f64 {
    let mut rates = (0..ROUNDS).map(|_| {
        let start = Instant::now();
        work();
        total as f64 / start.elapsed().as_secs_f64() / 1e9
    });
    let first = rates.next().expect("at least one round");
    rates.fold(first, f64::max)
}

fn table(title: &str, bytes: usize, repeats: usize) {
    // 0x3f bytes are ordinary numbers in every float format, so no path is slow for a special value.
    let (mut acc, a, b) = (vec![0x3f_u8; bytes], vec![0x3f_u8; bytes], vec![0x3e_u8; bytes]);
    let total = bytes * repeats;
    println!("\n{title}: {bytes} bytes, {repeats} times a round; GB/s");
    let memcpy =
        best(total, || (0..repeats).for_each(|_| black_box(&mut acc).copy_from_slice(black_box(&a))));
    println!("{:10} {memcpy:6.1}", "memcpy");
    print!("{:10}", "");
    Op::ALL.iter().filter(|&&op| op != Op::Mean).for_each(|op| print!(" {op:>6}"));
    println!(" {:>9} {:>6}", "sum into", "divide");
    for dtype in Dtype::ALL {
        print!("{:10}", dtype.name());
        for op in Op::ALL.into_iter().filter(|&op| op != Op::Mean) {
            acc.fill(0x3f);
            let rate = best(total, || (0..repeats).for_each(|_| fold(op, dtype, black_box(&mut acc), &b)));
            print!(" {rate:6.1}");
        }
        let into =
            best(total, || (0..repeats).for_each(|_| fold_into(Op::Sum, dtype, black_box(&mut acc), &a, &b)));
        print!(" {into:9.1}");
        if dtype.is_float() {
            acc.fill(0x3f);
            print!(
                " {:6.1}",
                best(total, || (0..repeats).for_each(|_| divide(dtype, black_box(&mut acc), 1)))
            );
        }
        println!();
    }
}

fn main() {
    table("From memory", LARGE_BYTES, 1);
    table("From cache", GRAIN_BYTES, 400);
}
