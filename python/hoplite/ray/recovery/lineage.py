"""The table of the tasks that this process has called and can run again to rebuild lost results.

Ray runs a task again only for results in its object store, and handles lie in messages. So the caller records
function, arguments and options while any result is referred to. Most tasks have nothing large, so recording
costs little. Records are dropped by a look now and then: a callback of Ray's would take Python's lock for
each task.
"""

from __future__ import annotations

import collections
import threading
import time
from collections.abc import Iterable
from typing import Any

import ray
from ray._private.worker import global_worker
from ray.actor import ActorHandle

from hoplite.ray.recovery.arguments import ArgumentSaver, CannotRunAgain, Reference, reference_counts
from hoplite.ray.recovery.calls import Function, Method, Parts
from hoplite.ray.recovery.reference_ids import index_of, is_of_actor, is_put, task_id_of, task_of
from hoplite.ray.recovery.resource_lending import Lender
from hoplite.ray.recovery.task_record import TASK_BYTES, TaskRecord, tasks_among
from hoplite.ray.settings import LINEAGE_BYTES_MAX, LineageSettings
from hoplite.ray.values.pickled_names import HANDLES_MARK

__all__ = [
    "depth",
    "drop_ended",
    "drop_remade",
    "forget_all",
    "known",
    "knows_any",
    "limit",
    "needed_for",
    "record",
    "record_actor",
    "remade",
    "results",
    "run_again",
    "takes_results",
]

DEPTH_MAX = 100
"""Most tasks in a chain, each an argument of the next, that stay recorded after their results have gone."""

REMADE_MAX = 64
"""Tasks whose results are kept while others are rebuilt, which may take the same results as arguments."""

LOOKS_SHARE = 0.01
"""Share of a processor's time that looks at Ray's references may take. With many references, looks are
rare."""

MESSAGE_BYTES_MAX = 100 << 10
"""Most bytes of a result that Ray sends in a message. Larger results lie in its object store."""


