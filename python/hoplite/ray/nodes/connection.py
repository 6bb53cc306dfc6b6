"""A process's connection to the Hoplite node of its Ray node. All its threads share it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TypeVar

import ray
from ray._private import worker
from ray._private.worker import global_worker

from hoplite.client import Client, connect
from hoplite.errors import NodeUnreachable
from hoplite.ray.nodes.guard_pool import GuardPool
from hoplite.ray.nodes.lookup import require_connection, socket_of_node, supervisor
from hoplite.timeouts import Deadline

__all__ = ["Connection", "call", "disconnect", "expect", "here", "is_expected", "require", "this_process"]

Result = TypeVar("Result")

Process = tuple[str, bytes]
"""A process of a Ray cluster: the cluster's session and a worker id. All first drivers have the same worker
id."""

ATTACH_TIMEOUT = 30.0
"""Seconds to wait for the local node. On a Ray node that has just joined, it has only begun to start."""

RETRY_INTERVAL = 0.1
"""Seconds between two attempts to connect."""


FOR_EVER = Deadline(None)


class Connection:
    """A client of the local node, and a pool of guards for the puts of this process."""

    def __init__(self, process: Process, node_id: str, deadline: Deadline) -> None:
        """Called by `here` only. Raises `NodeUnreachable`."""
        self.process = process
        """This process in Ray when it connected. After `ray.shutdown`, Ray gives it another name."""
        self.client: Client = _connected(node_id, deadline.left_at_most(ATTACH_TIMEOUT))
        self.guards = GuardPool(node_id)

    def close(self) -> None:
        """Disconnect."""
        self.guards.close()
        self.client.close()


def _connected(node_id: str, timeout: float) -> Client:
    deadline = Deadline(timeout)
    while True:
        # When a node has died and was not restarted yet, its socket exists but nobody listens.
        why = f"Ray node {node_id} has none (has anybody called hoplite.ray.init on this cluster?)"
        socket = socket_of_node(node_id)
        if socket is not None:
            try:
                return connect(socket)
            except NodeUnreachable as error:
                why = str(error)
        if deadline.is_over():
            raise NodeUnreachable(f"no Hoplite node here within {timeout:.1f} s: {why}")
        time.sleep(RETRY_INTERVAL)


_lock = threading.Lock()
_here: Connection | None = None
_driver: Process | None = None
"""The driver that called `init`. None: no driver did in this process, which may be a worker."""


def this_process() -> Process:
    """Ray's session and worker id of this process, which must be connected to Ray."""
    return worker._global_node.session_name, global_worker.worker_id


def expect() -> None:
    """Note that Hoplite was started for this driver. That holds until the driver leaves Ray, by whatever
    call."""
    global _driver
    _driver = this_process()


def is_expected() -> bool:
    """Whether this process is still that driver, or a worker. It must be connected to Ray."""
    return _driver is None or _driver == this_process()


def require() -> None:
    """Raises `NodeUnreachable`, at once, if nobody has started Hoplite on this cluster."""
    if _here is None or not global_worker.connected or _here.process != this_process():
        supervisor()


def here(deadline: Deadline = FOR_EVER) -> Connection:
    """This process's connection. The first call makes it, until `deadline`. Raises `NodeUnreachable`."""
    global _here
    require_connection()
    found = _here
    if found is not None and found.process == this_process():
        return found
    with _lock:
        if _here is None or _here.process != this_process():
            _close()
            _here = Connection(this_process(), ray.get_runtime_context().get_node_id(), deadline)
        return _here


def call(use: Callable[[Connection], Result], deadline: Deadline = FOR_EVER) -> Result:
    """The result of `use`, given this process's connection, or a new one if the node was restarted since.

    A node that is being started is awaited until `deadline`, for `ATTACH_TIMEOUT` at most. Raises
    `NodeUnreachable`, and the errors of `use`.
    """
    connection = here(deadline)
    try:
        return use(connection)
    except NodeUnreachable:
        disconnect(connection)
    return use(here(deadline))


def disconnect(connection: Connection | None = None) -> None:
    """Close the connection, if it is this one. The next call of `here` connects anew."""
    with _lock:
        if connection is None or connection is _here:
            _close()


def _close() -> None:
    global _here
    if _here is not None:
        _here.close()
        _here = None
