//! The core through its public door: scripted clients and peers, and a driver that keeps books.

mod asks;
mod backups;
mod crashes;
mod crowded;
mod directory;
mod full_store;
mod gets;
mod inline;
mod inventory;
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
mod serving;
mod small;
mod stalls;
mod stripes;
mod tombstones;
mod waits;
