//! Compares results with a scalar reference that is written another way (the `half` crate, `std`'s own methods):
//! random bit patterns of every dtype, any length, any address.

use half::{bf16, f16};
use hoplite_fold::{divide, fold, fold_into};
use hoplite_types::{Dtype, Op};
use proptest::prelude::*;

/// A NaN becomes `None`: payloads and signs of NaNs are not compared.
type Bits = Option<u64>;

macro_rules! integer {
    ($type:ty, $op:expr, $a:expr, $b:expr) => {{
        let (a, b) = ($a as $type, $b as $type);
        Some(match $op {
            Op::Sum | Op::Mean => a.wrapping_add(b),
            Op::Prod => a.wrapping_mul(b),
            Op::Min => a.min(b),
            Op::Max => a.max(b),
        } as u64)
    }};
}

macro_rules! float {
    ($wide:ty, $op:expr, $a:expr, $b:expr, $ties:expr) => {{
        let (a, b): ($wide, $wide) = ($a, $b);
        match $op {
            Op::Sum | Op::Mean => a + b,
            Op::Prod => a * b,
            Op::Min | Op::Max if a.is_nan() || b.is_nan() => <$wide>::NAN,
            Op::Min | Op::Max if a == b => [a, b][$ties],
            Op::Min => a.min(b),
            Op::Max => a.max(b),
        }
    }};
}

/// Which of two equal values NumPy's minimum and maximum return.
const FIRST: usize = 0;
const SECOND: usize = 1;

fn combine(dtype: Dtype, op: Op, a: u64, b: u64) -> Bits {
    let (h, k) = (a as u16, b as u16);
    match dtype {
        Dtype::F16 => {
            let wide = float!(f32, op, f16::from_bits(h).into(), f16::from_bits(k).into(), FIRST);
            (!wide.is_nan()).then(|| f16::from_f32(wide).to_bits().into())
        }
        Dtype::Bf16 => {
            let wide = float!(f32, op, bf16::from_bits(h).into(), bf16::from_bits(k).into(), SECOND);
            (!wide.is_nan()).then(|| bf16::from_f32(wide).to_bits().into())
        }
        Dtype::F32 => {
            let value = float!(f32, op, f32::from_bits(a as u32), f32::from_bits(b as u32), SECOND);
            (!value.is_nan()).then(|| value.to_bits().into())
        }
        Dtype::F64 => {
            let value = float!(f64, op, f64::from_bits(a), f64::from_bits(b), SECOND);
            (!value.is_nan()).then(|| value.to_bits())
        }
        Dtype::I8 => integer!(i8, op, a, b).map(|v| v & 0xff),
        Dtype::I16 => integer!(i16, op, a, b).map(|v| v & 0xffff),
        Dtype::I32 => integer!(i32, op, a, b).map(|v| v & 0xffff_ffff),
        Dtype::I64 => integer!(i64, op, a, b),
        Dtype::U8 => integer!(u8, op, a, b),
        Dtype::U16 => integer!(u16, op, a, b),
        Dtype::U32 => integer!(u32, op, a, b),
        Dtype::U64 => integer!(u64, op, a, b),
    }
}

fn quotient(dtype: Dtype, a: u64, by: u32) -> Bits {
    match dtype {
        Dtype::F16 => {
            let wide = f16::from_bits(a as u16).to_f32() / by as f32;
            (!wide.is_nan()).then(|| f16::from_f32(wide).to_bits().into())
        }
        Dtype::Bf16 => {
            let wide = bf16::from_bits(a as u16).to_f32() / by as f32;
            (!wide.is_nan()).then(|| bf16::from_f32(wide).to_bits().into())
        }
        Dtype::F32 => {
            let value = f32::from_bits(a as u32) / by as f32;
            (!value.is_nan()).then(|| value.to_bits().into())
        }
        Dtype::F64 => {
            let value = f64::from_bits(a) / f64::from(by);
            (!value.is_nan()).then(|| value.to_bits())
        }
        integer => panic!("{integer} has no means"),
    }
}

