"""Whole-system runs of released binaries: hosts made of network namespaces, and benchmarks.

``python -m lab`` lists what can be run. Nothing here is installed with the package: it uses only
the ``hoplited`` binary and the public ``hoplite`` package, as any user would.
"""
