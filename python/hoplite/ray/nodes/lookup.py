"""The names of Hoplite's actors, and look-ups of these actors and their nodes."""

from __future__ import annotations

import time
from typing import Any

import ray
from ray.experimental import internal_kv

from hoplite.errors import NodeUnreachable
from hoplite.timeouts import Deadline

__all__ = [
    "NAMESPACE",
    "SUPERVISOR",
    "address_of_node",
    "announce",
    "node_actor_name",
    "node_actor_of",
    "require_connection",
    "socket_of_node",
    "supervisor",
]

NAMESPACE = "_hoplite"
SUPERVISOR = "supervisor"

RETRY_INTERVAL = 0.1
"""Seconds between two look-ups of a node actor that does not exist yet."""


def require_connection() -> None:
    """Raises `NodeUnreachable` without a connection to Ray. Most of Ray's calls would start a new cluster
    instead."""
    if not ray.is_initialized():
        raise NodeUnreachable("this process is not connected to Ray: call hoplite.ray.init() first")


def supervisor() -> Any:
    """The handle of the cluster's supervisor. Raises `NodeUnreachable`, at once, if nobody has started it."""
    require_connection()
    try:
        return ray.get_actor(SUPERVISOR, namespace=NAMESPACE)
    except ValueError:
        raise NodeUnreachable(
            "this Ray cluster has no Hoplite nodes: call hoplite.ray.init() first"
        ) from None


def node_actor_name(node_id: str) -> str:
    """The name of the node actor of a Ray node, given by its id in hex."""
    return f"node-actor-{node_id}"


def announce(node_id: str, address: str, socket: str) -> None:
    """Publish where a Ray node's Hoplite node listens: the address for others, the socket for local
    processes."""
    internal_kv._internal_kv_put(node_id, f"{address} {socket}", overwrite=True, namespace=NAMESPACE)


def address_of_node(node_id: str) -> str | None:
    """The address ("host:port") of a Ray node's Hoplite node, or its last one. None if it never had a
    node."""
    found = _announced(node_id)
    return None if found is None else found[0]


def socket_of_node(node_id: str) -> str | None:
    """The socket of a Ray node's Hoplite node for local clients, or its last one. None if it never had a
    node.

    The node actor is not asked: the caller may be unpickling an argument, and then Ray lets no other thread
    of this process unpickle anything.
    """
    found = _announced(node_id)
    return None if found is None else found[1]


def _announced(node_id: str) -> tuple[str, str] | None:
    found = internal_kv._internal_kv_get(node_id, namespace=NAMESPACE)
    if found is None:
        return None
    address, _, socket = bytes(found).decode().partition(" ")
    return address, socket


def node_actor_of(node_id: str, timeout: float) -> Any:
    """The handle of a Ray node's actor. Waits for it up to `timeout` seconds, then raises
    `NodeUnreachable`."""
    deadline = Deadline(timeout)
    while True:
        try:
            return ray.get_actor(node_actor_name(node_id), namespace=NAMESPACE)
        except ValueError:
            supervisor()
            if deadline.is_over():
                raise NodeUnreachable(f"Ray node {node_id} has had no Hoplite node for {timeout} s") from None
        time.sleep(RETRY_INTERVAL)
