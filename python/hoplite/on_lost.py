"""`on_lost`: what a call does when the last complete copy of its object has died."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from hoplite.errors import BadArgument
from hoplite.ids import ObjectId

__all__ = ["OnLost", "checked_on_lost"]

OnLost = Literal["raise", "wait"] | Callable[[ObjectId], object]
"""`"raise"` ends the call with `ObjectLost`. `"wait"` waits for a new put of the object. A function is called
once with the object's id before the call waits on. It runs where the call was made, inside the call: it may
put the object itself, or ask somebody to. Its exceptions end the call. Its time counts, but is not cut short.
For asyncio it may be a coroutine function."""


def checked_on_lost(on_lost: OnLost) -> OnLost:
    """`on_lost`, if it is one."""
    if (isinstance(on_lost, str) and on_lost in ("raise", "wait")) or callable(on_lost):
        return on_lost
    raise BadArgument(f'on_lost is "raise", "wait" or a function of an ObjectId; not {on_lost!r}')
