//! The conversions against the `half` crate, and the loops of all levels against each other: a CPU with AVX-512 would
//! otherwise never run the others.

use half::{bf16, f16};
use pulp::NullaryFnOnce;

use super::{bf16_from_f32, f16_from_f32, f32_from_f16, F16};
use crate::kernel::{InPlace, Into};
use crate::lane::Lane;

/// The float32 values that matter for rounding to a half type: each half value, the middle to the next one, and the
/// neighbours of those. `dropped_bits` is the number of mantissa bits that the half type lacks.
fn around(value: f32, dropped_bits: u32) -> impl Iterator<Item = f32> {
    let half_step = 1 << (dropped_bits - 1);
    let bits = value.to_bits();
    [0, 1, half_step - 1, half_step, half_step + 1, 2 * half_step - 1]
        .into_iter()
        .map(move |add| f32::from_bits(bits.wrapping_add(add)))
}

/// A prime, so that steps of this size through all float32 meet every kind of mantissa.
const STRIDE: usize = 4099;

fn everywhere() -> impl Iterator<Item = f32> {
    (0..=u32::MAX).step_by(STRIDE).map(f32::from_bits)
}

#[test]
fn every_float16_is_read_right() {
    for bits in 0..=u16::MAX {
        let (got, expected) = (f32_from_f16(bits.into()), f16::from_bits(bits).to_f32());
        assert!(got.to_bits() == expected.to_bits() || got.is_nan() && expected.is_nan(), "{bits:#x}: {got}");
    }
}

#[test]
fn float16_is_rounded_to_nearest_even() {
    // Subnormal float16 keep fewer bits: test the middles at every width that a subnormal can have.
    let near = (0..=u16::MAX)
        .flat_map(|bits| (13..=24).flat_map(move |dropped| around(f16::from_bits(bits).to_f32(), dropped)));
    for value in near.chain(everywhere()) {
        let (got, expected) = (f16::from_bits(f16_from_f32(value) as u16), f16::from_f32(value));
        let same = got.to_bits() == expected.to_bits() || got.is_nan() && expected.is_nan();
        assert!(same, "{:#x}: {got:?}, not {expected:?}", value.to_bits());
    }
}

#[test]
fn bfloat16_is_rounded_to_nearest_even() {
    let near = (0..=u16::MAX).flat_map(|bits| around(f32::from_bits(u32::from(bits) << 16), 16));
    for value in near.chain(everywhere()) {
        let (got, expected) = (bf16::from_bits(bf16_from_f32(value) as u16), bf16::from_f32(value));
        let same = got.to_bits() == expected.to_bits() || got.is_nan() && expected.is_nan();
        assert!(same, "{:#x}: {got:?}, not {expected:?}", value.to_bits());
    }
}

/// Combines every float16 with a selection of others (and all NaNs), at this CPU's best level and at the lowest. No
/// bit of a result may depend on the machine that ran the reduction.
#[test]
fn every_level_gives_the_same_bits() {
    let all: Vec<[u8; 2]> = (0..=u16::MAX).map(u16::to_le_bytes).collect();
    for other in (0..=u16::MAX).step_by(251).chain([0x7c00, 0x7c01, 0xfe00]) {
        let others = vec![other.to_le_bytes(); all.len()];
        for combine in [F16::sum, F16::prod, F16::min, F16::max] {
            let (mut best, mut lowest) = (all.clone(), all.clone());
            F16::fold(InPlace { acc: &mut best, other: &others, combine });
            InPlace::<F16, _> { acc: &mut lowest, other: &others, combine }.call();
            assert!(best == lowest, "{other:#x} in place");

            F16::fold_into(Into { out: &mut best, a: &others, b: &all, combine });
            Into::<F16, _> { out: &mut lowest, a: &others, b: &all, combine }.call();
            assert!(best == lowest, "{other:#x} into");
        }
    }
}
