//! float16 with AVX-512: the CPU converts sixteen elements at a time, with the same results, bit for bit, as the
//! integer arithmetic in `mod.rs`.

use std::arch::x86_64::_MM_FROUND_TO_NEAREST_INT;

use pulp::x86::V4;
use pulp::NullaryFnOnce;

use super::F16;
use crate::kernel::{self, Combine};

/// Elements of one conversion, and of one vector register of float32.
const LANES: usize = 16;
type Halves = [[u8; 2]; LANES];

#[inline(always)]
fn combine(simd: V4, a: Halves, b: Halves, combine: &impl Combine<F16>) -> Halves {
    let cpu = simd.avx512f;
    let a: [f32; LANES] = bytemuck::cast(cpu._mm512_cvtph_ps(bytemuck::cast(a)));
    let b: [f32; LANES] = bytemuck::cast(cpu._mm512_cvtph_ps(bytemuck::cast(b)));
    let mut out = [0.0; LANES];
    for lane in 0..LANES {
        out[lane] = combine(a[lane], b[lane]);
    }
    bytemuck::cast(cpu._mm512_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(bytemuck::cast(out)))
}

pub(super) struct InPlace<'a, F> {
    pub simd: V4,
    pub job: kernel::InPlace<'a, F16, F>,
}

impl<F: Combine<F16>> NullaryFnOnce for InPlace<'_, F> {
    type Output = ();

    #[inline(always)]
    fn call(self) {
        let job = self.job;
        let (acc, acc_rest) = job.acc.as_chunks_mut();
        let (other, other_rest) = job.other.as_chunks();
        for (acc, other) in acc.iter_mut().zip(other) {
            *acc = combine(self.simd, *acc, *other, &job.combine);
        }
        kernel::InPlace { acc: acc_rest, other: other_rest, combine: job.combine }.call();
    }
}

pub(super) struct Into<'a, F> {
    pub simd: V4,
    pub job: kernel::Into<'a, F16, F>,
}

impl<F: Combine<F16>> NullaryFnOnce for Into<'_, F> {
    type Output = ();

    #[inline(always)]
    fn call(self) {
        let job = self.job;
        let (out, out_rest) = job.out.as_chunks_mut();
        let (a, a_rest) = job.a.as_chunks();
        let (b, b_rest) = job.b.as_chunks();
        for ((out, a), b) in out.iter_mut().zip(a).zip(b) {
            *out = combine(self.simd, *a, *b, &job.combine);
        }
        kernel::Into { out: out_rest, a: a_rest, b: b_rest, combine: job.combine }.call();
    }
}
