"""Rebuilds lost objects, in the process that called their task."""

from __future__ import annotations

import atexit
import itertools
import logging
import os
import threading
import time
from typing import Any, NamedTuple

import ray
from ray._private import worker
from ray._private.ray_constants import DEFAULT_TASK_MAX_RETRIES
from ray._private.worker import global_worker
from ray.actor import ActorHandle
from ray.remote_function import RemoteFunction

from hoplite.errors import HopliteError
from hoplite.ids import ObjectId
from hoplite.ray.errors import pickled
from hoplite.ray.nodes import connection
from hoplite.ray.nodes.guards import id_of_hex
from hoplite.ray.recovery import lineage
from hoplite.ray.recovery.arguments import Actor, CannotRunAgain
from hoplite.ray.recovery.calls import Function, Method, Part, is_rebuild
from hoplite.ray.recovery.loss_reports import (
    Guard,
    Loss,
    claim,
    last_guard,
    lender_for,
    open_losses,
    record_error,
    record_guard,
    record_lending,
    record_reason,
    report,
    settle,
)
from hoplite.ray.recovery.node_deaths import NodeDeaths
from hoplite.ray.recovery.resource_lending import Lender
from hoplite.ray.recovery.task_record import TaskRecord
from hoplite.ray.settings import PACKAGE_PREFIX, lineage_settings
from hoplite.timeouts import Deadline

__all__ = ["Recorded", "give_up", "record", "record_actor", "record_method", "stop"]

logger = logging.getLogger(__name__)

LOOK_INTERVAL = 1.0
"""Seconds between two reads of the loss reports."""

WATCH_INTERVAL = 0.25
"""Seconds between two looks at the nodes, and between two reads of the reports when a node has gone."""

BUSY_INTERVAL = 0.1
"""Seconds between two of either while something is rebuilt: its arguments may be lost too."""

LOCATE_TIMEOUT = 1.0
"""Seconds to ask whether any node has the objects that would be given up, all together."""

RETRIES_VARIABLE = "RAY_TASK_MAX_RETRIES"
"""Ray's variable: how often tasks are retried that do not say it themselves."""

CLAIM_INTERVAL = 3.0
"""Most seconds between two claims, however much is to be rebuilt. Other processes give up unclaimed
losses."""

MISSED_AT_ONCE = 64
"""Most open losses in the cluster at which losses are reported that nobody waits for. Each report is read
again and again by all processes that have called tasks."""

DELETE_TIMEOUT = 5.0
"""Seconds for a deletion. The end of this process waits for it. Consumers that still wait report it again."""


class _Rebuild(NamedTuple):
    """A call that rebuilds lost objects of one task."""

    lost: list[Loss]
    lender: Lender | None
    """The task on whose resources it runs."""
    guards_before: list[Guard | None]
    """The objects' last guards before the call. Newer guards show that the call has begun."""


