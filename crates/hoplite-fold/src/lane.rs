//! What a dtype is to the loops: bytes in memory, a value to compute with, four ways to combine two.
//!
//! Every method is `#[inline(always)]` wherever it is implemented: only what is inlined into a
//! vectorised loop is compiled with that loop's instructions.

use bytemuck::Pod;

pub(crate) trait Lane {
    /// One element in memory, little-endian; alignment 1, so slices of it may lie anywhere.
    type Bytes: Pod;
    /// What it is computed as.
    type Value: Copy;

    fn load(bytes: Self::Bytes) -> Self::Value;
    fn store(value: Self::Value) -> Self::Bytes;

    fn sum(a: Self::Value, b: Self::Value) -> Self::Value;
    fn prod(a: Self::Value, b: Self::Value) -> Self::Value;
    fn min(a: Self::Value, b: Self::Value) -> Self::Value;
    fn max(a: Self::Value, b: Self::Value) -> Self::Value;
}
