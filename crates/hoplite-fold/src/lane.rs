//! A dtype as the loops see it: its bytes in memory, a value to compute with, four operations on two values.
//!
//! Implementations mark every method `#[inline(always)]`: only code inlined into a vectorised loop is compiled with
//! that loop's instructions.

use bytemuck::Pod;
use pulp::Arch;

use crate::kernel::{Combine, InPlace, Into};

pub(crate) trait Lane: Sized {
    /// One element in memory, little-endian. Its alignment is 1, so slices of it may start at any address.
    type Bytes: Pod;
    /// The type used for computing.
    type Value: Copy;

    fn load(bytes: Self::Bytes) -> Self::Value;
    fn store(value: Self::Value) -> Self::Bytes;

    fn sum(a: Self::Value, b: Self::Value) -> Self::Value;
    fn prod(a: Self::Value, b: Self::Value) -> Self::Value;
    fn min(a: Self::Value, b: Self::Value) -> Self::Value;
    fn max(a: Self::Value, b: Self::Value) -> Self::Value;

    /// Runs the job at the best instruction level of this CPU.
    fn fold(job: InPlace<Self, impl Combine<Self>>) {
        Arch::new().dispatch(job);
    }
    fn fold_into(job: Into<Self, impl Combine<Self>>) {
        Arch::new().dispatch(job);
    }
}
