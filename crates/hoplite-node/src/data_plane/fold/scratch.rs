//! Bytes that were read from a stream and are not folded yet.

use std::io;

use hoplite_types::limits;

/// As for objects: SIMD loads never straddle cache lines.
const ALIGNMENT: usize = limits::ALIGNMENT as usize;

/// A buffer of unfolded bytes. They start at its (aligned) front whenever they are few.
#[derive(Debug)]
pub(super) struct Scratch {
    memory: Vec<u8>,
    /// The start of the aligned part of `memory`.
    front: usize,
    bytes_max: usize,
    start: usize,
    end: usize,
}

impl Scratch {
    /// Holds up to `bytes_max` bytes. Allocates its memory at the first `fill`.
    pub(super) fn new(bytes_max: usize) -> Self {
        Scratch { memory: Vec::new(), front: 0, bytes_max: bytes_max.max(ALIGNMENT), start: 0, end: 0 }
    }

    pub(super) fn unfolded(&self) -> &[u8] {
        &self.memory[self.front + self.start..self.front + self.end]
    }

    pub(super) fn is_full(&self) -> bool {
        self.end == self.bytes_max
    }

    /// Lets `read` fill some of the free part, at most `wanted` bytes.
    pub(super) fn fill(
        &mut self,
        wanted: u64,
        read: impl FnOnce(&mut [u8]) -> io::Result<usize>,
    ) -> io::Result<usize> {
        if self.memory.is_empty() {
            self.memory = vec![0; self.bytes_max + ALIGNMENT];
            self.front = self.memory.as_ptr().align_offset(ALIGNMENT);
        }
        let free = self.bytes_max - self.end;
        let wanted = usize::try_from(wanted).unwrap_or(usize::MAX).min(free);
        let from = self.front + self.end;
        let filled = read(&mut self.memory[from..from + wanted])?;
        self.end += filled;
        Ok(filled)
    }

    /// The first `bytes` unfolded bytes have been folded.
    pub(super) fn consume(&mut self, bytes: usize) {
        self.start += bytes;
        assert!(self.start <= self.end, "more was folded than read");
        // Half an element, or fewer bytes than were just folded: cheap to move to the front.
        if self.end - self.start <= self.start {
            let (start, end) = (self.front + self.start, self.front + self.end);
            self.memory.copy_within(start..end, self.front);
            self.end -= self.start;
            self.start = 0;
        }
    }

    /// Frees the memory; the stream has ended.
    pub(super) fn release(&mut self) {
        *self = Scratch::new(self.bytes_max);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fill(scratch: &mut Scratch, bytes: &[u8]) -> usize {
        scratch
            .fill(bytes.len() as u64, |free| {
                free.copy_from_slice(&bytes[..free.len()]);
                Ok(free.len())
            })
            .unwrap()
    }

    #[test]
    fn bytes_come_out_in_order_and_aligned() {
        let mut scratch = Scratch::new(256);
        assert_eq!(fill(&mut scratch, &[1; 10]), 10);
        scratch.consume(8);
        assert_eq!(scratch.unfolded(), [1, 1]);
        assert_eq!(scratch.unfolded().as_ptr().align_offset(ALIGNMENT), 0);
        assert_eq!(fill(&mut scratch, &[2; 3]), 3);
        assert_eq!(scratch.unfolded(), [1, 1, 2, 2, 2]);
    }

    #[test]
    fn scratch_never_holds_more_than_its_limit() {
        let mut scratch = Scratch::new(100);
        assert_eq!(fill(&mut scratch, &[1; 300]), 100);
        assert!(scratch.is_full());
        scratch.consume(100);
        assert!(!scratch.is_full());
    }
}
