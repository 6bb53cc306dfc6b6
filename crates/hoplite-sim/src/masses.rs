//! Masses: sets of many small objects. Ids and contents follow from the numbers of the objects, so no list is kept.

use hoplite_types::ObjectId;

/// The last bytes of the ids of all members. No name's hash ends with them.
const MARK: [u8; 8] = *b" of many";

/// A mass: objects of one size, numbered from 0 on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Mass {
    pub number: u32,
    pub count: u32,
    pub size: u64,
}

/// Members of a mass with consecutive numbers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Stretch {
    pub mass: u32,
    pub first: u32,
    pub count: u32,
}

impl Stretch {
    pub fn ids(self) -> impl Iterator<Item = ObjectId> {
        (self.first..self.first + self.count).map(move |member| id(self.mass, member))
    }

    pub fn id(self, nth: u32) -> ObjectId {
        id(self.mass, self.first + nth)
    }

    /// Splits the stretch into parts of at most `most` members.
    pub fn split(self, most: u32) -> impl Iterator<Item = Stretch> {
        let end = self.first + self.count;
        (self.first..end).step_by(most as usize).map(move |first| Stretch {
            first,
            count: most.min(end - first),
            ..self
        })
    }
}

impl Mass {
    pub fn all(self) -> Stretch {
        Stretch { mass: self.number, first: 0, count: self.count }
    }
}

/// The id of a member. It starts with the member's number, as logs show the first bytes of an id without a name.
pub fn id(mass: u32, member: u32) -> ObjectId {
    let mut id = [0; ObjectId::LEN];
    id[..4].copy_from_slice(&member.to_be_bytes());
    id[4..8].copy_from_slice(&mass.to_be_bytes());
    id[8..].copy_from_slice(&MARK);
    ObjectId(id)
}

/// The mass of the object, and its number there.
pub fn member(id: ObjectId) -> Option<(u32, u32)> {
    let number = |at: usize| u32::from_be_bytes(id.0[at..at + 4].try_into().expect("4 bytes"));
    (id.0[8..] == MARK).then(|| (number(4), number(0)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_are_known_by_their_ids() {
        assert_eq!(member(id(2, 70_000)), Some((2, 70_000)));
        assert_eq!(member(ObjectId::from_name("x")), None);
        let parts: Vec<_> = Mass { number: 1, count: 25, size: 64 }.all().split(10).collect();
        assert_eq!(parts.iter().map(|part| part.count).collect::<Vec<_>>(), [10, 10, 5]);
        assert_eq!(parts[2].id(4), id(1, 24));
        assert_eq!(parts.iter().flat_map(|part| part.ids()).count(), 25);
    }
}
