//! float16 and bfloat16: computed as float32, rounded to nearest even at every store.
//!
//! The conversions here are branchless integer arithmetic, because the loops around them then vectorise at every
//! level. Rejected: the `half` crate's slice conversions (one call per eight elements, and bfloat16 element by
//! element). They were measured as no faster than these with AVX2; the tests compare against that crate instead.
//! With AVX-512 the CPU's own float16 conversion can be reached from safe code, see `avx512`.

#[cfg(target_arch = "x86_64")]
mod avx512;
#[cfg(test)]
mod tests;

use pulp::Arch;

use crate::float::{maximum, minimum};
use crate::kernel::{Combine, InPlace, Into};
use crate::lane::Lane;

/// IEEE 754 binary16.
pub(crate) struct F16;

/// The upper half of a float32.
pub(crate) struct Bf16;

const F32_SIGN: u32 = 0x8000_0000;
const F32_INFINITY: u32 = 0x7f80_0000;
const F16_SIGN: u32 = 0x8000;
const F16_EXPONENT: u32 = 0x7c00;
const F16_MANTISSA: u32 = 0x03ff;
/// Bits that make a NaN quiet, as the CPU's conversions do.
const F16_QUIET: u32 = 0x0200;
const BF16_QUIET: u32 = 0x0040;
/// float32 has 13 more bits of mantissa than float16.
const F16_MANTISSA_SHIFT: u32 = 13;
/// 2^112: float32's exponent bias is 127, float16's is 15. Multiplying by it is exact, and turns subnormal float16
/// into normal float32.
const F16_REBIAS: f32 = power_of_two(112);
/// The first power of two above float16's range.
const F16_OVERFLOW: f32 = power_of_two(16);
/// After a multiplication by 2^112, values beyond the finite float16 are infinite. A multiplication by 2^-110 then
/// brings all others back to four times their value.
const F16_TO_INFINITY: f32 = power_of_two(112);
const F16_FROM_INFINITY: f32 = power_of_two(-110);
/// 2^-14 as a float32, the least normal float16.
const F16_NORMAL_MIN: u32 = power_of_two(-14).to_bits();
/// Fifteen exponents higher.
const F16_ROUNDING_BIAS: u32 = 15 << 23;

const fn power_of_two(exponent: i32) -> f32 {
    f32::from_bits(((127 + exponent) as u32) << 23)
}

#[inline(always)]
fn f32_from_f16(half: u32) -> f32 {
    let scaled = f32::from_bits((half & !F16_SIGN) << F16_MANTISSA_SHIFT) * F16_REBIAS;
    // Infinity and NaN were scaled like numbers: give them float32's highest exponent.
    let special = if scaled >= F16_OVERFLOW { F32_INFINITY } else { 0 };
    f32::from_bits(scaled.to_bits() | special | (half & F16_SIGN) << 16)
}

/// The method of Marat Dukhan's FP16 library: a float32 addition does the rounding. It adds a power of two so much
/// larger than the value that only float16's mantissa bits of the value remain.
#[inline(always)]
fn f16_from_f32(value: f32) -> u32 {
    let bits = value.to_bits();
    let magnitude = bits & !F32_SIGN;
    let scaled = (f32::from_bits(magnitude) * F16_TO_INFINITY) * F16_FROM_INFINITY;
    let exponent = (magnitude & F32_INFINITY).max(F16_NORMAL_MIN);
    let rounded = (f32::from_bits(exponent + F16_ROUNDING_BIAS) + scaled).to_bits();
    // A mantissa that was rounded up to the next power of two carries into the exponent in this addition.
    let number = ((rounded >> F16_MANTISSA_SHIFT) & F16_EXPONENT) + (rounded & 0xfff);
    let nan = F16_EXPONENT | F16_QUIET | ((magnitude >> F16_MANTISSA_SHIFT) & F16_MANTISSA);
    let half = if magnitude > F32_INFINITY { nan } else { number };
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

    fn fold(job: InPlace<Self, impl Combine<Self>>) {
        match Arch::new() {
            #[cfg(target_arch = "x86_64")]
            Arch::V4(simd) => simd.vectorize(avx512::InPlace { simd, job }),
            arch => arch.dispatch(job),
        }
    }

    fn fold_into(job: Into<Self, impl Combine<Self>>) {
        match Arch::new() {
            #[cfg(target_arch = "x86_64")]
            Arch::V4(simd) => simd.vectorize(avx512::Into { simd, job }),
            arch => arch.dispatch(job),
        }
    }

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
    /// Of two zeros the first: here NumPy's float16 loop differs from its float32 loop.
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
