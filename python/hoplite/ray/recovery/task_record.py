"""What is remembered of one task, so that it can run again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import ray
from ray.actor import ActorHandle

from hoplite.ray.recovery.arguments import CannotRunAgain, Remake, restored
from hoplite.ray.recovery.calls import Function, Method, Parts
from hoplite.ray.recovery.reference_ids import task_of
from hoplite.ray.recovery.resource_lending import Lender, lent_options

__all__ = ["TASK_BYTES", "Rerun", "TaskRecord", "tasks_among"]

TASK_BYTES = 1 << 10
"""About what one takes besides the bytes of its arguments."""


class Rerun(NamedTuple):
    """A call that makes parts of a result again."""

    call: ray.ObjectRef
    takes: list[str]
    """The tasks (ids in hex) whose results are among its arguments."""


@dataclass(slots=True, eq=False)
class TaskRecord:
    """A call of a remote function, or of an actor's method."""

    target: Function | Method | None
    """None: it makes an actor, or what another has made again, and is known for what it `needs`."""
    args: Sequence[Any]
    kwargs: dict[str, Any]
    options: dict[str, Any]
    outputs: int
    depth: int = 1
    bytes: int = TASK_BYTES
    refused: CannotRunAgain | None = None
    """Why it cannot be made again, if so."""
    retries: int = 0
    """How often each of its large values may be made again; below 0: always."""
    pinned: Sequence[ray.ObjectRef | ActorHandle] = ()
    """Of its arguments what no task makes again: it stays, as in Ray, if `is_large`."""
    taken_back: Sequence[ray.ObjectRef] = ()
    """Calls that do not count among those."""
    parent: ray.TaskID | None = None
    """The task, or driver, that has called it."""
    needs: Sequence[str] = ()
    """The tasks (ids in hex) whose results are among its arguments."""
    is_large: bool | None = None
    """Whether its results are of the kind that may be lost, and not in messages; None: not known yet."""
    again: dict[int, list[ray.ObjectRef]] | None = None
    """By part, the calls that made it again. None: nothing was.

    The calls hold all its new guards: when an earlier guard goes, its node actor deletes the object, also one
    that a later call has made."""

    def refusal(self, part: int) -> CannotRunAgain | None:
        """Why this large value is not made again, if so.

        The values are reported one by one, as somebody comes to wait for them, so one loss may take as many
        runs as there are values: what `max_retries` allows is counted for each.
        """
        if self.refused is None and 0 <= self.retries <= self._times_made(part):
            return CannotRunAgain(
                "its task has run as often as max_retries allows",
                "OBJECT_UNRECONSTRUCTABLE_MAX_ATTEMPTS_EXCEEDED",
            )
        return self.refused

    def can_use(self, lender: Lender) -> bool:
        """Whether it needs, besides processors, only what `lender` holds."""
        return isinstance(self.target, Function) and lent_options(self.options, lender) is not None

    def run_again(self, parts: Parts, lender: Lender | None, remake: Remake) -> Rerun:
        """Make `parts` again. Raises `CannotRunAgain`.

        `lender`: runs on what this one holds, which it `can_use`. `remake`: makes arguments that have gone.
        """
        for part in parts:
            # Before arguments that have gone are made again, for nothing.
            if (refusal := self.refusal(part)) is not None:
                raise refusal
        args, kwargs = self._arguments(remake)
        left = self.retries if self.retries < 0 else self.retries - 1 - max(map(self._times_made, parts))
        call = self._callable.call_to_rebuild(
            [self.outputs, parts, *args], kwargs, self.options, left, lender
        )
        made = self.again or {}
        self.again = {**made, **{part: [*made.get(part, ()), call] for part in parts}}
        return Rerun(call, tasks_among(args, kwargs))

    def take_back(self, call: ray.ObjectRef) -> None:
        """It has made nothing, as far as is known: it does not count. What it may make yet stays."""
        self.taken_back = [*self.taken_back, call]
        self.again = {
            part: [other for other in calls if other != call] for part, calls in (self.again or {}).items()
        }

    def next_attempt(self, part: int) -> str:
        """What is going to be done about this large value, in words."""
        times = "any number of" if self.retries < 0 else str(self.retries)
        return f"{self._callable.name} runs again, attempt {self._times_made(part) + 1} of {times}"

    @property
    def _callable(self) -> Function | Method:
        assert self.target is not None, "it is refused"
        return self.target

    def _times_made(self, part: int) -> int:
        return len((self.again or {}).get(part, ()))

    def call_again(self, remake: Remake) -> list[ray.ObjectRef]:
        """The results of another call like this one. Raises `CannotRunAgain`."""
        args, kwargs = self._arguments(remake)
        return _listed(self._callable.call(args, kwargs, self.options))

    def _arguments(self, remake: Remake) -> tuple[list[Any], dict[str, Any]]:
        # In this order, the other way round than in `_refuse`: on another thread, or while they are revived.
        args, kwargs = self.args, self.kwargs
        if self.refused is not None:
            raise self.refused
        return [restored(value, remake) for value in args], {
            name: restored(value, remake) for name, value in kwargs.items()
        }


def tasks_among(args: Any, kwargs: Any) -> list[str]:
    """The tasks (ids in hex) of results among the arguments of a call."""
    values = (*(args or ()), *(kwargs or {}).values())
    return [task_of(value.hex()) for value in values if isinstance(value, ray.ObjectRef)]


def _listed(results: Any) -> list[ray.ObjectRef]:
    return list(results) if isinstance(results, list) else [results]
