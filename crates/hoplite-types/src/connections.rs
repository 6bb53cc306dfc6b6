//! The number of connections that carry a transfer.

use crate::limits::CONNECTIONS_MAX;

/// Between one and [`CONNECTIONS_MAX`] connections.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Connections(u8);

impl Connections {
    pub const ONE: Connections = Connections(1);

    /// `None` if `count` is out of range.
    pub const fn new(count: u8) -> Option<Self> {
        match count {
            1..=CONNECTIONS_MAX => Some(Connections(count)),
            _ => None,
        }
    }

    pub fn get(self) -> u8 {
        self.0
    }

    /// Twice as many, if that is allowed.
    pub fn doubled(self) -> Option<Self> {
        Self::new(self.0 * 2)
    }

    /// The share of each of several transfers to the same peer at the same time.
    pub fn shared_by(self, transfers: usize) -> Self {
        let each = usize::from(self.0) / transfers.max(1);
        Connections((each as u8).max(1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_allowed_numbers_can_be_made() {
        assert_eq!(Connections::new(0), None);
        assert_eq!(Connections::new(1), Some(Connections::ONE));
        assert_eq!(Connections::new(CONNECTIONS_MAX + 1), None);
        assert_eq!(Connections::new(u8::MAX), None);
        assert_eq!(Connections::new(CONNECTIONS_MAX).unwrap().doubled(), None);
        assert_eq!(Connections::new(3).unwrap().doubled(), Connections::new(6));
    }

    #[test]
    fn transfers_share_but_each_has_one() {
        let four = Connections::new(4).unwrap();
        assert_eq!([1, 2, 3, 9].map(|transfers| four.shared_by(transfers).get()), [4, 2, 1, 1]);
    }
}
