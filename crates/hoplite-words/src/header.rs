//! The small typed header of an object: what its bytes mean.

use minicbor::{Decode, Encode};

use crate::{limits, Dtype, Error, ErrorKind, Result};

/// How the bytes of an object are to be read.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Encode, Decode)]
#[cbor(index_only)]
pub enum Encoding {
    /// Plain bytes.
    #[default]
    #[n(0)]
    Bytes,
    /// A C-contiguous array of `shape` and `dtype` (or `descr`, where `dtype` cannot say it).
    #[n(1)]
    Array,
    /// Pickle protocol 5 with its out-of-band buffers (layout: python/hoplite/pickling.py).
    #[n(2)]
    Pickle,
}

/// Travels with every announcement of the object; equal for all its copies.
#[derive(Clone, PartialEq, Eq, Debug, Default, Encode, Decode)]
pub struct Header {
    #[n(0)]
    pub encoding: Encoding,
    /// Set when the array can be reduced.
    #[n(1)]
    pub dtype: Option<Dtype>,
    #[n(2)]
    pub shape: Vec<u64>,
    /// What the client's language needs besides (NumPy's dtype descriptor); opaque here.
    #[n(3)]
    pub descr: String,
}

impl Header {
    /// The header of a one-dimensional array of `elements` of `dtype`.
    pub fn array(dtype: Dtype, elements: u64) -> Self {
        Header { encoding: Encoding::Array, dtype: Some(dtype), shape: vec![elements], ..Header::default() }
    }

    /// Checks limits, and that dtype and shape account for exactly `size` bytes.
    pub fn validate(&self, size: u64) -> Result<()> {
        let bad = |message: String| Err(Error::new(ErrorKind::BadArgument, message));
        if self.shape.len() > limits::DIMENSIONS_MAX {
            return bad(format!(
                "{} dimensions, at most {} are allowed",
                self.shape.len(),
                limits::DIMENSIONS_MAX
            ));
        }
        if self.descr.len() > limits::HEADER_BYTES_MAX / 2 {
            return bad(format!("a dtype descriptor of {} bytes is too long", self.descr.len()));
        }
        if let Some(dtype) = self.dtype {
            let bytes = self.shape.iter().try_fold(dtype.size() as u64, |product, &n| product.checked_mul(n));
            if bytes != Some(size) {
                return bad(format!("shape {:?} of {dtype} does not make {size} bytes", self.shape));
            }
        }
        Ok(())
    }
}