class _TaskTable:
    """The recorded tasks by their ids in hex, the oldest first."""

    def __init__(self) -> None:
        self.by_id: collections.OrderedDict[str, TaskRecord] = collections.OrderedDict()
        self.is_enabled = True
        self.remade: dict[bytes, list[ray.ObjectRef]] = {}
        """Results of tasks that were called again to get arguments of a rebuild, by the id of the first
        call's task."""
        self._bytes_max = LINEAGE_BYTES_MAX
        self._bytes = 0
        self._next_look = 0.0
        # Reentrant: under it, the garbage collector may free objects whose ends call tasks.
        self._lock = threading.RLock()

    def add(self, id: str, task: TaskRecord) -> None:
        with self._lock:
            self.by_id[id] = task
            self._bytes += task.bytes
            if self._bytes > self._bytes_max:
                self._make_room()

    def add_needs(self, id: str, needs: list[str]) -> None:
        """Record what a call `needs`, though nobody refers to its results."""
        refused = CannotRunAgain("it makes no result")
        parent = global_worker.current_task_id
        if needs and id not in self.by_id:
            self.add(id, TaskRecord(None, (), {}, {}, 0, refused=refused, parent=parent, needs=needs))

    def limit(self, settings: LineageSettings) -> None:
        with self._lock:
            self.is_enabled, self._bytes_max = settings
            if not self.is_enabled:
                for id in list(self.by_id):
                    self._refuse(id, _disabled())
            self._make_room()

    def _make_room(self) -> None:
        for _ in range(len(self.by_id)):
            if self._bytes <= self._bytes_max:
                break
            oldest = next(iter(self.by_id))
            if self.by_id[oldest].again:
                # The record holds guards of rebuilt values.
                self.by_id.move_to_end(oldest)
            else:
                self._refuse(
                    oldest,
                    CannotRunAgain(
                        f"more than {self._bytes_max} bytes of tasks were to be remembered",
                        "OBJECT_UNRECONSTRUCTABLE_LINEAGE_EVICTED",
                    ),
                )

    def drop_ended(self) -> None:
        """Drop the records of all tasks without references, unless the last look was too recent."""
        if not self.by_id or time.monotonic() < self._next_look:
            return
        before = time.thread_time()
        # The tasks are listed before the references: a task that is added now has references to its results
        # already.
        with self._lock:
            known = list(self.by_id)
        references = [reference.decode() for reference in reference_counts()]
        counted = {task_of(reference) for reference in references}
        # The record of an actor's creation is of no use once the actor has begun, even if somebody refers to
        # it.
        ended = [id for id in known if id not in counted or self._begins(id)]
        needed = self._needed_still() if ended else set()
        for id in ended:
            if id not in needed:
                self._forget(id)
        self._unpin_arguments(references)
        self._next_look = time.monotonic() + (time.thread_time() - before) / LOOKS_SHARE

    def _begins(self, id: str) -> bool:
        task = self.by_id.get(id)
        return task is not None and task.target is None

    def _needed_still(self) -> set[str]:
        """Pending tasks, though nobody refers to their results, and the tasks whose results they take.

        Small results, and so handles, are copied into a call. Ray does not count them any more, and may
        repeat the call.
        """
        pending = self._pending()
        return pending | self._taken_by(pending)

    def needed_for(self, ids: Iterable[str]) -> set[str]:
        needed = self._pending().union(ids)
        new = needed
        while new:
            new = self._taken_by(new) - needed
            needed |= new
        return needed

    def _pending(self) -> set[str]:
        with self._lock:
            parents = {task.parent for task in self.by_id.values() if task.parent is not None}
        of_parent = global_worker.core_worker.get_pending_children_task_ids
        return {id.hex() for parent in parents for id in of_parent(parent)}

    def _taken_by(self, ids: Iterable[str]) -> set[str]:
        return {need for id in ids if (task := self.by_id.get(id)) is not None for need in task.needs}

    def _unpin_arguments(self, references: list[str]) -> None:
        """Unpin the arguments of finished tasks that returned nothing large: nobody will ask for a
        rebuild."""
        results: dict[str, list[ray.ObjectRef]] = {}
        for reference in references:
            task = self.by_id.get(task_of(reference))
            if task is not None and task.pinned and task.is_large is None:
                result = bytes.fromhex(reference)
                if not is_put(result):
                    results.setdefault(task_of(reference), []).append(ray.ObjectRef(result))
        if not results:
            return
        waiting = [result for of_task in results.values() for result in of_task]
        ready, _ = ray.wait(waiting, num_returns=len(waiting), timeout=0, fetch_local=False)
        ended = set(ready)
        for id, of_task in results.items():
            task = self.by_id.get(id)
            if task is not None and len(of_task) >= task.outputs and ended.issuperset(of_task):
                task.is_large = _are_large(of_task)
                if not task.is_large:
                    task.pinned = ()

    def results(self) -> list[ray.ObjectRef]:
        counts = reference_counts()
        counted = [reference.decode() for reference, count in counts.items() if any(count.values())]
        # Arguments come first, as they must be rebuilt first.
        counted.sort(key=lambda reference: depth(task_of(reference)))
        waiting = [
            ray.ObjectRef(bytes.fromhex(reference)) for reference in counted if self._may_be_lost(reference)
        ]
        # If this process has left Ray meanwhile, `ray.wait` would connect again.
        if not waiting or not global_worker.connected:
            return []
        ready: list[ray.ObjectRef]
        ready, _ = ray.wait(waiting, num_returns=len(waiting), timeout=0, fetch_local=False)
        return ready

    def _may_be_lost(self, reference: str) -> bool:
        task = self.by_id.get(task_of(reference))
        may_run = task is not None and task.refused is None and task.is_large is not False
        return may_run and not is_put(bytes.fromhex(reference))

    def _refuse(self, id: str, why: CannotRunAgain) -> None:
        """Reduce a record to the reason why its task is not run again."""
        task = self.by_id[id]
        self.by_id.move_to_end(id)
        self._bytes -= task.bytes
        # Set first: the task must never run with arguments that are not its own.
        task.refused = why
        task.args, task.kwargs, task.bytes, task.pinned = (), {}, 0, ()

    def _forget(self, id: str) -> None:
        with self._lock:
            task = self.by_id.pop(id, None)
            if task is not None:
                self._bytes -= task.bytes
                # Records of later tasks may still refer to this one, to rebuild their arguments. The new
                # guards of its own results end here.
                task.again, task.taken_back = None, ()
                if task.is_large is False:
                    task.pinned = ()


