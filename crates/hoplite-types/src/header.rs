//! The small typed header of an object: how to interpret its bytes.

use minicbor::{Decode, Encode};

use crate::error::ensure;
use crate::{limits, Dtype, Result};

/// How to interpret the bytes of an object.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Encode, Decode)]
#[cbor(index_only)]
pub enum Encoding {
    /// Plain bytes.
    #[default]
    #[n(0)]
    Bytes,
    /// A C-contiguous array of `shape` and `dtype` (or `descr`, where no `dtype` fits).
    #[n(1)]
    Array,
    /// Pickle protocol 5 with its out-of-band buffers (layout: python/hoplite/pickling.py).
    #[n(2)]
    Pickle,
}

/// The header of an object. It travels with every announcement and is the same for all copies.
#[derive(Clone, PartialEq, Eq, Debug, Default, Encode, Decode)]
pub struct Header {
    #[n(0)]
    pub encoding: Encoding,
    /// Set if the array can be reduced.
    #[n(1)]
    pub dtype: Option<Dtype>,
    #[n(2)]
    pub shape: Vec<u64>,
    /// Further information for the client's language (NumPy's dtype descriptor). Opaque to Hoplite.
    #[n(3)]
    pub descr: String,
}

impl Header {
    /// The header of a one-dimensional array of `elements` of `dtype`.
    pub fn array(dtype: Dtype, elements: u64) -> Self {
        Header { encoding: Encoding::Array, dtype: Some(dtype), shape: vec![elements], ..Header::default() }
    }

    /// Checks limits, and that dtype and shape account for exactly `size` bytes.
    ///
    /// # Errors
    /// `BadArgument`; the message names the violation.
    pub fn validate(&self, size: u64) -> Result<()> {
        limits::at_most("dimensions", self.shape.len(), limits::DIMENSIONS_MAX)?;
        ensure(self.descr.len() <= limits::HEADER_BYTES_MAX / 2, || {
            format!("a dtype descriptor of {} bytes is too long", self.descr.len())
        })?;
        let element = self.dtype.map_or(1, |dtype| dtype.size() as u64);
        let spanned = self.shape.iter().try_fold(element, |product, &n| product.checked_mul(n.max(1)));
        // No language has an array that spans more, even if another extent of 0 makes it empty.
        ensure(spanned.is_some_and(|bytes| bytes <= i64::MAX as u64), || {
            format!("shape {:?} spans more than an address", self.shape)
        })?;
        let Some(dtype) = self.dtype else { return Ok(()) };
        let bytes: u64 = self.shape.iter().fold(element, |product, &n| product * n);
        ensure(bytes == size, || format!("shape {:?} of {dtype} does not make {size} bytes", self.shape))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn array(dtype: Option<Dtype>, shape: &[u64]) -> Header {
        Header { encoding: Encoding::Array, dtype, shape: shape.to_vec(), ..Header::default() }
    }

    #[test]
    fn dtype_and_shape_account_for_the_bytes() {
        assert!(array(Some(Dtype::F64), &[2, 3]).validate(48).is_ok());
        assert!(array(Some(Dtype::F64), &[]).validate(8).is_ok());
        assert!(array(Some(Dtype::F64), &[2, 3]).validate(49).is_err());
        assert!(array(None, &[2, 3]).validate(49).is_ok(), "only its language knows");
    }

    #[test]
    fn impossible_shapes_are_refused_even_if_empty() {
        let huge = 1 << 62;
        for shape in [&[huge, 2][..], &[0, huge, 2], &[huge, huge, 0], &[u64::MAX, 0], &[1; 65]] {
            for dtype in [None, Some(Dtype::U8)] {
                assert!(array(dtype, shape).validate(0).is_err(), "{shape:?}");
            }
        }
        assert!(array(Some(Dtype::U8), &[0, huge]).validate(0).is_ok());
        assert!(Header { descr: "x".repeat(8193), ..Header::default() }.validate(0).is_err());
    }
}
