"""The connection of a process to the Hoplite node of its Ray node, one for all its threads."""

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
"""A process of a Ray cluster: the cluster's session, and a worker id (first drivers have the same)."""

ATTACH_TIMEOUT = 30.0
"""Seconds to wait for this node, which on a Ray node that has just joined has only begun to start."""

RETRY_INTERVAL = 0.1
"""Seconds between two tries."""


FOR_EVER = Deadline(None)


class Connection:
    """A client of the node, and a stock of guards for what this process puts."""

    def __init__(self, process: Process, node_id: str, deadline: Deadline) -> None:
        """Use `here`. Raises `NodeUnreachable`."""
        self.process = process
        """What this one was to Ray when it connected; another one after `ray.shutdown`."""
        self.client: Client = _connected(node_id, deadline.left_at_most(ATTACH_TIMEOUT))
        self.guards = GuardPool(node_id)

    def close(self) -> None:
        """Disconnect."""
        self.guards.close()
        self.client.close()


def _connected(node_id: str, timeout: float) -> Client:
    deadline = Deadline(timeout)
    while True:
        # Of a node that has died and was not started anew yet, the socket is there, and nobody at it.
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
"""The driver that called `init`; None: nobody did in this process, which may be a worker."""


def this_process() -> Process:
    """What this process, which is connected to Ray, is to it."""
    return worker._global_node.session_name, global_worker.worker_id


def expect() -> None:
    """Hoplite was started for this driver, until it leaves Ray, with or without a word to Hoplite."""
    global _driver
    _driver = this_process()


def is_expected() -> bool:
    """Whether this process, which is connected to Ray, is that driver still, or a worker."""
    return _driver is None or _driver == this_process()


def require() -> None:
    """Raises `NodeUnreachable`, at once, where nobody has started Hoplite."""
    if _here is None or not global_worker.connected or _here.process != this_process():
        supervisor()


def here(deadline: Deadline = FOR_EVER) -> Connection:
    """This process's connection, made by its first call, until `deadline`. Raises `NodeUnreachable`."""
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
    """What `use` returns, given this process's connection, or a new one if the node was started anew since.

    Until `deadline` a node is waited for that is being started, `ATTACH_TIMEOUT` at most.
    Raises `NodeUnreachable`, and what `use` raises.
    """
    connection = here(deadline)
    try:
        return use(connection)
    except NodeUnreachable:
        disconnect(connection)
    return use(here(deadline))


def disconnect(connection: Connection | None = None) -> None:
    """Close the connection (only if it is this one): the next call of `here` finds the node anew."""
    with _lock:
        if connection is None or connection is _here:
            _close()


def _close() -> None:
    global _here
    if _here is not None:
        _here.close()
        _here = None