_table = _TaskTable()


def record(
    target: Function | Method, retries: int, args: Any, kwargs: Any, options: dict[str, Any], results: Any
) -> None:
    """Record a call for as long as its `results` are referred to.

    `retries`: how often Ray would repeat it; below 0: always.
    """
    if isinstance(results, ray.ObjectRef):
        first, count = results, 1
    elif isinstance(results, list) and results:
        first, count = results[0], len(results)
    elif isinstance(results, ray.ObjectRefGenerator):
        # The references that it yields are of the same task. The first reference is no result.
        first, count = results._generator_ref, 0
    else:
        return
    id = task_of(first.hex())
    if id not in _table.by_id:
        _table.add(id, _noted(target, retries, args, kwargs, options, count))


def takes_results(args: Any, kwargs: Any) -> bool:
    """Whether a call takes results of other calls."""
    return any(isinstance(value, ray.ObjectRef) for value in (*(args or ()), *(kwargs or {}).values()))


def record_actor(actor: ActorHandle, args: Any, kwargs: Any) -> None:
    """Record what an actor's creation needs, until the actor has begun."""
    id = ray.TaskID.for_actor_creation_task(actor._actor_id).hex()
    _table.add_needs(id, tasks_among(args, kwargs))


def _noted(
    target: Function | Method, retries: int, args: Any, kwargs: Any, options: dict[str, Any], outputs: int
) -> TaskRecord:
    parent = global_worker.current_task_id
    if retries == 0:
        not_retried = CannotRunAgain(
            "its task is not to be retried", "OBJECT_UNRECONSTRUCTABLE_RETRIES_DISABLED"
        )
        taken = tasks_among(args, kwargs)
        return TaskRecord(target, (), {}, options, outputs, refused=not_retried, parent=parent, needs=taken)
    if not _table.is_enabled:
        return TaskRecord(target, (), {}, options, outputs, refused=_disabled(), parent=parent)
    if not args and not kwargs:
        return TaskRecord(target, (), {}, options, outputs, retries=retries, parent=parent)
    tasks: list[TaskRecord] = []
    needs: list[str] = []
    pinned: list[ray.ObjectRef | ActorHandle] = []

    def reference(of: ray.ObjectRef) -> Reference:
        task = _table.by_id.get(task_of(of.hex()))
        if _is_made_once(of.binary(), task):
            pinned.append(of)
        if task is not None:
            needs.append(task_of(of.hex()))
            if task.depth == DEPTH_MAX:
                task = _too_deep(task)
            tasks.append(task)
        return Reference(of.binary(), task)

    saver = ArgumentSaver(reference, pinned.append)
    try:
        saved_args = [saver.saved(value) for value in args] if args else ()
        saved_kwargs = {name: saver.saved(value) for name, value in kwargs.items()} if kwargs else {}
    except Exception as error:
        # An argument is too large, or cannot be pickled like this. Ray has told the caller what it must know.
        refused, taken = CannotRunAgain(str(error)), tasks_among(args, kwargs)
        return TaskRecord(target, (), {}, options, outputs, refused=refused, parent=parent, needs=taken)
    depth = 1 + max(task.depth for task in tasks) if tasks else 1
    return TaskRecord(
        target,
        saved_args,
        saved_kwargs,
        options,
        outputs,
        depth,
        TASK_BYTES + saver.bytes,
        retries=retries,
        pinned=pinned,
        needs=needs,
        parent=parent,
    )


