//! float16 and bfloat16: computed as float32, rounded to nearest even at every store.
//!
//! The conversions are branchless integer arithmetic because the loops around them then vectorise
//! at every level. Rejected: the `half` crate's slice conversions (one call per eight elements,
//! and none for bfloat16); it is what the tests compare against instead.

use crate::float::{maximum, minimum};
use crate::lane::Lane;

/// IEEE 754 binary16.
pub(crate) struct F16;

/// The upper half of a float32.
pub(crate) struct Bf16;

const F32_SIGN: u32 = 0x8000_0000;
const F32_INFINITY: u32 = 0x7f80_0000;
const F16_SIGN: u32 = 0x8000;
const F16_INFINITY: u32 = 0x7c00;
/// Makes a NaN quiet, in float16 and (shifted) bfloat16.
const F16_QUIET: u32 = 0x0200;
const BF16_QUIET: u32 = 0x0040;
/// float32 has 13 more bits of mantissa than float16.
const F16_MANTISSA_SHIFT: u32 = 13;
/// 2^112: float32's exponent bias is 127, float16's 15. Multiplying by it is exact, and makes
/// subnormal float16 normal float32.
const F16_REBIAS: f32 = f32::from_bits((112 + 127) << 23);
/// 65536 as a float32, the first power of two above float16's range.
const F16_OVERFLOW: u32 = (16 + 127) << 23;
/// 2^-14 as a float32, the least normal float16.
const F16_NORMAL_MIN: u32 = (127 - 14) << 23;
/// 0.5 as a float32. Adding it to less than 2^-14 leaves float16's subnormal mantissa, rounded to
/// nearest even by the addition itself, in the sum's last bits.
const F16_SUBNORMAL_MAGIC: u32 = (127 - 1) << 23;

#[inline(always)]
fn f32_from_f16(half: u32) -> f32 {
    let magnitude = half & !F16_SIGN;
    let finite = (f32::from_bits(magnitude << F16_MANTISSA_SHIFT) * F16_REBIAS).to_bits();
    let special = F32_INFINITY | (magnitude << F16_MANTISSA_SHIFT);
    let bits = if magnitude >= F16_INFINITY { special } else { finite };
    f32::from_bits(bits | (half & F16_SIGN) << 16)
}

#[inline(always)]
fn f16_from_f32(value: f32) -> u32 {
    let bits = value.to_bits();
    let magnitude = bits & !F32_SIGN;
    let subnormal = (f32::from_bits(magnitude) + f32::from_bits(F16_SUBNORMAL_MAGIC))
        .to_bits()
        .wrapping_sub(F16_SUBNORMAL_MAGIC);
    let odd = (magnitude >> F16_MANTISSA_SHIFT) & 1;
    // Half of the last kept place less one, plus one if odd: ties go to even, and a carry into the
    // exponent is right, up to infinity.
    let rounded = magnitude.wrapping_add(0xfff + odd);
    let normal = rounded.wrapping_sub(112 << 23) >> F16_MANTISSA_SHIFT;
    let nan = F16_INFINITY | F16_QUIET | ((magnitude >> F16_MANTISSA_SHIFT) & 0x3ff);
    let mut half = if magnitude < F16_NORMAL_MIN { subnormal } else { normal };
    half = if magnitude >= F16_OVERFLOW { F16_INFINITY } else { half };
    half = if magnitude > F32_INFINITY { nan } else { half };
    half | ((bits & F32_SIGN) >> 16)
}

#[inline(always)]
fn bf16_from_f32(value: f32) -> u32 {
    let bits = value.to_bits();
    let odd = (bits >> 16) & 1;
    let rounded = bits.wrapping_add(0x7fff + odd) >> 16;
    let nan = (bits >> 16) | BF16_QUIET;
    if bits & !F32_SIGN > F32_INFINITY {
        nan
    } else {
        rounded
    }
}

impl Lane for F16 {
    type Bytes = [u8; 2];
    type Value = f32;

    #[inline(always)]
    fn load(bytes: [u8; 2]) -> f32 {
        f32_from_f16(u32::from(u16::from_le_bytes(bytes)))
    }
    #[inline(always)]
    fn store(value: f32) -> [u8; 2] {
        (f16_from_f32(value) as u16).to_le_bytes()
    }
    #[inline(always)]
    fn sum(a: f32, b: f32) -> f32 {
        a + b
    }
    #[inline(always)]
    fn prod(a: f32, b: f32) -> f32 {
        a * b
    }
    /// Of two zeros the first: NumPy's float16 loop differs from its float32 loop in this.
    #[inline(always)]
    fn min(a: f32, b: f32) -> f32 {
        if a <= b || a.is_nan() {
            a
        } else {
            b
        }
    }
    #[inline(always)]
    fn max(a: f32, b: f32) -> f32 {
        if a >= b || a.is_nan() {
            a
        } else {
            b
        }
    }
}

impl Lane for Bf16 {
    type Bytes = [u8; 2];
    type Value = f32;

    #[inline(always)]
    fn load(bytes: [u8; 2]) -> f32 {
        f32::from_bits(u32::from(u16::from_le_bytes(bytes)) << 16)
    }
    #[inline(always)]
    fn store(value: f32) -> [u8; 2] {
        (bf16_from_f32(value) as u16).to_le_bytes()
    }
    #[inline(always)]
    fn sum(a: f32, b: f32) -> f32 {
        a + b
    }
    #[inline(always)]
    fn prod(a: f32, b: f32) -> f32 {
        a * b
    }
    #[inline(always)]
    fn min(a: f32, b: f32) -> f32 {
        minimum!(a, b)
    }
    #[inline(always)]
    fn max(a: f32, b: f32) -> f32 {
        maximum!(a, b)
    }
}
