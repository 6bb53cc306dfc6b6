"""Settings that all processes of a Ray job share: they travel in its runtime environment."""

from __future__ import annotations

import os

from hoplite.errors import BadArgument

__all__ = ["ROOM_TIMEOUT", "THRESHOLD_DEFAULT", "THRESHOLD_VARIABLE", "TRANSPARENT_VARIABLE", "threshold"]

THRESHOLD_DEFAULT = 1 << 20
"""Bytes from which on a value goes through Hoplite; why, says docs/decisions/0012-hoplite-on-ray.md."""

ROOM_TIMEOUT = 1.0
"""Seconds that a put waits for room in the store. Then the value goes Ray's way, which can spill to disk."""

THRESHOLD_VARIABLE = "HOPLITE_RAY_THRESHOLD"
TRANSPARENT_VARIABLE = "HOPLITE_RAY_TRANSPARENT"


def threshold() -> int:
    """Bytes from which on a value goes through Hoplite."""
    text = os.environ.get(THRESHOLD_VARIABLE, "")
    if not text:
        return THRESHOLD_DEFAULT
    if not text.isdigit():
        raise BadArgument(f"${THRESHOLD_VARIABLE} is bytes, a whole number; not {text!r}")
    return int(text)