def _too_deep(task: TaskRecord) -> TaskRecord:
    """The record that replaces one at the end of a too long chain."""
    forgotten = CannotRunAgain(
        f"more than {DEPTH_MAX} tasks in a row were to be remembered",
        "OBJECT_UNRECONSTRUCTABLE_LINEAGE_EVICTED",
    )
    return TaskRecord(task.target, (), {}, {}, task.outputs, refused=forgotten)


def _disabled() -> CannotRunAgain:
    return CannotRunAgain(
        "lineage_pinning_enabled is false on this Ray cluster", "OBJECT_UNRECONSTRUCTABLE_LINEAGE_DISABLED"
    )


def known(task: str) -> TaskRecord | None:
    """The record of the task with this id (in hex), if this process has called it."""
    return _table.by_id.get(task)


def depth(task: str) -> int:
    """The length of the longest chain of recorded tasks up to this one (id in hex). 0: the task is not
    known."""
    found = _table.by_id.get(task)
    return 0 if found is None else found.depth


def knows_any() -> bool:
    """Whether this process has recorded tasks."""
    return bool(_table.by_id)


def results() -> list[ray.ObjectRef]:
    """References that this process has to results that are ready and may be lost, of tasks that may run
    again."""
    return _table.results()


def needed_for(tasks: Iterable[str]) -> set[str]:
    """The ids (in hex) of these tasks, all pending tasks, and all tasks whose results those need, even
    indirectly."""
    return _table.needed_for(tasks)


def drop_ended() -> None:
    """Forget the tasks whose results nobody refers to any more. Call it often: most calls do nothing."""
    _table.drop_ended()


def limit(settings: LineageSettings) -> None:
    """Record no more than the Ray cluster that this process is connected to would."""
    _table.limit(settings)


def forget_all() -> None:
    """Forget all tasks, which were of a Ray cluster that this process has left."""
    global _table
    _table = _TaskTable()


def drop_remade() -> None:
    """Drop the results that were made again as arguments. Called when no rebuild is in progress."""
    _table.remade.clear()


def run_again(task: TaskRecord, parts: Parts, lender: Lender | None = None) -> ray.ObjectRef:
    """Rebuild `parts`. Returns the call that does. Raises `CannotRunAgain`.

    `lender`: runs on the resources that it holds, and that the task `can_use`.
    """
    rerun = task.run_again(parts, lender, remade)
    if rerun.takes:
        _table.add_needs(task_of(rerun.call.hex()), rerun.takes)
    return rerun.call


def remade(reference: Reference) -> ray.ObjectRef:
    if reference.task is None:
        raise CannotRunAgain(f"the argument {reference.binary.hex()} is gone, and no task can make it")
    index = index_of(reference.binary)
    # Items of a generator have higher indices than its results.
    if index > reference.task.outputs:
        raise CannotRunAgain(f"the argument {reference.binary.hex()} was yielded, and is gone")
    task = task_id_of(reference.binary)
    if (made := _table.remade.get(task)) is None:
        made = _table.remade[task] = reference.task.call_again(remade)
        if len(_table.remade) > REMADE_MAX:
            del _table.remade[next(iter(_table.remade))]
    return made[index - 1]


def _is_made_once(reference: bytes, task: TaskRecord | None) -> bool:
    """Whether no task can rebuild it: it was put, or its task is not retried."""
    if is_put(reference):
        return True
    return task.retries == 0 if task is not None else is_of_actor(reference)


def _are_large(results: list[ray.ObjectRef]) -> bool:
    """Whether some of these ready results lie outside this process's memory, or hold handles."""
    try:
        found = global_worker.core_worker.get_objects(results, 0)
    except ray.exceptions.GetTimeoutError:
        return True
    return any(data is not None and _is_large(memoryview(data)) for data, *_ in found)


def _is_large(data: memoryview) -> bool:
    return data.nbytes > MESSAGE_BYTES_MAX or HANDLES_MARK in bytes(data)
