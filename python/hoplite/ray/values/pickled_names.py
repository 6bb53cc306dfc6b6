"""The names of modules that stand in pickles with handles. `handles` imports modules that need its name."""

from __future__ import annotations

__all__ = ["HANDLES_MARK", "HANDLES_MODULE", "PACKING_MODULE"]

HANDLES_MODULE = f"{__package__}.handles"
"""The module whose functions pickles call for a handle, and for a batched fetch. It checks this name."""

HANDLES_MARK = HANDLES_MODULE.encode()
"""Contained in the pickle of every value with a handle: a value without these bytes has none."""

PACKING_MODULE = f"{__package__}.packing"
"""The module whose function pickles call for a packed value. It checks this name."""
