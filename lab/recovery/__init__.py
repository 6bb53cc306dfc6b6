"""Collectives with a failure half-way: the cost of each, and its limit."""
