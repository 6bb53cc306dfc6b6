//! A deterministic world for the core: clock, links, checkers.
