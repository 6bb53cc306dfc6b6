//! Control messages to bytes and back, versioned.
