//! Private memory that a copying get fills.

use hoplite_types::{Error, ErrorKind, Header, Result};

/// The destination of the bytes of [`crate::Client::get_into`].
pub trait Destination {
    /// Called when size and header are known. Called again, possibly with other values, if the object was withdrawn
    /// half-way and written anew. Must return exactly `size` bytes.
    ///
    /// # Errors
    /// Any error of this function ends the get.
    fn room(&mut self, size: u64, header: &Header) -> Result<&mut [u8]>;
}

/// A buffer of exactly the right size.
impl Destination for &mut [u8] {
    fn room(&mut self, size: u64, _header: &Header) -> Result<&mut [u8]> {
        if self.len() as u64 != size {
            return Err(Error::new(
                ErrorKind::Mismatch,
                format!("the object has {size} bytes, the buffer for it {}", self.len()),
            ));
        }
        Ok(self)
    }
}

/// A vector that is resized to the object's size.
impl Destination for Vec<u8> {
    fn room(&mut self, size: u64, _header: &Header) -> Result<&mut [u8]> {
        let size = usize::try_from(size)
            .map_err(|_| Error::new(ErrorKind::Mismatch, format!("{size} bytes do not fit this process")))?;
        self.resize(size, 0);
        Ok(self)
    }
}