class _Rebuilder:
    """The recovery thread of a process that calls tasks. It ends with the connection to Ray."""

    def __init__(self) -> None:
        self.node = worker._global_node
        """Ray's object for this connection. Each connection has a new one, though its worker id may be the
        same."""
        self._name = global_worker.worker_id.hex()
        self._claims = 0
        self._next_look = 0.0
        self._node_deaths = NodeDeaths()
        self._reported: set[Loss] = set()
        """All losses at the last look, of all processes."""
        self._unwanted: set[Loss] = set()
        """Losses that only this process has reported."""
        self._rebuilds: dict[ray.ObjectRef, _Rebuild] = {}
        self._failed_lenders: set[tuple[str, str]] = set()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="hoplite-recovery", daemon=True)
        self._thread.start()
        # `atexit` calls in reverse order: this thread ends before Ray, which has registered earlier.
        atexit.register(self.stop)

    def stop(self) -> None:
        """Stop looking."""
        atexit.unregister(self.stop)
        self._stopping.set()
        self._thread.join()

    def _run(self) -> None:
        try:
            lineage.limit(lineage_settings())
        except Exception:
            logger.exception("Ray does not say how it remembers tasks: as by default")
        while not self._stopping.wait(BUSY_INTERVAL if self._rebuilds else WATCH_INTERVAL):
            if not global_worker.connected or worker._global_node is not self.node:
                return
            try:
                if self._is_time():
                    self._look()
            except Exception:
                if global_worker.connected and not self._stopping.is_set():
                    logger.exception("looking again in %s s", LOOK_INTERVAL)
                    self._stopping.wait(LOOK_INTERVAL)

    def _is_time(self) -> bool:
        if self._rebuilds or time.monotonic() >= self._next_look:
            return True
        return lineage.knows_any() and self._node_deaths.node_died_recently()

    def _look(self) -> None:
        self._next_look = time.monotonic() + LOOK_INTERVAL
        lineage.drop_ended()
        if lineage.knows_any():
            self._rebuild_reported()
        self._collect_finished()
        if lineage.knows_any() and self._report_missed():
            self._rebuild_reported()

    def _rebuild_reported(self) -> None:
        self._restart_on_lenders()
        making = {loss for making in self._rebuilds.values() for loss in making.lost}
        under_way: list[Loss] = []
        wanted: dict[str, list[Loss]] = {}
        hopeless: list[tuple[CannotRunAgain, list[Loss]]] = []
        words = open_losses()
        self._reported = set(words)
        self._unwanted = {loss for loss in self._unwanted & words.keys() if not words[loss].certain}
        for loss, word in words.items():
            task = lineage.known(loss.origin.task)
            if task is None:
                continue
            if loss in making:
                under_way.append(loss)
            elif (refusal := task.refusal(loss.origin.part)) is not None:
                # Giving up deletes the object. If it may only be cut off, the supervisor gives it up later.
                if word.certain:
                    hopeless.append((refusal, [loss]))
                else:
                    record_reason(id_of_hex(loss.guard), refusal.kind, str(refusal))
            else:
                wanted.setdefault(loss.origin.task, []).append(loss)
        claimed = self._claim(under_way, wanted)
        # Arguments first: a task that waits for one takes the place of the task that rebuilds it.
        for name in sorted(wanted, key=lineage.depth):
            if time.monotonic() > claimed + CLAIM_INTERVAL:
                claimed = self._claim(under_way, wanted)
            lost = wanted.pop(name)
            if (task := lineage.known(name)) is not None:
                logger.warning(
                    "%d values of %s are lost: %s", len(lost), name, task.next_attempt(lost[0].origin.part)
                )
                if self._run_again(task, lost, self._lender(task, lost)):
                    under_way += lost
        # Last, so that a deletion without an answer delays no claim.
        for refusal, lost in hopeless:
            _give_up_as(refusal, lost)

    def _report_missed(self) -> bool:
        """Report values that a dead node has taken and that nobody waits for. Returns whether there were
        any."""
        wanted = {loss.origin.task for loss in self._reported - self._unwanted}
        missed = self._node_deaths.lost_values(MISSED_AT_ONCE - len(self._reported), wanted)
        for loss in missed:
            self._unwanted.add(loss)
            report(loss, certain=False)
        return bool(missed)

    def _claim(self, under_way: list[Loss], wanted: dict[str, list[Loss]]) -> float:
        """Claim these losses so that nobody gives them up. Returns the time (`time.monotonic`)."""
        self._claims += 1
        for loss in itertools.chain(under_way, *wanted.values()):
            claim(loss, self._name, self._claims)
        return time.monotonic()

    def _run_again(self, task: TaskRecord, lost: list[Loss], lender: Lender | None) -> bool:
        """Returns whether the task runs again. If not, the losses are given up."""
        guards_before = [last_guard(loss.guard) for loss in lost]
        parts = {loss.origin.part: Part(loss.guard, loss.origin.spec) for loss in lost}
        try:
            call = lineage.run_again(task, parts, lender)
            if lender is not None:
                record_lending(call.task_id().hex(), lender)
        except Exception as error:
            self._give_up(error, lost)
            return False
        self._rebuilds[call] = _Rebuild(lost, lender, guards_before)
        return True

    def _restart_on_lenders(self) -> None:
        """Start calls again on a lender's resources: they may be waiting for what the lender holds."""
        for call, (lost, before, guards_before) in list(self._rebuilds.items()):
            task = lineage.known(lost[0].origin.task)
            if before is not None or task is None or (lender := self._lender(task, lost)) is None:
                continue
            if last_guard(lost[0].guard) == guards_before[0]:
                del self._rebuilds[call]
                # The cancellation also ends a call that begins just now. Otherwise both would make the same
                # objects.
                ray.cancel(call, recursive=False)
                task.take_back(call)
                self._run_again(task, lost, lender)

    def _lender(self, task: TaskRecord, lost: list[Loss]) -> Lender | None:
        """A task that holds the resources `task` needs, and waits for one of these losses."""
        for loss in lost:
            lender = lender_for(loss)
            if lender is not None and task.can_use(lender) and _place(lender) not in self._failed_lenders:
                return lender
        return None

    def _collect_finished(self) -> None:
        calls = list(self._rebuilds)
        if not calls:
            self._failed_lenders.clear()
            lineage.drop_remade()
            return
        done, _ = ray.wait(calls, num_returns=len(calls), timeout=0, fetch_local=False)
        for call in done:
            lost, lender, guards_before = self._rebuilds.pop(call)
            try:
                made = ray.get(call)
            except Exception as error:
                made = error
            if not isinstance(made, Exception):
                for loss in lost:
                    settle(loss)
                continue
            # The guards of the failed call belong to nobody.
            for loss, guard in zip(lost, guards_before, strict=True):
                record_guard(guard, instead_of=loss.guard)
            if lender is not None and _could_not_begin(made):
                self._failed_lenders.add(_place(lender))
                # The next look starts another call.
                if (task := lineage.known(lost[0].origin.task)) is not None:
                    task.take_back(call)
            else:
                # As on Ray, the error of the repeated run is the result.
                raised = pickled(made) if isinstance(made, ray.exceptions.RayError) else None
                self._give_up(made, lost, raised)

    def _give_up(self, error: Exception, lost: list[Loss], raised: bytes | None = None) -> None:
        _give_up_as(error, [loss for loss in lost if loss not in self._unwanted], raised)
        for loss in lost:
            # An unwanted value may be on a node that is silent for a while, so it is not deleted. A later
            # consumer reports it, and gets the reason recorded here if it cannot be rebuilt.
            if loss in self._unwanted:
                _record_reason(id_of_hex(loss.guard), error, raised)
                settle(loss)


