"""Time-outs of calls, and their default."""

from __future__ import annotations

import enum
import os
import time

from hoplite.errors import BadArgument

__all__ = ["CONNECT_TIMEOUT", "DEFAULT", "DEFAULT_TIMEOUT", "Deadline", "Default", "Timeout", "in_seconds"]

DEFAULT_TIMEOUT = 1800.0
"""Default time-out of a call, in seconds. It is longer than tasks usually wait for each other. It is short
enough to show on the same day why a program hangs."""

CONNECT_TIMEOUT = 10.0
"""Default seconds to wait for a node's welcome, which takes milliseconds."""

VARIABLE = "HOPLITE_TIMEOUT"


class Default(enum.Enum):
    """The type of `DEFAULT`."""

    DEFAULT = "the client's default_timeout"

    def __repr__(self) -> str:
        return "DEFAULT"


DEFAULT = Default.DEFAULT
"""The value of a `timeout` that was not given. The client's `default_timeout` applies."""

Timeout = float | None | Default
"""Seconds. None: for ever. DEFAULT: the client's `default_timeout`."""


def in_seconds(timeout: Timeout) -> float | None:
    """A client's default time-out: `timeout` if given, else `$HOPLITE_TIMEOUT`, else half an hour."""
    if timeout is not DEFAULT:
        return checked(timeout)
    text = os.environ.get(VARIABLE, "").strip()
    if not text:
        return DEFAULT_TIMEOUT
    try:
        return checked(float(text))
    except ValueError:
        raise BadArgument(f"${VARIABLE} is seconds from 0 up, or inf for ever; not {text!r}") from None


def checked(timeout: float | None) -> float | None:
    """`timeout`, if it is valid; else raises `BadArgument`."""
    if timeout is not None and not timeout >= 0:
        raise BadArgument(f"timeout is seconds from 0 up, or None for ever; not {timeout!r}")
    return timeout


class Deadline:
    """The end of a caller's `timeout`, which all steps of one call share."""

    def __init__(self, timeout: float | None, began: float | None = None) -> None:
        """`began`: the time of the call, by `time.monotonic` (default: now)."""
        seconds = checked(timeout)
        began = time.monotonic() if began is None else began
        self._end = None if seconds is None else began + seconds

    def left(self) -> float | None:
        """Seconds left, 0.0 at the least; None: for ever."""
        return None if self._end is None else max(0.0, self._end - time.monotonic())

    def left_at_most(self, seconds: float) -> float:
        """Seconds left, but no more than `seconds`."""
        left = self.left()
        return seconds if left is None else min(left, seconds)

    def is_over(self) -> bool:
        """Whether no time is left."""
        return self.left() == 0.0
