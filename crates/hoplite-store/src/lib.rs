//! The shared-memory arena: map, write, watermark, seal, read.
//!
//! A node owns one [`Arena`]: a memfd that the daemon maps. Every client gets its descriptor ([`pass_fd`]) and maps it
//! too ([`Mapping::attach`]). The core decides where copies lie; this crate knows only offsets and bytes.
//!
//! A copy of an object is `size` bytes at `offset` (a multiple of 64), with a *progress block* in
//! the 64 bytes before it:
//!
//! | at | what | meaning |
//! |---|---|---|
//! | 0 | watermark `u64` | contiguous bytes present, counted from the start; only grows |
//! | 8 | tick `u32` | grows with every change; the futex word that followers sleep on |
//! | 12 | state `u32` | [`State`]: 0 writing, 1 sealed, 2 aborted |
//! | 16 | wanted `u32` | the daemon asks the writing client to report the next advance |
//!
//! Behind the last byte of the arena lie [counters](Mapping::removals) of removed copies. Clients read them to check
//! whether a cached object is still valid.
//!
//! Calling order: [`Mapping::create`] once (daemon) → one process writes through its [`Writer`]
//! (`unpublished`, fill, `publish`, again), while any number of [`Reader`]s, in any process, read
//! below the watermark and [`Reader::follow`] it → `seal` or `abort`.
//!
//! # Trust
//! Processes that map the arena run as one user and trust each other not to overwrite it. The kernel
//! keeps readers from writing by accident (their mapping is read-only), not from malice.

mod arena;
mod block;
mod mapped;
mod mapping;
pub mod pass_fd;
mod reader;
mod region;
mod removals;
mod stream;
mod sync;
mod touched;
mod warm;
mod writer;

pub use arena::Arena;
pub use block::State;
pub use mapping::Mapping;
pub use reader::{Followed, Reader};
pub use region::HugePages;
pub use stream::{copy_streaming, STREAM_FROM_BYTES};
pub use warm::PREFAULT_AHEAD;
pub use writer::Writer;