def _could_not_begin(error: Exception) -> bool:
    """Whether the call found no node, and the function itself has not raised the same error."""
    unschedulable = isinstance(error, ray.exceptions.TaskUnschedulableError)
    return unschedulable and not isinstance(error, ray.exceptions.RayTaskError)


def _place(lender: Lender) -> tuple[str, str]:
    return lender.task, lender.node


_lock = threading.Lock()
_rebuilder: _Rebuilder | None = None


class Recorded(RemoteFunction):  # type: ignore[misc]
    """A remote function whose results can be rebuilt."""

    def _remote(self, args: Any = None, kwargs: Any = None, **options: Any) -> Any:
        results = super()._remote(args, kwargs, **options)
        record(self, args, kwargs, options, results)
        return results


def record(function: RemoteFunction, args: Any, kwargs: Any, options: dict[str, Any], results: Any) -> None:
    """Record a call of `function`, so that its results can be rebuilt."""
    if is_rebuild(function):
        return
    retries = options.get("max_retries")
    if retries is None:
        retries = int(os.environ.get(RETRIES_VARIABLE, DEFAULT_TASK_MAX_RETRIES))
    _start()
    lineage.record(Function(function), retries, args, kwargs, options, results)


def record_method(
    actor: ActorHandle, name: str, args: Any, kwargs: Any, options: dict[str, Any], results: Any
) -> None:
    """Record a call of an actor's method. Without retries, its result is not rebuilt."""
    retries = options.get("max_task_retries") or 0
    if (retries or lineage.takes_results(args, kwargs)) and not _is_ours(actor):
        _start()
        method = Method(Actor(actor._actor_id), name)
        lineage.record(method, retries, args or [], kwargs or {}, options, results)


