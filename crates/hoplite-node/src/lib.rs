//! The event loop that drives the core, and the hoplited binary.