/// The elements of `bytes`, NaNs as `None`.
fn read(dtype: Dtype, bytes: &[u8]) -> Vec<Bits> {
    raw(dtype, bytes)
        .into_iter()
        .map(|bits| {
            let nan = match dtype {
                Dtype::F16 => f16::from_bits(bits as u16).is_nan(),
                Dtype::Bf16 => bf16::from_bits(bits as u16).is_nan(),
                Dtype::F32 => f32::from_bits(bits as u32).is_nan(),
                Dtype::F64 => f64::from_bits(bits).is_nan(),
                _ => false,
            };
            (!nan).then_some(bits)
        })
        .collect()
}

fn raw(dtype: Dtype, bytes: &[u8]) -> Vec<u64> {
    let element = |chunk: &[u8]| chunk.iter().rev().fold(0, |bits, &byte| bits << 8 | u64::from(byte));
    bytes.chunks(dtype.size()).map(element).collect()
}

/// Two arrays of the same length that each start at some address: `(bytes, offset)`.
fn arrays() -> impl Strategy<Value = (Vec<u8>, Vec<u8>, usize, usize)> {
    (0..700_usize, 0..64_usize, 0..64_usize).prop_flat_map(|(elements, here, there)| {
        let bytes = |offset| prop::collection::vec(any::<u8>(), 8 * elements + offset);
        (bytes(here), bytes(there), Just(here), Just(there))
    })
}

proptest! {
    #[test]
    fn every_dtype_and_op_agrees_with_the_reference((mut x, y, here, there) in arrays()) {
        let elements = (x.len() - here) / 8;
        for (dtype, op) in Dtype::ALL.into_iter().flat_map(|dtype| Op::ALL.map(|op| (dtype, op))) {
            let end = elements * dtype.size();
            let before = x.clone();
            let (a, b) = (&before[here..here + end], &y[there..there + end]);
            let pairs = raw(dtype, a).into_iter().zip(raw(dtype, b));
            let expected: Vec<Bits> = pairs.map(|(a, b)| combine(dtype, op, a, b)).collect();

            let mut out = vec![0; there + end];
            fold_into(op, dtype, &mut out[there..], a, b);
            prop_assert_eq!(read(dtype, &out[there..]), &expected[..], "{} {} into", dtype, op);

            fold(op, dtype, &mut x[here..here + end], b);
            prop_assert_eq!(read(dtype, &x[here..here + end]), expected, "{} {}", dtype, op);
            prop_assert_eq!(&x[..here], &before[..here], "what lies before is untouched");
            prop_assert_eq!(&x[here + end..], &before[here + end..], "what lies behind is untouched");
            x = before;
        }
    }

    #[test]
    fn means_divide((x, _, here, _) in arrays(), by in 1..5000_u32) {
        for dtype in Dtype::ALL.into_iter().filter(|dtype| dtype.is_float()) {
            let end = here + (x.len() - here) / 8 * dtype.size();
            let mut acc = x.clone();
            divide(dtype, &mut acc[here..end], by);
            let expected: Vec<Bits> =
                raw(dtype, &x[here..end]).into_iter().map(|a| quotient(dtype, a, by)).collect();
            prop_assert_eq!(read(dtype, &acc[here..end]), expected, "{}", dtype);
        }
    }
}

#[test]
fn nothing_folds_into_nothing() {
    for (dtype, op) in Dtype::ALL.into_iter().flat_map(|dtype| Op::ALL.map(|op| (dtype, op))) {
        fold(op, dtype, &mut [], &[]);
        fold_into(op, dtype, &mut [], &[], &[]);
    }
}

#[test]
#[should_panic(expected = "one length")]
fn lengths_that_differ_are_our_bug() {
    fold(Op::Sum, Dtype::F32, &mut [0; 8], &[0; 4]);
}

#[test]
#[should_panic(expected = "one length")]
fn a_second_input_of_another_length_is_our_bug() {
    fold_into(Op::Sum, Dtype::F32, &mut [0; 8], &[0; 8], &[0; 4]);
}

#[test]
#[should_panic(expected = "OutputSliceWouldHaveSlop")]
fn half_an_element_is_our_bug() {
    fold(Op::Sum, Dtype::F32, &mut [0; 6], &[0; 6]);
}

#[test]
#[should_panic(expected = "mean of int32")]
fn means_of_integers_are_our_bug() {
    divide(Dtype::I32, &mut [0; 8], 2);
}
