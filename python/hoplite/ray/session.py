"""`init` and `shutdown`: Hoplite on a Ray cluster, for this driver."""

from __future__ import annotations

import logging
import os
from numbers import Integral
from typing import Any

import ray
from ray._common.constants import HEAD_NODE_RESOURCE_NAME
from ray._private.worker import global_worker

from hoplite.client import Client
from hoplite.errors import BadArgument
from hoplite.ray import hooks
from hoplite.ray.nodes import connection
from hoplite.ray.nodes.lookup import NAMESPACE, SUPERVISOR, supervisor
from hoplite.ray.nodes.supervisor import NODE_ACTOR_TIMEOUT, Supervisor
from hoplite.ray.recovery import rebuilder
from hoplite.ray.settings import THRESHOLD_VARIABLE

__all__ = ["client", "init", "nodes", "shutdown"]

logger = logging.getLogger(__name__)

CLIENT = "ray://"
"""Prefix of the addresses of drivers that are not on a node of the cluster."""

START_TIMEOUT = 2 * NODE_ACTOR_TIMEOUT
"""Seconds for all nodes to start: first one, and then the others together."""

STOP_TIMEOUT = 30.0
"""Seconds for all nodes to end."""

SHARE = 0.001
"""Amount of the resource that places the supervisor on the head node. Other programs may want the rest."""

_started_ray = False


def init(
    *args: Any,
    transparent: bool | None = None,
    threshold: int | None = None,
    store_size: int | str | None = None,
    **ray_init: Any,
) -> Any:
    """Start a Hoplite node beside every node of the Ray cluster, now and whenever one joins.

    Call it instead of `ray.init`: it takes the same arguments and returns the same result. Or call it after
    `ray.init`, without these arguments. If another driver has started Hoplite's nodes, they are used.

    `transparent`: arrays, tensors and Arrow buffers of `threshold` bytes or more (default: 1 MiB) go through
    Hoplite, anywhere in arguments, results and puts. Workers learn this from the job's runtime environment.
    So it needs `init` instead of `ray.init`, or `ray.init(runtime_env=hoplite.ray.runtime_env())`. Default:
    transparent wherever possible. Otherwise only the calls of `hoplite.ray` use Hoplite.

    `store_size`: each node's store, an int of bytes or a str such as "8GiB" (default: a quarter of the host's
    memory, taken as it is used). The driver that starts the nodes decides it.

    Raises the errors of `ray.init`, `NodeUnreachable` (a node does not start; it is tried again) and
    `BadArgument`.
    """
    if threshold is not None and (not isinstance(threshold, Integral) or threshold < 0):
        raise BadArgument(f"threshold is bytes, a whole number; not {threshold!r}")
    _refuse_client(args[0] if args else ray_init.get("address", os.environ.get("RAY_ADDRESS")))
    if transparent is not False and not ray.is_initialized():
        ray_init["runtime_env"] = hooks.runtime_env(ray_init.get("runtime_env"), threshold=threshold)
    context = _initialise_ray(args, ray_init)
    connection.expect()
    in_workers = _is_in_workers(transparent)
    if threshold is not None:
        os.environ[THRESHOLD_VARIABLE] = str(threshold)
    _start_supervisor(None if store_size is None else str(store_size))
    nodes()
    if in_workers and transparent is not False:
        hooks.install()
    return context


def _refuse_client(address: object) -> None:
    """Raise `BadArgument` if this driver is or would be on no node of the cluster."""
    if str(address).startswith(CLIENT) or (ray.is_initialized() and not global_worker.connected):
        raise BadArgument(
            f"Ray's client ({CLIENT}) is not supported: start the driver on a node of the cluster"
        )


def _initialise_ray(args: tuple[Any, ...], ray_init: dict[str, Any]) -> Any:
    """The result of `ray.init`, or None if Ray is initialised already."""
    global _started_ray
    if not ray.is_initialized():
        context = ray.init(*args, **ray_init)
        _started_ray = True
        return context
    if args or ray_init:
        raise BadArgument("Ray has been initialised before: give ray.init its arguments there")
    return None


def _is_in_workers(transparent: bool | None) -> bool:
    """Whether workers are in transparent mode. `BadArgument` if that was asked for and is impossible."""
    in_workers = hooks.is_in_runtime_env(ray.get_runtime_context().runtime_env)
    if transparent and not in_workers:
        raise BadArgument(
            "transparent mode must be in the job's runtime environment: call hoplite.ray.init instead of"
            " ray.init, or ray.init(runtime_env=hoplite.ray.runtime_env())"
        )
    if transparent is None and not in_workers:
        logger.warning(
            "only the calls of hoplite.ray use Hoplite: ray.init came before, without"
            " runtime_env=hoplite.ray.runtime_env() (transparent=False: that is meant)"
        )
    return in_workers


def shutdown(*, stop_nodes: bool = False) -> None:
    """Leave Hoplite. Also calls `ray.shutdown()` if `init` initialised Ray.

    The nodes stay for other drivers until the Ray cluster ends. `stop_nodes` ends them for all drivers, and
    their objects are lost.
    """
    global _started_ray
    hooks.uninstall()
    os.environ.pop(THRESHOLD_VARIABLE, None)
    rebuilder.stop()
    connection.disconnect()
    try:
        if stop_nodes and ray.is_initialized():
            started = supervisor()
            ray.get(started.stop.remote(), timeout=STOP_TIMEOUT)
            ray.kill(started)
    finally:
        if _started_ray and ray.is_initialized():
            ray.shutdown()
        _started_ray = False


def nodes() -> dict[str, str]:
    """The address ("host:port") of every Hoplite node, by the id (in hex) of its Ray node.

    Waits until every live Ray node has one. Raises `NodeUnreachable`.
    """
    addresses = supervisor().addresses.remote(START_TIMEOUT)
    found: dict[str, str] = ray.get(addresses, timeout=START_TIMEOUT + NODE_ACTOR_TIMEOUT)
    return found


def client() -> Client:
    """This process's client of the Hoplite node on its Ray node, for objects with names of their own.

    If the node has died, this is a client of the node that replaced it. Raises `NodeUnreachable`.
    """
    connection.require()
    return connection.call(_answering_client)


def _answering_client(conn: connection.Connection) -> Client:
    conn.client.status()
    return conn.client


def _start_supervisor(store_size: str | None) -> None:
    ray.remote(Supervisor).options(
        name=SUPERVISOR,
        namespace=NAMESPACE,
        lifetime="detached",
        get_if_exists=True,
        num_cpus=0,
        # Without a resource, Ray places an actor at random. On another node than the head, the supervisor
        # could die while the cluster lives.
        resources={HEAD_NODE_RESOURCE_NAME: SHARE},
        max_concurrency=64,
        max_restarts=-1,
    ).remote(store_size)
