//! The model checker's version of `hoplite_node::sync`: a copy whose progress block is the store's own code, whose
//! locks and atomics are the checker's, and whose bytes are a vector.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

pub use loom::sync::atomic::{fence, AtomicU32, AtomicU64, Ordering};
pub use loom::sync::{Mutex, MutexGuard};
pub use std::sync::PoisonError;

use crate::block::{ProgressBlock, State};

/// As tokio's: one permit, for one that waits or will wait.
#[derive(Debug, Default)]
pub struct Notify(Mutex<(bool, Option<Waker>)>);

pub struct Notified<'a>(&'a Notify);

impl Notify {
    pub fn new() -> Self {
        Notify::default()
    }

    pub fn notify_one(&self) {
        let waker = {
            let mut inner = self.0.lock().unwrap();
            inner.0 = true;
            inner.1.take()
        };
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    pub fn notified(&self) -> Notified<'_> {
        Notified(self)
    }
}

impl Future for Notified<'_> {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let mut inner = self.0 .0.lock().unwrap();
        if std::mem::take(&mut inner.0) {
            return Poll::Ready(());
        }
        inner.1 = Some(cx.waker().clone());
        Poll::Pending
    }
}

/// A value is kept for ever: models are small.
#[derive(Debug)]
pub struct OnceLock<T: 'static>(Mutex<Option<&'static T>>);

impl<T> OnceLock<T> {
    pub fn new() -> Self {
        OnceLock(Mutex::new(None))
    }

    pub fn get(&self) -> Option<&T> {
        *self.0.lock().unwrap()
    }

    pub fn set(&self, value: T) -> Result<(), T> {
        let mut set = self.0.lock().unwrap();
        if set.is_some() {
            return Err(value);
        }
        *set = Some(Box::leak(Box::new(value)));
        Ok(())
    }
}

/// The memory of one copy. The checker does not follow its bytes: the block says which may be read.
#[derive(Default)]
pub struct Mapping {
    pub block: ProgressBlock,
    bytes: std::sync::Mutex<Vec<u8>>,
}

impl Mapping {
    pub fn create_window(self: &Arc<Self>, _block: u64, _offset: u64, size: u64) -> io::Result<Writer> {
        self.block.reset();
        *self.bytes.lock().unwrap() = vec![0; size as usize];
        Ok(Writer { memory: self.clone(), bytes: vec![0; size as usize] })
    }
}

pub struct Writer {
    memory: Arc<Mapping>,
    bytes: Vec<u8>,
}

impl Writer {
    pub fn unseen(self) -> Self {
        self
    }

    pub fn show(&mut self) {}

    pub fn reader(&self) -> Reader {
        Reader { memory: self.memory.clone(), size: self.size() }
    }

    pub fn size(&self) -> u64 {
        self.bytes.len() as u64
    }

    pub fn watermark(&self) -> u64 {
        self.memory.block.watermark()
    }

    pub fn unpublished(&mut self, from: u64, to: u64) -> &mut [u8] {
        assert!(self.watermark() <= from && from <= to, "{from}..{to} is published");
        &mut self.bytes[from as usize..to as usize]
    }

    pub fn publish(&mut self, watermark: u64) {
        assert!(self.watermark() <= watermark);
        self.memory.bytes.lock().unwrap().copy_from_slice(&self.bytes);
        self.memory.block.publish(watermark);
    }

    pub fn seal(&mut self) {
        self.memory.block.finish(State::Sealed);
    }

    pub fn abort(&mut self) {
        self.memory.block.finish(State::Aborted);
    }
}

impl std::fmt::Debug for Writer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Writer({:?})", self.bytes)
    }
}

pub struct Reader {
    memory: Arc<Mapping>,
    size: u64,
}

impl Reader {
    pub fn size(&self) -> u64 {
        self.size
    }

    pub fn watermark(&self) -> u64 {
        self.memory.block.watermark()
    }

    pub fn want(&self) {
        self.memory.block.want();
    }

    pub fn bytes(&self, from: u64, to: u64) -> &[u8] {
        assert!(to <= self.watermark(), "{from}..{to} is not published");
        let bytes = self.memory.bytes.lock().unwrap()[from as usize..to as usize].to_vec();
        Box::leak(bytes.into_boxed_slice())
    }
}

impl std::fmt::Debug for Reader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Reader({} bytes)", self.size)
    }
}
