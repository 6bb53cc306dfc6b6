//! Who waits for room in a full store, in order of arrival. Whoever fits goes first: a large object
//! at the head must not hold up a small one whose reader would free the room it waits for.

use hoplite_words::{ObjectId, ReductionId};

use crate::io::ClientId;
use crate::Core;

/// What the room is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum RoomFor {
    Create { client: ClientId, call: u64 },
    Fetch { object: ObjectId, size: u64 },
    Seat { reduction: ReductionId, slot: u32 },
    SmallTarget { number: u64 },
}

impl Core {
    pub(crate) fn wait_for_room(&mut self, what: RoomFor) {
        if !self.room.contains(&what) {
            self.room.push_back(what);
        }
    }

    /// Room came back: everyone who waits tries again, once.
    pub(crate) fn retry_room(&mut self) {
        let waiting: Vec<_> = self.room.drain(..).collect();
        for what in waiting {
            match what {
                RoomFor::Create { client, call } => self.try_create(client, call),
                RoomFor::Fetch { object, size } => {
                    if self.copies.could_make_room(size) {
                        self.on_room_for_fetch(object);
                    } else if self.fetches.is_expected(object) {
                        self.wait_for_room(what);
                    }
                }
                RoomFor::Seat { reduction, slot } => self.try_seat((reduction, slot)),
                RoomFor::SmallTarget { number } => self.fold_small(number),
            }
        }
    }
}
