//! The simulated clock and the queue of future events.

use std::collections::BTreeMap;
use std::time::Duration;

/// Events ordered by time, and for equal times in the order in which they were pushed.
#[derive(Debug)]
pub struct Queue<E> {
    now: Duration,
    pushed: u64,
    events: BTreeMap<(Duration, u64), E>,
}

impl<E> Default for Queue<E> {
    fn default() -> Self {
        Queue { now: Duration::ZERO, pushed: 0, events: BTreeMap::new() }
    }
}

impl<E> Queue<E> {
    /// Time since the world began.
    pub fn now(&self) -> Duration {
        self.now
    }

    /// Schedules `event` at `at`, or now if that is past.
    pub fn push(&mut self, at: Duration, event: E) {
        self.pushed += 1;
        self.events.insert((at.max(self.now), self.pushed), event);
    }

    /// Moves the clock to the next event and takes it out.
    pub fn pop(&mut self) -> Option<E> {
        let ((at, _), event) = self.events.pop_first()?;
        self.now = self.now.max(at);
        Some(event)
    }

    /// The time of the next event.
    pub fn next_at(&self) -> Option<Duration> {
        self.events.keys().next().map(|(at, _)| *at)
    }

    /// Advances the clock without an event. It must not pass one.
    pub fn idle_until(&mut self, at: Duration) {
        assert!(self.next_at().is_none_or(|next| next >= at), "an event would be jumped over");
        self.now = self.now.max(at);
    }

    /// Advances the clock past scheduled events, which then happen late.
    pub fn jump(&mut self, by: Duration) {
        self.now += by;
    }

    pub fn iter(&self) -> impl Iterator<Item = &E> {
        self.events.values()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_times_keep_their_order_and_the_past_becomes_now() {
        let ms = Duration::from_millis;
        let mut queue = Queue::default();
        queue.push(ms(2), 'c');
        queue.push(ms(1), 'a');
        queue.push(ms(1), 'b');
        assert_eq!(queue.pop(), Some('a'));
        queue.push(ms(0), 'x');
        assert_eq!((queue.pop(), queue.pop(), queue.pop()), (Some('b'), Some('x'), Some('c')));
        assert_eq!(queue.now(), ms(2));
        assert_eq!(queue.pop(), None);
        queue.push(ms(5), 'd');
        queue.jump(ms(10));
        assert_eq!((queue.pop(), queue.now()), (Some('d'), ms(12)));
    }
}
