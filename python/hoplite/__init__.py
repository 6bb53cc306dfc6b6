"""Hoplite: collective communication for task-based distributed programs.

Processes put objects under names. Any process on any host can get an object by name, even before it exists.
A reduction takes any k of n objects, in the order in which they arrive::

    import hoplite, numpy as np

    with hoplite.LocalCluster(nodes=4) as cluster:
        clients = [cluster.connect(i) for i in range(4)]
        for i, client in enumerate(clients):
            client.put(np.full(1_000_000, i, np.float32), f"gradient-{i}")
        reduction = clients[0].reduce([f"gradient-{i}" for i in range(4)], target="sum")
        print(clients[3].get("sum")[:5], reduction.result().sources)

`connect` (or `LocalCluster.connect`) returns a `Client`, which has all calls. `Client.aio` has the same
calls for asyncio. The command `hoplite node` starts a node on a real host.
"""

from hoplite.aio import AsyncClient
from hoplite.client import Client, connect
from hoplite.cluster import LocalCluster
from hoplite.creation import AsyncCreation, Creation
from hoplite.errors import (
    Aborted,
    BadArgument,
    HopliteError,
    InternalError,
    LimitReached,
    Mismatch,
    NodeUnreachable,
    ObjectDeleted,
    ObjectExists,
    ObjectLost,
    StoreFull,
    TimedOut,
    VersionMismatch,
)
from hoplite.ids import ObjectId, ObjectIdLike
from hoplite.nodes import Gauge, Link, Location, Locations, Status
from hoplite.reduction import ReduceResult, Reduction

__version__ = "0.1.0"

__all__ = [
    "Aborted",
    "AsyncClient",
    "AsyncCreation",
    "BadArgument",
    "Client",
    "Creation",
    "Gauge",
    "HopliteError",
    "InternalError",
    "LimitReached",
    "Link",
    "LocalCluster",
    "Location",
    "Locations",
    "Mismatch",
    "NodeUnreachable",
    "ObjectDeleted",
    "ObjectExists",
    "ObjectId",
    "ObjectIdLike",
    "ObjectLost",
    "ReduceResult",
    "Reduction",
    "Status",
    "StoreFull",
    "TimedOut",
    "VersionMismatch",
    "__version__",
    "connect",
]
