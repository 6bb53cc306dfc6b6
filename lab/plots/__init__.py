"""Figures of the benchmarks, each drawn from what the benchmark left; `lab.figures` says how they look."""
