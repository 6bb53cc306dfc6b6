"""What this process knows of the tasks it has called, so that one can make lost results again.

Ray itself runs a task again when a result has died, but only one that lies in its object store; handles
lie in messages. So the caller of a task notes function, arguments and options for as long as any of its
results is referred to (as Ray does), and when an object is reported lost, calls the function again, in a
task that puts what is missing under the same ids. Whoever waits for them gets them.
"""

from __future__ import annotations

import collections
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import ray
from ray._private.worker import global_worker
from ray.remote_function import RemoteFunction

from hoplite.ids import ObjectId
from hoplite.ray import connection
from hoplite.ray.arguments import CannotRunAgain, Reference, kept, revived
from hoplite.ray.forms import sent
from hoplite.ray.lifetime import id_of_hex
from hoplite.ray.names import MADE_AGAIN, keeper_of
from hoplite.ray.origins import parts_of
from hoplite.ray.packing import Packed

__all__ = ["Task", "drop_ended", "forget_all", "known", "record"]

DEPTH_MAX = 100
"""Tasks in a row, each an argument's of the next, that are remembered when their results have gone."""

INDEX_BYTES = 4
"""At the end of a reference's id; before them is the task's."""

GUARDS_TIMEOUT = 30.0
"""Seconds to wait for guards from the keeper of the node where a task runs again."""


@dataclass(slots=True, eq=False)
class Task:
    """A call of a remote function."""

    function: RemoteFunction
    args: list[Any]
    kwargs: dict[str, Any]
    options: dict[str, Any]
    outputs: int
    depth: int
    in_scope: int
    again: dict[int, ray.ObjectRef] = field(default_factory=dict)
    """By part, the call that made it again: that holds its new guard."""

    def run_again(self, parts: dict[int, str]) -> ray.ObjectRef:
        """Make `parts` (their guards in hex) again; the call that does. Raises `CannotRunAgain`."""
        args, kwargs = self._arguments()
        options = {**self.options, "num_returns": 1}
        call = _AGAIN._remote(
            args=[self.function._function, self.outputs, parts, *args], kwargs=kwargs, **options
        )
        self.again.update(dict.fromkeys(parts, call))
        return call

    def results(self) -> list[ray.ObjectRef]:
        """Those of another call like this one. Raises `CannotRunAgain`."""
        args, kwargs = self._arguments()
        return _listed(self.function._remote(args=args, kwargs=kwargs, **self.options))

    def _arguments(self) -> tuple[list[Any], dict[str, Any]]:
        return [revived(value, _remade) for value in self.args], {
            name: revived(value, _remade) for name, value in self.kwargs.items()
        }


_tasks: dict[bytes, Task] = {}
_ended: collections.deque[bytes] = collections.deque()


def record(function: RemoteFunction, args: Any, kwargs: Any, options: dict[str, Any], results: Any) -> None:
    """Remember a call, if it can be made again, as long as its `results` are referred to."""
    references = _listed(results)
    retries = options.get("max_retries")
    if not references or retries == 0 or function is _AGAIN or _task_of(references[0].binary()) in _tasks:
        return
    tasks: list[Task] = []

    def reference(of: ray.ObjectRef) -> Reference:
        task = _tasks.get(_task_of(of.binary()))
        if task is not None and task.depth == DEPTH_MAX:
            task = None
        if task is not None:
            tasks.append(task)
        return Reference(of.binary(), task)

    try:
        kept_args = [kept(value, reference) for value in args or ()]
        kept_kwargs = {name: kept(value, reference) for name, value in (kwargs or {}).items()}
    except Exception:
        # Too large, or not to be pickled like this: the caller has heard from Ray what it needs to hear.
        return
    depth = 1 + max((task.depth for task in tasks), default=0)
    count = len(references)
    task = Task(function, kept_args, kept_kwargs, options, count, depth, count)
    _tasks[_task_of(references[0].binary())] = task
    for reference in references:
        # Called on a thread of Ray's that must not be held up.
        global_worker.core_worker.add_object_out_of_scope_callback(reference, _ended.append)


def known(task: str) -> Task | None:
    """The task with this id (in hex), if this process has called it and can call it again."""
    return _tasks.get(bytes.fromhex(task))


def drop_ended() -> None:
    """Forget tasks whose results nobody refers to any more."""
    while _ended:
        id = _task_of(_ended.popleft())
        task = _tasks.get(id)
        if task is not None:
            task.in_scope -= 1
            if task.in_scope == 0:
                # Later tasks may know of it still; its results' new guards end here.
                task.again.clear()
                del _tasks[id]


def forget_all() -> None:
    """Those of a Ray cluster that this process has left."""
    _tasks.clear()
    _ended.clear()


def _again(
    function: Callable[..., Any], outputs: int, parts: dict[int, str], *args: Any, **kwargs: Any
) -> list[ray.ObjectRef]:
    """In a task: call `function` and put `parts` of what it returns; their new guards."""
    result = function(*args, **kwargs)
    found = parts_of([Packed(output) for output in (result if outputs > 1 else [result])])
    keeper = keeper_of(ray.get_runtime_context().get_node_id(), GUARDS_TIMEOUT)
    request = keeper.guards_of.options(**MADE_AGAIN).remote(list(parts.values()))
    guards: list[ray.ObjectRef] = ray.get(request, timeout=GUARDS_TIMEOUT)
    for part, guard in parts.items():
        value, form = found[part]
        _put(sent(value, form), id_of_hex(guard))
    return guards


def _put(value: Any, id: ObjectId) -> None:
    connection.call(lambda way: way.client.put(value, id))


_AGAIN = ray.remote(_again)


def _remade(reference: Reference) -> ray.ObjectRef:
    if reference.task is None:
        raise CannotRunAgain(f"the argument {reference.binary.hex()} is gone, and no task can make it")
    index = int.from_bytes(reference.binary[-INDEX_BYTES:], "little")
    made: ray.ObjectRef = reference.task.results()[index - 1]
    return made


def _task_of(reference: bytes) -> bytes:
    return reference[:-INDEX_BYTES]


def _listed(results: Any) -> list[ray.ObjectRef]:
    """None of a generator's, which come one by one."""
    if isinstance(results, ray.ObjectRef):
        return [results]
    return list(results) if isinstance(results, list) else []
