//! The shared-memory arena: map, write, watermark, seal, read.
