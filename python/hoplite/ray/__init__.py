"""Hoplite under Ray programs: large values travel through Hoplite, references stay Ray's.

::

    import hoplite.ray

    hoplite.ray.init()  # instead of ray.init(), with its arguments

From here on arrays, tensors and Arrow buffers of 1 MiB or more, wherever they are in arguments and
results of tasks and actors and in what is put, go through Hoplite, in programs that are
otherwise unchanged (`transparent=False`: only those of the calls below). `reduce` sums what tasks are
still computing::

    gradients = [compute.remote(weights) for compute in workers]
    total, rest = hoplite.ray.reduce(gradients, num_returns=len(gradients) // 2)

docs/ray.md says how it works and what its limits are. Needs the package ray: `pip install hoplite[ray]`.
"""

# Before all that needs Ray: it says what is missing.
from hoplite.ray.needed import RAY_MIN as RAY_MIN

# isort: split

from hoplite.ray.collectives import allreduce, broadcast, prefetch, reduce
from hoplite.ray.errors import ObjectFetchTimedOutError, ObjectLostError
from hoplite.ray.hooks import runtime_env
from hoplite.ray.in_place import empty
from hoplite.ray.references import get, put, remote, wait
from hoplite.ray.session import client, init, nodes, shutdown

__all__ = [
    "ObjectFetchTimedOutError",
    "ObjectLostError",
    "allreduce",
    "broadcast",
    "client",
    "empty",
    "get",
    "init",
    "nodes",
    "prefetch",
    "put",
    "reduce",
    "remote",
    "runtime_env",
    "shutdown",
    "wait",
]
