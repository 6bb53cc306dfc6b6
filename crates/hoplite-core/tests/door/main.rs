//! The core through its public door: scripted clients and peers, and a driver that keeps books.

mod crashes;
mod crowded;
mod deletes;
mod directory;
mod full_store;
mod gets;
mod inline;
mod leaving;
mod lending;
mod losses;
mod node;
mod plan;
mod prefetches;
mod puts;
mod reduces;
mod repeats;
mod requests;
mod said;
mod serving;
mod small;
mod stalls;
mod stripes;
mod waits;
mod witnesses;
