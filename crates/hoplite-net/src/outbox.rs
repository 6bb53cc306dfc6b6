//! The bounded buffer of encoded frames to one reader.
//!
//! It is one buffer, not a queue of messages: all that piled up while the socket was busy leaves with one write. The
//! bound is in bytes, because it limits memory.

use std::sync::{Mutex, MutexGuard, PoisonError};

use bytes::BytesMut;
use hoplite_wire::encode;
use minicbor::Encode;
use tokio::sync::Notify;

/// The reader does not keep up, or is gone: it must be given up.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum OutboxFull {
    #[error("{bytes} bytes wait already, at most {bytes_max} may")]
    Full { bytes: usize, bytes_max: usize },
    #[error("the connection is being closed")]
    Closed,
}

/// Bounded. One task takes frames, one waits for the end, and any number of them write.
#[derive(Debug)]
pub struct Outbox {
    queue: Mutex<Queue>,
    changed: Notify,
    ended: Notify,
    bytes_max: usize,
}

#[derive(Debug, Default)]
struct Queue {
    frames: BytesMut,
    finishing: bool,
    closed: bool,
}

impl Outbox {
    /// Holds up to `bytes_max` bytes (one frame may exceed it).
    pub fn new(bytes_max: usize) -> Self {
        Outbox { queue: Mutex::default(), changed: Notify::new(), ended: Notify::new(), bytes_max }
    }

    /// Appends one frame.
    ///
    /// # Errors
    /// See [`OutboxFull`]; the frame is then not queued.
    pub fn push<T: Encode<()>>(&self, value: &T) -> Result<(), OutboxFull> {
        let mut queue = self.lock();
        if queue.closed || queue.finishing {
            return Err(OutboxFull::Closed);
        }
        if queue.frames.len() >= self.bytes_max {
            return Err(OutboxFull::Full { bytes: queue.frames.len(), bytes_max: self.bytes_max });
        }
        encode(value, &mut queue.frames);
        drop(queue);
        self.changed.notify_one();
        Ok(())
    }

    /// Returns all queued frames, as soon as there is one. `None` once closed, or finished and empty.
    pub async fn take(&self) -> Option<BytesMut> {
        loop {
            {
                let mut queue = self.lock();
                if queue.closed {
                    return None;
                }
                if !queue.frames.is_empty() {
                    return Some(queue.frames.split());
                }
                if queue.finishing {
                    return None;
                }
            }
            self.changed.notified().await;
        }
    }

    /// Waits until it is closed. A task that is writing to a reader which does not read must then stop.
    pub async fn closed(&self) {
        while !self.lock().closed {
            self.ended.notified().await;
        }
    }

    /// The number of queued bytes.
    pub fn bytes(&self) -> usize {
        self.lock().frames.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.bytes() == 0
    }

    /// Accepts no more frames. Queued ones can still be taken.
    pub fn finish(&self) {
        self.lock().finishing = true;
        self.changed.notify_one();
    }

    /// Drops all queued frames. `take`, `closed` and `push` end.
    pub fn close(&self) {
        let mut queue = self.lock();
        queue.closed = true;
        queue.frames = BytesMut::new();
        drop(queue);
        self.changed.notify_one();
        self.ended.notify_one();
    }

    fn lock(&self) -> MutexGuard<'_, Queue> {
        // A panic while encoding leaves whole frames and part of one. The process is about to log a bug, and the
        // reader will drop the connection at the broken frame.
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn frames_leave_together_and_in_order() {
        let outbox = Outbox::new(1 << 10);
        outbox.push(&1u32).unwrap();
        outbox.push(&2u32).unwrap();
        let mut expected = BytesMut::new();
        encode(&1u32, &mut expected);
        encode(&2u32, &mut expected);
        assert_eq!(outbox.take().await, Some(expected));
    }

    #[tokio::test]
    async fn a_full_outbox_refuses_and_a_closed_one_ends() {
        let outbox = Outbox::new(4);
        outbox.push(&7u32).unwrap();
        assert!(matches!(outbox.push(&8u32), Err(OutboxFull::Full { bytes: 5, bytes_max: 4 })));
        outbox.close();
        assert_eq!(outbox.push(&9u32), Err(OutboxFull::Closed));
        assert_eq!(outbox.take().await, None);
    }

    #[tokio::test]
    async fn a_finished_outbox_gives_out_its_frames_and_ends() {
        let outbox = Outbox::new(1 << 10);
        outbox.push(&1u32).unwrap();
        outbox.finish();
        assert_eq!(outbox.push(&2u32), Err(OutboxFull::Closed));
        let mut expected = BytesMut::new();
        encode(&1u32, &mut expected);
        assert_eq!(outbox.take().await, Some(expected));
        assert_eq!(outbox.take().await, None);
    }
}
