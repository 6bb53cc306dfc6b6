"""The record of one task, so that it can run again."""

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
"""About the bytes of a record, besides those of its arguments."""


class Rerun(NamedTuple):
    """A call that rebuilds parts of a result."""

    call: ray.ObjectRef
    takes: list[str]
    """The tasks (ids in hex) whose results are among its arguments."""


@dataclass(slots=True, eq=False)
class TaskRecord:
    """A recorded call of a remote function, or of an actor's method."""

    target: Function | Method | None
    """None: an actor's creation, or the rebuild of another task. It is recorded for what it `needs`."""
    args: Sequence[Any]
    kwargs: dict[str, Any]
    options: dict[str, Any]
    outputs: int
    depth: int = 1
    bytes: int = TASK_BYTES
    refused: CannotRunAgain | None = None
    """Why it cannot run again, if so."""
    retries: int = 0
    """How often each of its large values may be rebuilt; below 0: always."""
    pinned: Sequence[ray.ObjectRef | ActorHandle] = ()
    """Arguments that no task rebuilds. As in Ray, they stay if the task `is_large`."""
    taken_back: Sequence[ray.ObjectRef] = ()
    """Rebuilds that do not count."""
    parent: ray.TaskID | None = None
    """The task, or driver, that has called it."""
    needs: Sequence[str] = ()
    """The tasks (ids in hex) whose results are among its arguments."""
    is_large: bool | None = None
    """Whether its results may be lost: they are large, or hold handles. None: not known yet."""
    again: dict[int, list[ray.ObjectRef]] | None = None
    """The calls that have rebuilt each part. None: nothing was rebuilt.

    The calls hold all its new guards: when an earlier guard goes, its node actor deletes the object, also one
    that a later call has made.
    """

    def refusal(self, part: int) -> CannotRunAgain | None:
        """Why this large value may not be rebuilt, if so.

        Values are reported one by one, as consumers come to wait for them. So one loss may take as many runs
        as there are values, and `max_retries` counts for each value.
        """
        if self.refused is None and 0 <= self.retries <= self._times_made(part):
            return CannotRunAgain(
                "its task has run as often as max_retries allows",
                "OBJECT_UNRECONSTRUCTABLE_MAX_ATTEMPTS_EXCEEDED",
            )
        return self.refused

    def can_use(self, lender: Lender) -> bool:
        """Whether it needs, besides CPUs, only resources that `lender` holds."""
        return isinstance(self.target, Function) and lent_options(self.options, lender) is not None

    def run_again(self, parts: Parts, lender: Lender | None, remake: Remake) -> Rerun:
        """Rebuild `parts`. Raises `CannotRunAgain`.

        `lender`: runs on the resources that it holds, and that the task `can_use`. `remake`: gives arguments
        that have gone.
        """
        for part in parts:
            # Checked before arguments that have gone are rebuilt in vain.
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
        """Do not count the call: as far as is known, it has made nothing. Values that it may still make
        stay."""
        self.taken_back = [*self.taken_back, call]
        self.again = {
            part: [other for other in calls if other != call] for part, calls in (self.again or {}).items()
        }

    def next_attempt(self, part: int) -> str:
        """A description of the next rebuild of this large value."""
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
        # The arguments are read before `refused`. `_refuse` writes in the other order, on another thread or
        # while arguments are restored.
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
