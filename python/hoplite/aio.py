"""The asyncio client."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy.typing as npt

from hoplite import calls
from hoplite.aio_session import AioSession
from hoplite.creation import AsyncCreation
from hoplite.destinations import caller_memory, new_array, new_tensor
from hoplite.ids import ObjectId, ObjectIdLike
from hoplite.nodes import Locations, Status
from hoplite.on_lost import OnLost
from hoplite.reduction import Op, Order, ReduceRequest, ReduceResult
from hoplite.session import Session
from hoplite.timeouts import CONNECT_TIMEOUT, DEFAULT, Timeout

if TYPE_CHECKING:
    import torch

__all__ = ["AsyncClient"]


class AsyncClient:
    """The asyncio forms of `Client`'s calls: `client.aio`.

    Arguments, results and errors are the same. The running event loop reads one connection of its own.
    Threads are used only for connecting and for copies of more than 256 KiB, which would block the loop.
    Cancelling the task that awaits a call cancels the call. An `AsyncClient` belongs to one event loop
    at a time.
    """

    def __init__(self, session: Session) -> None:
        """Use `Client.aio` instead. The first call connects."""
        self._session = AioSession(session)

    async def reconnect(self, *, timeout: float | None = CONNECT_TIMEOUT) -> None:
        """As `Client.reconnect`. It reconnects the blocking client too."""
        await self._session.reconnect(timeout)

    async def put(
        self, value: Any, id: ObjectIdLike | None = None, *, timeout: Timeout = DEFAULT
    ) -> ObjectId:
        """As `Client.put`. Do not change `value` until the call returns."""
        ids = () if id is None else (id,)
        return await self._session.run(timeout, lambda c, t: calls.put(c, value, id, t), ids)

    async def create(
        self,
        id: ObjectIdLike,
        shape: int | Sequence[int],
        dtype: npt.DTypeLike,
        *,
        timeout: Timeout = DEFAULT,
    ) -> AsyncCreation:
        """As `Client.create`. Use: `async with await client.aio.create(...) as creation: ...`."""
        reserved = await self._session.run(timeout, lambda c, t: calls.create(c, id, shape, dtype, t), (id,))
        return AsyncCreation(reserved, self._session)

    async def get(
        self,
        id: ObjectIdLike,
        *,
        timeout: Timeout = DEFAULT,
        copy: bool = False,
        out: Any = None,
        on_lost: OnLost = "raise",
    ) -> Any:
        """As `Client.get`. Copying starts when all bytes are here, not while they arrive."""
        ids = (id,)
        if out is None and not copy:
            return await self._session.run(timeout, lambda c, t: calls.get(c, id, t, on_lost), ids)
        destination = new_array if out is None else caller_memory(out)
        return await self._session.run(
            timeout, lambda c, t: calls.get_copy(c, id, t, destination, on_lost, partial=False), ids
        )

    async def get_torch(
        self, id: ObjectIdLike, *, timeout: Timeout = DEFAULT, on_lost: OnLost = "raise"
    ) -> torch.Tensor:
        """As `Client.get_torch`."""
        ids = (id,)
        tensor: torch.Tensor = await self._session.run(
            timeout, lambda c, t: calls.get_copy(c, id, t, new_tensor, on_lost, partial=False), ids
        )
        return tensor

    async def put_object(
        self, value: Any, id: ObjectIdLike | None = None, *, timeout: Timeout = DEFAULT
    ) -> ObjectId:
        """As `Client.put_object`. The pickling itself runs on the event loop."""
        ids = () if id is None else (id,)
        return await self._session.run(timeout, lambda c, t: calls.put_object(c, value, id, t), ids)

    async def get_object(
        self, id: ObjectIdLike, *, timeout: Timeout = DEFAULT, on_lost: OnLost = "raise"
    ) -> Any:
        """As `Client.get_object`. The unpickling itself runs on the event loop."""
        ids = (id,)
        return await self._session.run(timeout, lambda c, t: calls.get_object(c, id, t, on_lost), ids)

    async def delete(self, ids: ObjectIdLike | Iterable[ObjectIdLike], *, timeout: Timeout = DEFAULT) -> None:
        """As `Client.delete`."""
        chosen = calls.ids_of(ids)
        await self._session.run(timeout, lambda c, t: calls.delete(c, chosen, t), chosen)

    async def reduce(
        self,
        sources: Sequence[ObjectIdLike],
        *,
        target: ObjectIdLike | None = None,
        num_objects: int | None = None,
        op: Op = "sum",
        order: Order = "arrival",
        timeout: Timeout = DEFAULT,
    ) -> ReduceResult:
        """As `Client.reduce`, but returns the result when the reduction is complete.

        To use the target earlier, give it a name and run this call as a task. Cancelling the task
        ends the waiting only. The reduction goes on until its target is deleted.
        """
        request = ReduceRequest(sources, target, num_objects, op, order, to_sources=False)
        return await self._reduce(request, timeout)

    async def allreduce(
        self,
        sources: Sequence[ObjectIdLike],
        *,
        target: ObjectIdLike | None = None,
        num_objects: int | None = None,
        op: Op = "sum",
        order: Order = "arrival",
        timeout: Timeout = DEFAULT,
    ) -> ReduceResult:
        """As `Client.allreduce`, but returns the result when the reduction is complete."""
        request = ReduceRequest(sources, target, num_objects, op, order, to_sources=True)
        return await self._reduce(request, timeout)

    async def wait(
        self,
        ids: Iterable[ObjectIdLike],
        num_ready: int | None = None,
        timeout: Timeout = DEFAULT,
        *,
        on_lost: OnLost = "wait",
    ) -> tuple[list[ObjectId], list[ObjectId]]:
        """As `Client.wait`."""
        chosen = calls.ids_of(ids)
        return await self._session.run(
            timeout, lambda c, t: calls.wait(c, chosen, num_ready, t, on_lost), chosen
        )

    async def prefetch(
        self,
        ids: ObjectIdLike | Iterable[ObjectIdLike],
        nodes: str | Iterable[str] = (),
        *,
        timeout: Timeout = DEFAULT,
    ) -> None:
        """As `Client.prefetch`."""
        chosen = calls.ids_of(ids)
        await self._session.run(timeout, lambda c, t: calls.prefetch(c, chosen, nodes, t), chosen)

    async def locations(self, id: ObjectIdLike, *, timeout: Timeout = DEFAULT) -> Locations:
        """As `Client.locations`."""
        return await self._session.run(timeout, lambda c, t: calls.locations(c, id, t), (id,))

    async def status(self, *, timeout: Timeout = DEFAULT) -> Status:
        """As `Client.status`."""
        return await self._session.run(timeout, lambda c, t: calls.status(c, t), ())

    def close(self) -> None:
        """Disconnect. Running calls raise `Aborted`. `Client.close` does this too."""
        self._session.close()

    async def _reduce(self, request: ReduceRequest, timeout: Timeout) -> ReduceResult:
        ids = [request.target, *request.sources]
        return await self._session.run(timeout, lambda c, t: calls.reduce(c, request, t), ids)
