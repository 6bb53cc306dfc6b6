"""Time-outs of calls, and their default."""

from __future__ import annotations

import enum
import os
import time

from hoplite.errors import BadArgument

__all__ = ["CONNECT_TIMEOUT", "DEFAULT", "DEFAULT_TIMEOUT", "Deadline", "Default", "Timeout", "in_seconds"]

DEFAULT_TIMEOUT = 1800.0
"""Default seconds of a call: longer than a task usually lets the next one wait, and short enough to learn on
the same day why a program stands still."""

CONNECT_TIMEOUT = 10.0
"""Seconds to wait for a node's welcome unless told otherwise; it needs milliseconds."""

VARIABLE = "HOPLITE_TIMEOUT"


class Default(enum.Enum):
    """The type of `DEFAULT`."""

    DEFAULT = "the client's default_timeout"

    def __repr__(self) -> str:
        return "DEFAULT"


DEFAULT = Default.DEFAULT
"""A `timeout` that was not given: the client's `default_timeout` holds."""

Timeout = float | None | Default
"""Seconds; None: for ever; DEFAULT: as long as the client's `default_timeout` says."""


def in_seconds(timeout: Timeout) -> float | None:
    """A client's default time-out; where none is given `$HOPLITE_TIMEOUT`, or else half an hour."""
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
    """`timeout`, if it is one."""
    if timeout is not None and not timeout >= 0:
        raise BadArgument(f"timeout is seconds from 0 up, or None for ever; not {timeout!r}")
    return timeout


class Deadline:
    """A caller's `timeout`, shared by the steps of one call."""

    def __init__(self, timeout: float | None, began: float | None = None) -> None:
        """`began`: when it was asked for, by `time.monotonic`; default: now."""
        seconds = checked(timeout)
        began = time.monotonic() if began is None else began
        self._end = None if seconds is None else began + seconds

    def left(self) -> float | None:
        """Seconds left, 0.0 at the least; None = for ever."""
        return None if self._end is None else max(0.0, self._end - time.monotonic())

    def left_at_most(self, seconds: float) -> float:
        """The same, but no more than `seconds`."""
        left = self.left()
        return seconds if left is None else min(left, seconds)

    def is_over(self) -> bool:
        """Whether no time is left."""
        return self.left() == 0.0
