//! A second, plain implementation of the reduction arithmetic. It checks the results of the first.

use std::rc::Rc;

use hoplite_types::{Dtype, ObjectId, Op};

/// Dtypes that the simulation draws from. Their folds are exact in any order for the contents that [`super`] makes.
pub const DTYPES: [Dtype; 6] = [Dtype::I8, Dtype::U16, Dtype::I32, Dtype::I64, Dtype::F32, Dtype::F64];

macro_rules! integers {
    ($type:ty, $op:expr, $parts:expr) => {
        elementwise!($type, $parts, |a: $type, b: $type| match $op {
            Op::Sum | Op::Mean => a.wrapping_add(b),
            Op::Prod => a.wrapping_mul(b),
            Op::Min => a.min(b),
            Op::Max => a.max(b),
        })
    };
}

macro_rules! floats {
    ($type:ty, $op:expr, $parts:expr) => {{
        let mut out = elementwise!($type, $parts, |a: $type, b: $type| match $op {
            Op::Sum | Op::Mean => a + b,
            Op::Prod => a * b,
            Op::Min => a.min(b),
            Op::Max => a.max(b),
        });
        if $op == Op::Mean {
            for element in out.chunks_exact_mut(size_of::<$type>()) {
                let sum = <$type>::from_le_bytes((&*element).try_into().expect("one element"));
                element.copy_from_slice(&(sum / $parts.len() as $type).to_le_bytes());
            }
        }
        out
    }};
}

macro_rules! elementwise {
    ($type:ty, $parts:expr, $combine:expr) => {{
        const BYTES: usize = size_of::<$type>();
        let mut out = $parts[0].to_vec();
        for part in &$parts[1..] {
            for (a, b) in out.chunks_exact_mut(BYTES).zip(part.chunks_exact(BYTES)) {
                let left = <$type>::from_le_bytes((&*a).try_into().expect("one element"));
                let right = <$type>::from_le_bytes(b.try_into().expect("one element"));
                a.copy_from_slice(&$combine(left, right).to_le_bytes());
            }
        }
        out
    }};
}

/// The fold over all `parts`. There is at least one part, and all have the same length.
pub fn fold_all(op: Op, dtype: Dtype, parts: &[Rc<[u8]>]) -> Vec<u8> {
    match dtype {
        Dtype::I8 => integers!(i8, op, parts),
        Dtype::U16 => integers!(u16, op, parts),
        Dtype::I32 => integers!(i32, op, parts),
        Dtype::I64 => integers!(i64, op, parts),
        Dtype::F32 => floats!(f32, op, parts),
        Dtype::F64 => floats!(f64, op, parts),
        other => unreachable!("the simulation draws no {other}"),
    }
}

/// Largest relative difference between sums of positive floats in different orders: 64 times the epsilon of `f32`. For
/// `f64` it is far too large, but it still finds a missing source.
const CLOSE: f64 = 64.0 * f32::EPSILON as f64;

/// An error if two folds of the same floats differ by more than the order of the additions explains.
pub fn judge_close(id: ObjectId, expected: &[u8], found: &[u8], dtype: Option<Dtype>) -> Result<(), String> {
    let floats = |bytes: &[u8]| -> Vec<f64> {
        match dtype {
            Some(Dtype::F32) => bytes
                .chunks_exact(4)
                .map(|element| f32::from_le_bytes(element.try_into().expect("one element")).into())
                .collect(),
            _ => bytes
                .chunks_exact(8)
                .map(|element| f64::from_le_bytes(element.try_into().expect("one element")))
                .collect(),
        }
    };
    let (expected, found) = (floats(expected), floats(found));
    if expected.len() != found.len() {
        return Err(format!("{id:?} has {} elements instead of {}", found.len(), expected.len()));
    }
    let close = |(a, b): (&f64, &f64)| (a - b).abs() <= CLOSE * a.abs().max(b.abs());
    match expected.iter().zip(&found).position(|pair| !close(pair)) {
        Some(at) => {
            Err(format!("wrong content of {id:?} at element {at}: {} instead of {}", found[at], expected[at]))
        }
        None => Ok(()),
    }
}
