//! Reduction arithmetic on slices: every dtype, every op.
