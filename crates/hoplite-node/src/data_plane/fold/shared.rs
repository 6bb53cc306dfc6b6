//! A sum shared by its fold and the reader of its stream.
//!
//! A stream on a bundle of its own leaves its bytes in the stream's scratch until the fold takes them. The reader of a
//! shared bundle cannot wait for one of its streams. It puts the bytes at their place in `out`, which has space for
//! all of them, and folds the sources into them as far as these are present. The fold does the rest.

use std::io;
use std::sync::Arc;

use hoplite_core::io::Broken;
use hoplite_types::peer::BulkHead;

use super::sum::Sum;
use crate::sync::{Mutex, MutexGuard, PoisonError};

/// The fold and the reader of the bundle each hold one.
#[derive(Clone, Debug)]
pub(in crate::data_plane) struct SharedSum(Arc<Mutex<Sum>>);

impl SharedSum {
    pub(super) fn new(sum: Sum) -> Self {
        SharedSum(Arc::new(Mutex::new(sum)))
    }

    /// Locks the sum, for the fold.
    pub(super) fn lock(&self) -> MutexGuard<'_, Sum> {
        // A panic only leaves bytes that are not published.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The stream that `head` begins will land in the sum. Returns false if it cannot: it does not match the sum, or
    /// is not the only input that comes as a stream.
    pub(in crate::data_plane) fn begin(&self, head: &BulkHead) -> bool {
        let mut sum = self.lock();
        (head.offset, head.size) == (0, sum.size()) && sum.begin_landing()
    }

    /// Lets `read` fill the next bytes of the stream, `bytes_max` at most, and folds what can be folded.
    ///
    /// # Errors
    /// [`Broken`] if nothing may be written any more: the fold has ended, or its result was aborted.
    pub(in crate::data_plane) fn land(
        &self,
        bytes_max: u64,
        read: impl FnOnce(&mut [u8]) -> io::Result<usize>,
    ) -> Result<io::Result<usize>, Broken> {
        let mut sum = self.lock();
        let read = sum.land(bytes_max, read)?;
        if read.is_ok() {
            sum.fold_landed()?;
            sum.publish(None)?;
        }
        Ok(read)
    }

    /// How many bytes of the stream have landed.
    pub(in crate::data_plane) fn landed(&self) -> u64 {
        self.lock().landed()
    }
}
