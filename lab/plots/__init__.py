"""Figures of the benchmarks, each drawn from the benchmark's results; `lab.figures` defines their look."""
