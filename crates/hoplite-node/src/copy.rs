//! One copy, shared by the threads that move its bytes.
//!
//! Its locks and atomics come from `sync`, because `tests/interleavings` runs this code with a model checker's.

use std::io;
use std::sync::Arc;

use hoplite_core::io::{Broken, Extent};
use hoplite_types::peer::Seal;
use hoplite_types::CopyId;
use tracing::error;

use crate::sync::{Mapping, Mutex, MutexGuard, Notify, OnceLock, PoisonError, Reader, Writer};

/// One copy, shared between the control thread and the data threads.
#[derive(Debug)]
pub struct Copy {
    id: CopyId,
    reader: Reader,
    /// The writer locks it for one grain at a time, so that sealing and aborting never wait long.
    writer: Mutex<Writer>,
    fate: OnceLock<Fate>,
    followers: Mutex<Vec<Arc<Notify>>>,
}

#[derive(Debug)]
enum Fate {
    Sealed(Seal),
    Aborted,
}

impl Copy {
    /// Creates an empty copy and initialises its progress block.
    ///
    /// # Errors
    /// If `extent` is not inside the arena.
    pub fn open(mapping: &Arc<Mapping>, id: CopyId, extent: Extent) -> io::Result<Copy> {
        let writer = mapping.create_window(extent.block, extent.offset, extent.size)?.unseen();
        Ok(Copy {
            id,
            reader: writer.reader(),
            writer: Mutex::new(writer),
            fate: OnceLock::new(),
            followers: Mutex::default(),
        })
    }

    pub fn id(&self) -> CopyId {
        self.id
    }

    pub fn size(&self) -> u64 {
        self.reader.size()
    }

    pub fn watermark(&self) -> u64 {
        self.reader.watermark()
    }

    pub fn reader(&self) -> &Reader {
        &self.reader
    }

    /// The trailer, once the copy is sealed.
    ///
    /// # Errors
    /// [`Broken`] if it was aborted.
    pub fn seal_if_any(&self) -> Result<Option<&Seal>, Broken> {
        match self.fate.get() {
            None => Ok(None),
            Some(Fate::Sealed(seal)) => Ok(Some(seal)),
            Some(Fate::Aborted) => Err(Broken),
        }
    }

    /// A client is about to see the copy while it is being written.
    pub fn show(&self) {
        lock(&self.writer).show();
    }

    /// Lets `write` access the bytes. Wakes followers if it published any.
    ///
    /// # Errors
    /// [`Broken`] if the copy was aborted (or sealed, which would be a bug): nothing may be written any more.
    pub fn write<R>(&self, write: impl FnOnce(&mut Writer) -> R) -> Result<R, Broken> {
        let mut writer = lock(&self.writer);
        if self.fate.get().is_some() {
            return Err(Broken);
        }
        let before = writer.watermark();
        let written = write(&mut writer);
        let advanced = writer.watermark() != before;
        drop(writer);
        if advanced {
            self.wake();
        }
        Ok(written)
    }

    /// The copy becomes final. If bytes are missing (a client reported wrongly), it is abandoned instead.
    pub fn seal(&self, seal: Seal) {
        let mut writer = lock(&self.writer);
        if writer.watermark() == writer.size() && self.fate.set(Fate::Sealed(seal)).is_ok() {
            writer.seal();
        } else {
            error!(
                copy = self.id.0,
                watermark = writer.watermark(),
                size = writer.size(),
                "cannot be sealed"
            );
            if self.fate.set(Fate::Aborted).is_ok() {
                writer.abort();
            }
        }
        drop(writer);
        self.wake();
    }

    /// This writing is abandoned.
    pub fn abort(&self) {
        let mut writer = lock(&self.writer);
        match self.fate.set(Fate::Aborted) {
            Ok(()) => writer.abort(),
            Err(_) => error!(copy = self.id.0, "aborted after its end"),
        }
        drop(writer);
        self.wake();
    }

    /// Wakes all followers: there are more bytes, or the copy has ended.
    pub fn wake(&self) {
        lock(&self.followers).iter().for_each(|follower| follower.notify_one());
    }

    /// Notifies `wake` of every change from now on, until the result is dropped.
    pub fn follow(self: &Arc<Self>, wake: Arc<Notify>) -> Following {
        lock(&self.followers).push(wake.clone());
        Following { copy: self.clone(), wake }
    }
}

/// A panic leaves nothing half-done under these locks: bytes are published after they are written, and the job that
/// panicked is reported as broken.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A reader that is woken by changes.
#[derive(Debug)]
pub struct Following {
    copy: Arc<Copy>,
    wake: Arc<Notify>,
}

impl Following {
    pub fn copy(&self) -> &Arc<Copy> {
        &self.copy
    }

    /// Waits until at least `bytes` bytes are present. Returns how many are.
    ///
    /// # Errors
    /// [`Broken`] if the copy is aborted, before or during the wait.
    pub async fn present(&self, bytes: u64) -> Result<u64, Broken> {
        loop {
            self.copy.seal_if_any()?;
            let present = self.copy.watermark();
            if present >= bytes {
                return Ok(present);
            }
            // First ask the writing client to report its progress, then look again, then sleep.
            self.copy.reader.want();
            if self.copy.watermark() == present {
                self.wake.notified().await;
            }
        }
    }

    /// Waits for the seal.
    ///
    /// # Errors
    /// [`Broken`] if the copy is aborted instead.
    pub async fn sealed(&self) -> Result<&Seal, Broken> {
        loop {
            if let Some(seal) = self.copy.seal_if_any()? {
                return Ok(seal);
            }
            self.wake.notified().await;
        }
    }
}

impl Drop for Following {
    fn drop(&mut self) {
        let mut followers = lock(&self.copy.followers);
        if let Some(at) = followers.iter().position(|follower| Arc::ptr_eq(follower, &self.wake)) {
            followers.swap_remove(at);
        }
    }
}
