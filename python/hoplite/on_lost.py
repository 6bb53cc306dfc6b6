"""`on_lost`: the reaction of a call when the last complete copy of its object has died."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from hoplite.errors import BadArgument
from hoplite.ids import ObjectId

__all__ = ["OnLost", "checked_on_lost"]

OnLost = Literal["raise", "wait"] | Callable[[ObjectId], object]
"""`"raise"` ends the call with `ObjectLost`. `"wait"` waits for a new put of the object. A function is called
once with the object's id, and then the call goes on waiting. The function:

- runs in the thread and process of the call, inside the call;
- may put the object itself, or ask another process to put it;
- ends the call if it raises;
- uses up the call's time-out, but is not interrupted when the time is up;
- may be a coroutine function for asyncio.
"""


def checked_on_lost(on_lost: OnLost) -> OnLost:
    """`on_lost`, if it is valid; else raises `BadArgument`."""
    if (isinstance(on_lost, str) and on_lost in ("raise", "wait")) or callable(on_lost):
        return on_lost
    raise BadArgument(f'on_lost is "raise", "wait" or a function of an ObjectId; not {on_lost!r}')
