//! Draws the faults of a world.

use std::time::Duration;

use crate::fault::{Class, Fault, Kind, Lane, When, Whom};
use crate::rng::SimRng;
use crate::workload::Shape;

/// Most faults of one world.
const FAULTS_MAX: u64 = 5;

/// Faults begin to strike at most this long after the last task has started.
pub const LAST_STRIKE: Duration = Duration::from_millis(800);

/// Draws the faults of a world of a given shape.
pub struct FaultPlanner<'a> {
    pub rng: &'a mut SimRng,
    pub shape: &'a Shape,
}

impl FaultPlanner<'_> {
    pub fn draw(mut self) -> Vec<(When, Fault)> {
        let drawn = [
            Class::Client,
            Class::Kill,
            Class::Host,
            Class::Leave,
            Class::Pause,
            Class::Partition,
            Class::Control,
            Class::Bulk,
            Class::Stall,
            Class::Delay,
            Class::Slow,
            Class::OneWay,
        ];
        let classes: Vec<_> = drawn.into_iter().filter(|class| self.shape.faults.has(*class)).collect();
        if classes.is_empty() || self.rng.percent(5) {
            return Vec::new();
        }
        // Only a few classes per world: combinations of faults occur, and a failure stays readable.
        let few: Vec<_> = (0..self.rng.between(1, 3)).map(|_| *self.rng.pick(&classes)).collect();
        let count = self.rng.between(1, FAULTS_MAX);
        (0..count)
            .map(|_| {
                let class = *self.rng.pick(&few);
                self.draw_one(class)
            })
            .collect()
    }

    fn draw_one(&mut self, class: Class) -> (When, Fault) {
        // Faults that concern no message and no stream strike at a drawn time.
        let free =
            matches!(class, Class::Client | Class::Delay | Class::Slow | Class::Partition | Class::OneWay);
        let (when, whom) = match free {
            true => (self.at(), self.node()),
            false => self.moment(),
        };
        (when, self.fault(class, whom))
    }

    fn fault(&mut self, class: Class, whom: Whom) -> Fault {
        match class {
            Class::Client => {
                Fault::KillClient { client: self.rng.index(self.shape.clients), forked: self.rng.percent(25) }
            }
            Class::Kill | Class::Host => {
                let back_after = self.back_after(&[1, 100, 1000, 3000]);
                Fault::KillNode { whom, host: class == Class::Host, back_after }
            }
            Class::Leave => {
                let back_after = self.back_after(&[1, 100, 1000]);
                let within = match self.rng.percent(25) {
                    true => Duration::ZERO,
                    false => self.length(&[10, 1000, 4000]),
                };
                Fault::Leave { whom, within, back_after }
            }
            Class::Pause if self.rng.percent(3) => {
                // Longer than all time-outs.
                Fault::Pause { whom, time: self.length(&[90_000]) }
            }
            Class::Pause => Fault::Pause { whom, time: self.length(&[50, 300, 1500, 5000]) },
            Class::Partition => {
                let time = self.length(&[50, 500, 3000, 8000]);
                match self.rng.percent(30) {
                    true => Fault::Isolate { whom, time },
                    false => Fault::Partition { side: self.side(), one_way: false, time },
                }
            }
            Class::Control => match whom {
                Whom::Node(from) => Fault::BreakControl { from: Whom::Node(from), to: self.node() },
                Whom::Sender => Fault::BreakControl { from: Whom::Sender, to: Whom::Receiver },
                Whom::Receiver => Fault::BreakControl { from: Whom::Receiver, to: Whom::Sender },
            },
            Class::Bulk => Fault::BreakBulk { pick: self.rng.seed() },
            Class::Stall => {
                Fault::StallBulk { pick: self.rng.seed(), time: self.length(&[20, 200, 2000, 7000]) }
            }
            Class::Delay => Fault::Delay {
                from: self.index(),
                to: self.index(),
                lane: *self.rng.pick(&[Lane::Control, Lane::Control, Lane::Bulk, Lane::Datagrams]),
                extra: self.length(&[1, 10, 100, 400]),
                time: self.length(&[10, 100, 1000]),
            },
            Class::Slow => Fault::Slow {
                node: self.index(),
                lag: self.rng.time(Duration::from_micros(100), Duration::from_millis(20)),
                factor: self.rng.between(1, 20),
                time: self.length(&[100, 1000, 4000]),
            },
            Class::OneWay => {
                let (side, time) = (self.side(), self.length(&[50, 500, 3000, 8000]));
                Fault::Partition { side, one_way: true, time }
            }
            Class::Restart | Class::Datagram | Class::Dial | Class::Shortage => {
                unreachable!("no faults of their own")
            }
        }
    }

    /// How long after its end a node comes back, if it does: about one of these lengths, in milliseconds.
    fn back_after(&mut self, lengths: &[u64]) -> Option<Duration> {
        let back = self.shape.faults.has(Class::Restart) && self.rng.percent(60);
        let time = self.length(lengths);
        back.then_some(time)
    }

    fn index(&mut self) -> usize {
        self.rng.index(self.shape.nodes)
    }

    fn node(&mut self) -> Whom {
        Whom::Node(self.index())
    }

    /// A length around one of these, in milliseconds.
    fn length(&mut self, about: &[u64]) -> Duration {
        let about = Duration::from_millis(*self.rng.pick(about));
        self.rng.time(about / 2, about * 2)
    }

    fn side(&mut self) -> Vec<bool> {
        let mut side: Vec<bool> = (0..self.shape.nodes).map(|_| self.rng.percent(50)).collect();
        side[0] = true;
        if self.rng.percent(50) {
            // If the cut is one way, it matters which side is marked.
            side.iter_mut().for_each(|marked| *marked = !*marked);
        }
        side
    }

    fn at(&mut self) -> When {
        When::At(self.rng.time(Duration::ZERO, self.shape.span + LAST_STRIKE))
    }

    /// A drawn time, or a message or stream that triggers the fault. Faults in the middle of work find more bugs than
    /// faults at arbitrary times.
    fn moment(&mut self) -> (When, Whom) {
        let after = self.rng.time(Duration::ZERO, self.shape.span);
        let one_end = |rng: &mut SimRng| *rng.pick(&[Whom::Sender, Whom::Receiver]);
        match self.rng.between(0, 2) {
            0 => (self.at(), self.node()),
            1 => {
                let kind = *self.rng.pick(&Kind::ALL);
                let lag = Duration::from_micros(*self.rng.pick(&[0, 0, 30, 300, 3000, 20_000]));
                let when = When::Said { after, kind, nth: self.rng.between(0, 3) as u32, lag };
                let whom = if self.rng.percent(10) { self.node() } else { one_end(self.rng) };
                (when, whom)
            }
            _ => {
                let nth = self.rng.between(0, 4) as u32;
                let percent = *self.rng.pick(&[0, 1, 30, 60, 99, 100]);
                let when = When::Streamed { after, nth, percent };
                let whom = if self.rng.percent(10) { self.node() } else { one_end(self.rng) };
                (when, whom)
            }
        }
    }
}
