//! Draws values of any message type from a source of numbers: a counter for the golden frames, a seeded generator for
//! everything else. `messages.rs` constructs each type.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};

use hoplite_types::{Blob, ObjectId};

/// Where drawn values get their numbers from.
pub trait Source {
    fn number(&mut self) -> u64;
    /// A number below `limit`, for choices.
    fn below(&mut self, limit: usize) -> usize;
    fn flag(&mut self) -> bool;
}

/// 1, 2, 3, …: values in which every field differs and every optional one is there.
#[derive(Default)]
pub struct Counter(u64);

impl Source for Counter {
    fn number(&mut self) -> u64 {
        self.0 += 1;
        self.0
    }

    fn below(&mut self, limit: usize) -> usize {
        // Lists get two elements, enums their first variant, so new variants move no golden frame.
        if limit == LIST_LENGTHS {
            2
        } else {
            0
        }
    }

    fn flag(&mut self) -> bool {
        true
    }
}

/// SplitMix64: as good as any for tests, and the same on every machine for a seed.
pub struct Seeded(pub u64);

impl Source for Seeded {
    fn number(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, limit: usize) -> usize {
        (self.number() % limit as u64) as usize
    }

    fn flag(&mut self) -> bool {
        self.number() & 1 == 1
    }
}

pub trait Draw: Sized {
    fn draw(from: &mut dyn Source) -> Self;
}

/// An enum whose every variant can be asked for.
pub trait Variants: Sized {
    const NAMES: &'static [&'static str];
    fn nth(index: usize, from: &mut dyn Source) -> Self;
}

/// Drawn lists have up to this many elements less one (a prime that no enum has as its count,
/// which is how [`Counter`] tells lists from enums).
pub const LIST_LENGTHS: usize = 7;

macro_rules! draw_numbers {
    ($($type:ty),*) => {$(
        impl Draw for $type {
            fn draw(from: &mut dyn Source) -> Self {
                // CBOR has five lengths of integers: reach them all.
                let shift = 8 * from.below(8);
                (from.number() >> shift) as $type
            }
        }
    )*};
}
draw_numbers!(u8, u16, u32, u64);

impl Draw for bool {
    fn draw(from: &mut dyn Source) -> Self {
        from.flag()
    }
}

impl Draw for String {
    fn draw(from: &mut dyn Source) -> Self {
        let length = from.below(LIST_LENGTHS);
        (0..length).map(|_| ['a', 'ß', '0', '\u{1f980}'][(from.number() % 4) as usize]).collect()
    }
}

impl<T: Draw> Draw for Option<T> {
    fn draw(from: &mut dyn Source) -> Self {
        from.flag().then(|| T::draw(from))
    }
}

impl<T: Draw> Draw for Vec<T> {
    fn draw(from: &mut dyn Source) -> Self {
        let length = from.below(LIST_LENGTHS);
        (0..length).map(|_| T::draw(from)).collect()
    }
}

impl<A: Draw, B: Draw> Draw for (A, B) {
    fn draw(from: &mut dyn Source) -> Self {
        (A::draw(from), B::draw(from))
    }
}

impl<A: Draw, B: Draw, C: Draw> Draw for (A, B, C) {
    fn draw(from: &mut dyn Source) -> Self {
        (A::draw(from), B::draw(from), C::draw(from))
    }
}

impl Draw for ObjectId {
    fn draw(from: &mut dyn Source) -> Self {
        let mut id = [0; ObjectId::LEN];
        id[..8].copy_from_slice(&from.number().to_le_bytes());
        id[8..].copy_from_slice(&from.number().to_be_bytes());
        ObjectId(id)
    }
}

impl Draw for Blob {
    fn draw(from: &mut dyn Source) -> Self {
        let length = from.below(LIST_LENGTHS) * 50;
        Blob((0..length).map(|_| from.number() as u8).collect())
    }
}

impl Draw for SocketAddr {
    fn draw(from: &mut dyn Source) -> Self {
        let port = from.number() as u16;
        if from.flag() {
            (Ipv4Addr::from(from.number() as u32), port).into()
        } else {
            (Ipv6Addr::from(u128::from(from.number()) << 64 | 1), port).into()
        }
    }
}
