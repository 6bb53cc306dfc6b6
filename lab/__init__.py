"""Runs released binaries as whole systems: hosts made of network namespaces, and benchmarks.

``python -m lab`` lists what can be run. Nothing here is installed with the package. The lab uses only the
``hoplited`` binary and the public ``hoplite`` package, as any user would.
"""
