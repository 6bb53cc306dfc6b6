//! Reduction arithmetic on slices: every dtype, every op.
//!
//! The results equal NumPy's bit for bit (for bfloat16: those of ml_dtypes). Integers wrap, minimum and maximum
//! propagate NaN, and half types are rounded to nearest even at every fold. `tests/numpy.txt` holds NumPy's own
//! answers.
//!
//! The loops are plain, and compiled once per level of the CPU's vector instructions; `pulp` picks the level at run
//! time. No result depends on the level.
#![forbid(unsafe_code)]

mod float;
mod half;
mod integer;
mod kernel;
mod lane;

use hoplite_types::{Dtype, Op};

use crate::half::{Bf16, F16};
use crate::kernel::Job;

/// `acc = acc ∘ other`, element by element. A mean folds as a sum.
///
/// Any address is allowed; multiples of 64 bytes are fastest.
///
/// # Panics
/// If the lengths differ or are not a multiple of the element size.
pub fn fold(op: Op, dtype: Dtype, acc: &mut [u8], other: &[u8]) {
    by_dtype(dtype, Job::InPlace { op, acc, other });
}

/// `out = a ∘ b`, element by element. A mean folds as a sum.
///
/// # Panics
/// If the lengths differ or are not a multiple of the element size.
pub fn fold_into(op: Op, dtype: Dtype, out: &mut [u8], a: &[u8], b: &[u8]) {
    by_dtype(dtype, Job::Into { op, out, a, b });
}

/// Divides every element: the last step of a mean over `by` sources. Half types divide in float32 and round once.
///
/// # Panics
/// If `dtype` is an integer (means are for floats), or the length is not a multiple of its size.
pub fn divide(dtype: Dtype, acc: &mut [u8], by: u32) {
    match dtype {
        Dtype::F16 => kernel::divide::<F16>(acc, by as f32),
        Dtype::Bf16 => kernel::divide::<Bf16>(acc, by as f32),
        Dtype::F32 => kernel::divide::<f32>(acc, by as f32),
        Dtype::F64 => kernel::divide::<f64>(acc, f64::from(by)),
        integer => panic!("a mean of {integer} was let through"),
    }
}

fn by_dtype(dtype: Dtype, job: Job) {
    match dtype {
        Dtype::F16 => job.run::<F16>(),
        Dtype::Bf16 => job.run::<Bf16>(),
        Dtype::F32 => job.run::<f32>(),
        Dtype::F64 => job.run::<f64>(),
        Dtype::I8 => job.run::<i8>(),
        Dtype::I16 => job.run::<i16>(),
        Dtype::I32 => job.run::<i32>(),
        Dtype::I64 => job.run::<i64>(),
        Dtype::U8 => job.run::<u8>(),
        Dtype::U16 => job.run::<u16>(),
        Dtype::U32 => job.run::<u32>(),
        Dtype::U64 => job.run::<u64>(),
    }
}
