//! The client against a node whose every answer is scripted.

mod cache;
mod calls;
mod connection;
mod node;
mod objects;
