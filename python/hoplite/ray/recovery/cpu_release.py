"""Waits for an object as `ray.get` waits: meanwhile, the task's CPUs are free for other tasks.

A task that waits inside Hoplite keeps its CPUs. If the object must be rebuilt and the cluster has no other
CPU left, both tasks would wait for ever.
"""

from __future__ import annotations

import threading

import ray
from ray._private.worker import global_worker

from hoplite.errors import NodeUnreachable, TimedOut
from hoplite.ids import ObjectId
from hoplite.ray.nodes.lookup import node_actor_of
from hoplite.timeouts import Deadline

__all__ = ["HOLD_CPUS_SECONDS", "holds_cpus", "wait_until_available"]

HOLD_CPUS_SECONDS = 1.0
"""Seconds for which a task may keep its CPUs while it waits for bytes. Most come sooner."""

LOOK_SECONDS = 5.0
"""Longest time in seconds that the node actor waits in one call. It may wait for a task that has been
killed."""

NODE_ACTOR_TIMEOUT = 30.0
"""Seconds to wait for the local node actor, which may be restarting."""


def holds_cpus() -> bool:
    """Whether this thread runs a task that has CPUs counted by Ray. Actors keep their CPUs in any case.

    Ray runs tasks on the main thread. Other threads may be Ray's own: they unpickle values for
    `ObjectRef.future` and `await`, and receive the answers of calls. No such thread may wait for an answer.
    """
    return (
        threading.current_thread() is threading.main_thread()
        and global_worker.mode == ray.WORKER_MODE
        and global_worker.actor_id.is_nil()
    )


def wait_until_available(id: ObjectId, deadline: Deadline) -> None:
    """Wait until some node has the object. Raises `TimedOut`, `NodeUnreachable`, `ObjectDeleted`."""
    node = ray.get_runtime_context().get_node_id()
    node_actor = node_actor_of(node, deadline.left_at_most(NODE_ACTOR_TIMEOUT))
    try:
        while not ray.get(
            node_actor.wait_available.remote(id, deadline.left_at_most(LOOK_SECONDS)), timeout=deadline.left()
        ):
            if deadline.is_over():
                raise TimedOut(f"no node has {id!r}")
    except ray.exceptions.GetTimeoutError as error:
        raise TimedOut(str(error)) from error
    except ray.exceptions.RayActorError as error:
        raise NodeUnreachable(str(error)) from error
    except ray.exceptions.RayTaskError as error:
        raise error.cause from None
