"""Collectives with a failure half-way: what each costs, beside what it may cost."""
