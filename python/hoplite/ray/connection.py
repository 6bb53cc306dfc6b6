"""A process's way to the Hoplite node of its Ray node: found by itself, one for all its threads."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TypeVar

import ray
from ray._private.worker import global_worker

from hoplite.client import Client, connect
from hoplite.errors import NodeUnreachable
from hoplite.ray.names import socket_of_node
from hoplite.ray.stock import GuardStock
from hoplite.timeouts import Deadline

__all__ = ["Connection", "call", "disconnect", "here"]

Result = TypeVar("Result")

ATTACH_TIMEOUT = 30.0
"""Seconds to wait for this node, which on a Ray node that has just joined has only begun to start."""

RETRY_INTERVAL = 0.1
"""Seconds between two tries."""


class Connection:
    """A client of the node, and a stock of guards for what this process puts."""

    def __init__(self, worker_id: bytes, node_id: str) -> None:
        """Use `here`. Raises `NodeUnreachable`."""
        self.worker_id = worker_id
        """Of the Ray process that this one was when it connected; another one after `ray.shutdown`."""
        self.client: Client = _connected(node_id)
        self.guards = GuardStock(node_id)

    def close(self) -> None:
        """Disconnect."""
        self.guards.close()
        self.client.close()


def _connected(node_id: str) -> Client:
    deadline = Deadline(ATTACH_TIMEOUT)
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
            raise NodeUnreachable(f"no Hoplite node here within {ATTACH_TIMEOUT} s: {why}")
        time.sleep(RETRY_INTERVAL)


_lock = threading.Lock()
_here: Connection | None = None


def here() -> Connection:
    """This process's connection, made by its first call. Raises `NodeUnreachable`."""
    global _here
    found = _here
    if found is not None and found.worker_id == global_worker.worker_id:
        return found
    with _lock:
        if _here is None or _here.worker_id != global_worker.worker_id:
            _close()
            _here = Connection(global_worker.worker_id, ray.get_runtime_context().get_node_id())
        return _here


def call(use: Callable[[Connection], Result]) -> Result:
    """What `use` returns, given this process's connection, or a new one if the node was started anew since.

    Raises `NodeUnreachable`, and what `use` raises.
    """
    connection = here()
    try:
        return use(connection)
    except NodeUnreachable:
        disconnect(connection)
    return use(here())


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
