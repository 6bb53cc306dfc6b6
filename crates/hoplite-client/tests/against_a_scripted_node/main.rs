//! Tests of the client with a scripted node.

mod cache;
mod calls;
mod connection;
mod node;
mod objects;
