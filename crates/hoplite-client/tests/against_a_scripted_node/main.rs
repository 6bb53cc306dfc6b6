//! The client against a node whose every answer is scripted.

mod calls;
mod connection;
mod node;
mod objects;