def _is_ours(actor: ActorHandle) -> bool:
    """Whether it is a node actor or the supervisor. Their results are never rebuilt."""
    return str(actor._ray_actor_creation_function_descriptor.module_name).startswith(PACKAGE_PREFIX)


def record_actor(actor: ActorHandle, args: Any, kwargs: Any) -> None:
    """Record the arguments of an actor's creation."""
    if lineage.takes_results(args, kwargs):
        _start()
        lineage.record_actor(actor, args, kwargs)


def _start() -> None:
    """Start the thread, once for each connection to Ray."""
    global _rebuilder
    if _rebuilder is None or _rebuilder.node is not worker._global_node:
        with _lock:
            if _rebuilder is None or _rebuilder.node is not worker._global_node:
                lineage.forget_all()
                _rebuilder = _Rebuilder()


def stop() -> None:
    """Stop the thread before this process leaves Ray. Its tasks' results then belong to nobody."""
    global _rebuilder
    with _lock:
        if _rebuilder is not None:
            _rebuilder.stop()
            _rebuilder = None
        lineage.forget_all()


def _record_reason(id: ObjectId, error: Exception, raised: bytes | None) -> None:
    if raised is None:
        record_reason(id, error.kind if isinstance(error, CannotRunAgain) else "OBJECT_LOST", str(error))
    else:
        record_error(id, raised)


def _give_up_as(error: Exception, lost: list[Loss], raised: bytes | None = None) -> None:
    """Give up losses that nobody can rebuild. Deleting the objects tells all that wait for them.

    `raised`: a pickled error that is their value now.

    Objects that some node has after all stay: the report may be late, or from a node that was cut off for a
    while.
    """
    lost = _still_lost(lost)
    if not lost:
        return
    logger.warning("%d objects are lost for good: %s", len(lost), error)
    ids = [id_of_hex(loss.guard) for loss in lost]
    for id in ids:
        _record_reason(id, error, raised)
    connection.call(lambda conn: conn.client.delete(ids, timeout=DELETE_TIMEOUT))
    for loss in lost:
        settle(loss)


def give_up(lost: list[Loss], reason: str, kind: str = "OBJECT_LOST") -> None:
    """Give up losses for a `reason`. The supervisor calls it.

    `kind`: the name of the member of Ray's `ErrorType` that fits the `reason` best.
    """
    _give_up_as(CannotRunAgain(reason, kind), lost)


def _still_lost(lost: list[Loss]) -> list[Loss]:
    """The losses that no node has. The reports of the others are removed."""
    deadline = Deadline(LOCATE_TIMEOUT)
    gone = []
    for loss in lost:
        if _is_there(loss, deadline):
            logger.info("%s of task %s is there after all", loss.guard, loss.origin.task)
            settle(loss)
        else:
            gone.append(loss)
    return gone


def _is_there(loss: Loss, deadline: Deadline) -> bool:
    if deadline.is_over():
        return False
    id = id_of_hex(loss.guard)
    try:
        found = connection.call(lambda conn: conn.client.locations(id, timeout=deadline.left()), deadline)
    except HopliteError:
        # Deleted already, or unknown for now.
        return False
    return any(copy.complete for copy in found.copies)
