"""Collectives with a failure half-way: the cost of each, beside what is allowed."""
