"""A Hoplite node beside every Ray node: its actors, and the ways of a process to it."""
