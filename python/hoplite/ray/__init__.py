"""Hoplite for Ray programs: large values travel through Hoplite, references stay Ray's.

::

    import hoplite.ray

    hoplite.ray.init()  # in place of ray.init(), with its arguments
    gradients = [compute.remote(weights) for compute in workers]
    total, rest = hoplite.ray.reduce(gradients, num_returns=len(gradients) // 2)

Arrays, tensors and Arrow buffers of 1 MiB or more go through Hoplite, anywhere in arguments, results and
puts of an otherwise unchanged program. With `transparent=False` only the calls of this package use Hoplite.
`reduce` also takes references of tasks that are still running. docs/ray.md has the design and the limits.
Needs the package ray: `pip install hoplite[ray]`.
"""

# Imported before all modules that need Ray: it reports a missing Ray.
from hoplite.ray.ray_version import RAY_MIN as RAY_MIN

# isort: split

from hoplite.ray.collectives import allreduce, broadcast, prefetch, reduce
from hoplite.ray.errors import ObjectFetchTimedOutError, ObjectLostError
from hoplite.ray.hooks import runtime_env
from hoplite.ray.session import client, init, nodes, shutdown
from hoplite.ray.values.in_place import empty
from hoplite.ray.values.references import get, put, remote, wait

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
