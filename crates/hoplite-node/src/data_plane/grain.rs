//! The grain: how many new bytes are worth a wake-up.

use hoplite_types::limits::{GRAIN_BYTES_MAX, GRAIN_BYTES_MIN};

/// A relay adds one grain's time per hop: about a hundredth of the object's time for six hops together. With 128
/// grains, 32 MiB over seven hops took 1.09 of the wire's time.
const GRAINS_PER_OBJECT: u64 = 512;

/// The grain for forwarding an object of `size` bytes while it arrives.
pub(super) fn grain(size: u64) -> u64 {
    (size / GRAINS_PER_OBJECT).clamp(GRAIN_BYTES_MIN as u64, GRAIN_BYTES_MAX as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_objects_go_in_finer_grains() {
        assert_eq!(grain(1 << 10), 16 << 10);
        assert_eq!(grain(32 << 20), 64 << 10);
        assert_eq!(grain(128 << 20), 256 << 10);
        assert_eq!(grain(1 << 40), 256 << 10);
    }
}
