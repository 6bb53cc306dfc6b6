//! put, get, reduce, delete over the local socket and mapped memory.
