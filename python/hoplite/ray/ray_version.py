"""Imports Ray and checks its version. Imported before all modules that use Ray's internals."""

from __future__ import annotations

__all__ = ["RAY_MIN"]

RAY_MIN = (2, 60)
"""The oldest Ray that has all hooked internals. It is the version that was tried."""

try:
    import ray
except ModuleNotFoundError as error:
    if error.name != "ray":
        raise
    raise ModuleNotFoundError(
        "hoplite.ray needs the package ray: pip install 'hoplite[ray]'", name="ray"
    ) from error

if tuple(int(part) for part in ray.__version__.split(".")[:2]) < RAY_MIN:
    raise ImportError(
        f"hoplite.ray needs Ray {'.'.join(map(str, RAY_MIN))} or later, and this is Ray {ray.__version__}:"
        " pip install 'hoplite[ray]'",
        name="ray",
    )
