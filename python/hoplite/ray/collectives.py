"""Collectives on references: reduce, allreduce, broadcast, prefetch."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, get_args

import ray
import ray.exceptions

from hoplite.errors import BadArgument, NodeUnreachable
from hoplite.ray.nodes.lookup import node_actor_of, require_connection
from hoplite.ray.values.handles import kept_as_handles
from hoplite.reduction import Op, Order
from hoplite.timeouts import DEFAULT, Deadline, Timeout, in_seconds

__all__ = ["allreduce", "broadcast", "prefetch", "reduce"]

NODE_ACTOR_TIMEOUT = 30.0
"""Seconds to wait for a node actor. On a Ray node that has just joined, it has only begun to start."""


def reduce(
    references: Sequence[ray.ObjectRef],
    num_returns: int | None = None,
    op: Op = "sum",
    *,
    order: Order = "arrival",
    timeout: Timeout = DEFAULT,
) -> tuple[ray.ObjectRef, list[ray.ObjectRef]]:
    """Reduce the first `num_returns` (default: all) of `references` that become ready.

    Their values are arrays (or CPU tensors) of one shape and dtype. The references may be of tasks that still
    run. Returns the reference of the result, which has the same shape and dtype, and the references that are
    not in it. With all references, it returns at once. With fewer, it returns when enough are ready to
    choose. Those whose tasks failed are passed over, and are among the unreduced.

    `timeout` (seconds, None for ever; default: `$HOPLITE_TIMEOUT`, or else half an hour) bounds the waiting
    here, and then the reduction. Raises `ray.exceptions.GetTimeoutError`, `BadArgument`, and the first
    failure if too many have failed. The reference of the result raises other errors.
    """
    _check(references, num_returns, op, order)
    seconds = in_seconds(timeout)
    chosen = list(references)
    if num_returns is not None and num_returns < len(chosen):
        chosen = _first(chosen, num_returns, Deadline(seconds))
    in_it = set(chosen)
    unreduced = [reference for reference in references if reference not in in_it]
    return _reduced(chosen, op, order, False, seconds), unreduced


def allreduce(
    references: Sequence[ray.ObjectRef],
    op: Op = "sum",
    *,
    order: Order = "arrival",
    timeout: Timeout = DEFAULT,
) -> ray.ObjectRef:
    """As `reduce` of all references. The result is also brought to every node that has one of the sources."""
    _check(references, None, op, order)
    return _reduced(list(references), op, order, True, in_seconds(timeout))


def broadcast(
    reference: ray.ObjectRef, nodes: Iterable[str] | None = None, *, timeout: Timeout = DEFAULT
) -> list[ray.ObjectRef]:
    """Bring a value to Ray nodes (ids in hex; default: all live ones), before tasks there ask for it.

    Returns at once: a reference for each node, which is ready when the value is there. `timeout` bounds that,
    as for `reduce`. Raises `NodeUnreachable` for a node without a Hoplite node.
    """
    require_connection()
    alive = [node["NodeID"] for node in ray.nodes() if node["Alive"]]
    chosen = alive if nodes is None else list(nodes)
    seconds = in_seconds(timeout)
    for node in set(chosen).difference(alive):
        raise NodeUnreachable(f"no Ray node that is alive has the id {node!r}")
    node_actors = [node_actor_of(node, NODE_ACTOR_TIMEOUT) for node in chosen]
    return [node_actor.fetch.remote([reference], seconds) for node_actor in node_actors]


def prefetch(
    references: ray.ObjectRef | Iterable[ray.ObjectRef], *, timeout: Timeout = DEFAULT
) -> ray.ObjectRef:
    """Bring values to this process's node. Returns a reference at once. It is ready when the values are
    here."""
    chosen = [references] if isinstance(references, ray.ObjectRef) else list(references)
    return _node_actor_here().fetch.remote(chosen, in_seconds(timeout))


def _check(references: Sequence[ray.ObjectRef], num_returns: int | None, op: Op, order: Order) -> None:
    if isinstance(references, ray.ObjectRef):
        raise BadArgument("references are a list, also of one")
    for reference in references:
        if not isinstance(reference, ray.ObjectRef):
            raise BadArgument(f"references are of type ray.ObjectRef, not {type(reference).__name__}")
    count = len(references) if num_returns is None else num_returns
    if not 1 <= count <= len(references):
        raise BadArgument(f"num_returns is 1 to the number of references ({len(references)}), not {count}")
    if len(set(references)) < len(references):
        raise BadArgument("a reference is listed twice")
    for word, known in ((op, get_args(Op)), (order, get_args(Order))):
        if word not in known:
            raise BadArgument(f"{word!r} is none of {', '.join(known)}")


def _reduced(
    chosen: list[ray.ObjectRef], op: Op, order: Order, to_sources: bool, timeout: float | None
) -> ray.ObjectRef:
    # Ray would wait for the values of bare references before it makes the call. It does not for those in a
    # list.
    return _node_actor_here().reduce.remote(chosen, op, order, to_sources, timeout)


def _node_actor_here() -> Any:
    require_connection()
    return node_actor_of(ray.get_runtime_context().get_node_id(), NODE_ACTOR_TIMEOUT)


def _first(references: list[ray.ObjectRef], count: int, deadline: Deadline) -> list[ray.ObjectRef]:
    """The first `count` references that are ready and have not failed, in the order of the call."""
    good: set[ray.ObjectRef] = set()
    pending = references
    failures: list[Exception] = []
    while len(good) < count:
        if len(good) + len(pending) < count:
            raise failures[0]
        wanted = count - len(good)
        ready, pending = ray.wait(pending, num_returns=wanted, timeout=deadline.left(), fetch_local=False)
        for reference in ready:
            try:
                with kept_as_handles():
                    ray.get(reference, timeout=deadline.left())
            except ray.exceptions.GetTimeoutError:
                raise
            except Exception as error:
                failures.append(error)
            else:
                good.add(reference)
        if len(ready) < wanted and deadline.is_over():
            raise ray.exceptions.GetTimeoutError(
                f"{len(good)} of {count} sources are ready, of {len(references)}"
            )
    return [reference for reference in references if reference in good]
