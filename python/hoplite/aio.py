"""The asyncio client."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import numpy.typing as npt

from hoplite import _hoplite, calls
from hoplite.aio_connection import AioConnection
from hoplite.connecting import RETRY_INTERVAL
from hoplite.creation import AsyncCreation
from hoplite.destinations import caller_memory, new_array, new_tensor
from hoplite.errors import BadArgument, HopliteError
from hoplite.ids import ObjectId, ObjectIdLike
from hoplite.naming import name_objects
from hoplite.nodes import Locations, Status
from hoplite.on_lost import OnLost
from hoplite.reduction import Op, Order, ReduceRequest, ReduceResult
from hoplite.timeouts import CONNECT_TIMEOUT, DEFAULT, Deadline, Timeout

if TYPE_CHECKING:
    import torch

    from hoplite.client import Client

__all__ = ["AsyncClient"]

INLINE_COPY_BYTES_MAX = 256 << 10
"""Copies up to this size are made on the event loop: a round trip to a thread takes longer (some 50 us)."""

Result = TypeVar("Result")


class AsyncClient:
    """The asyncio forms of `Client`'s calls: `client.aio`.

    Arguments, results and errors are the same. The running event loop reads one connection of its own.
    Threads are used only for connecting and for copies of more than 256 KiB, which would block the loop.
    Cancelling the task that awaits a call cancels the call. An `AsyncClient` belongs to one event loop
    at a time.
    """

    def __init__(self, client: Client) -> None:
        """Use `Client.aio` instead. The first call connects."""
        self._client = client
        self._aio: AioConnection | None = None
        # The connection of `client` when this one was made. If the client has another one now, it was
        # reconnected.
        self._beside: _hoplite.Connection | None = None

    async def reconnect(self, *, timeout: float | None = CONNECT_TIMEOUT) -> None:
        """As `Client.reconnect`. It reconnects the blocking client too."""
        deadline = Deadline(timeout)
        while not await asyncio.to_thread(self._client._renewed, deadline):
            await asyncio.sleep(RETRY_INTERVAL)

    async def put(
        self, value: Any, id: ObjectIdLike | None = None, *, timeout: Timeout = DEFAULT
    ) -> ObjectId:
        """As `Client.put`. Do not change `value` until the call returns."""
        ids = () if id is None else (id,)
        return await self._run(timeout, lambda c, t: calls.put(c, value, id, t), ids)

    async def create(
        self,
        id: ObjectIdLike,
        shape: int | Sequence[int],
        dtype: npt.DTypeLike,
        *,
        timeout: Timeout = DEFAULT,
    ) -> AsyncCreation:
        """As `Client.create`. Use: `async with await client.aio.create(...) as creation: ...`."""
        draft = await self._run(timeout, lambda c, t: calls.create(c, id, shape, dtype, t), (id,))
        return AsyncCreation(draft, self)

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
            return await self._run(timeout, lambda c, t: calls.get(c, id, t, on_lost), ids)
        destination = new_array if out is None else caller_memory(out)
        return await self._run(
            timeout, lambda c, t: calls.get_copy(c, id, t, destination, on_lost, partial=False), ids
        )

    async def get_torch(
        self, id: ObjectIdLike, *, timeout: Timeout = DEFAULT, on_lost: OnLost = "raise"
    ) -> torch.Tensor:
        """As `Client.get_torch`."""
        ids = (id,)
        tensor: torch.Tensor = await self._run(
            timeout, lambda c, t: calls.get_copy(c, id, t, new_tensor, on_lost, partial=False), ids
        )
        return tensor

    async def put_object(
        self, value: Any, id: ObjectIdLike | None = None, *, timeout: Timeout = DEFAULT
    ) -> ObjectId:
        """As `Client.put_object`. The pickling itself runs on the event loop."""
        ids = () if id is None else (id,)
        return await self._run(timeout, lambda c, t: calls.put_object(c, value, id, t), ids)

    async def get_object(
        self, id: ObjectIdLike, *, timeout: Timeout = DEFAULT, on_lost: OnLost = "raise"
    ) -> Any:
        """As `Client.get_object`. The unpickling itself runs on the event loop."""
        ids = (id,)
        return await self._run(timeout, lambda c, t: calls.get_object(c, id, t, on_lost), ids)

    async def delete(self, ids: ObjectIdLike | Iterable[ObjectIdLike], *, timeout: Timeout = DEFAULT) -> None:
        """As `Client.delete`."""
        chosen = calls.ids_of(ids)
        await self._run(timeout, lambda c, t: calls.delete(c, chosen, t), chosen)

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
        return await self._run(timeout, lambda c, t: calls.wait(c, chosen, num_ready, t, on_lost), chosen)

    async def prefetch(
        self,
        ids: ObjectIdLike | Iterable[ObjectIdLike],
        nodes: str | Iterable[str] = (),
        *,
        timeout: Timeout = DEFAULT,
    ) -> None:
        """As `Client.prefetch`."""
        chosen = calls.ids_of(ids)
        await self._run(timeout, lambda c, t: calls.prefetch(c, chosen, nodes, t), chosen)

    async def locations(self, id: ObjectIdLike, *, timeout: Timeout = DEFAULT) -> Locations:
        """As `Client.locations`."""
        return await self._run(timeout, lambda c, t: calls.locations(c, id, t), (id,))

    async def status(self, *, timeout: Timeout = DEFAULT) -> Status:
        """As `Client.status`."""
        return await self._run(timeout, lambda c, t: calls.status(c, t), ())

    def close(self) -> None:
        """Disconnect. Running calls raise `Aborted`. `Client.close` does this too."""
        if self._aio is not None:
            self._aio.close()
            self._aio = None

    def _seconds(self, timeout: Timeout) -> float | None:
        return self._client._seconds(timeout)

    async def _attached(self, timeout: float | None) -> tuple[AioConnection, _hoplite.Connection]:
        loop = asyncio.get_running_loop()
        beside = self._client._connection
        aio = self._aio
        if aio is not None and aio.loop is not loop and aio.loop.is_running():
            raise BadArgument("another event loop uses client.aio: give each loop a client of its own")
        if aio is not None and (aio.loop is not loop or aio.is_of_no_use() or self._beside is not beside):
            # This connection cannot be used: its loop has ended (asyncio.run was called again), it has
            # failed, or the client was reconnected.
            self.close()
        if self._aio is None:
            # If the node has died, this raises until the client is reconnected.
            beside.pump()
            self._aio, self._beside = AioConnection(self._client.socket, loop), beside
        return self._aio, await self._aio.opened(timeout)

    async def _reduce(self, request: ReduceRequest, timeout: Timeout) -> ReduceResult:
        ids = [request.target, *request.sources]
        return await self._run(timeout, lambda c, t: calls.reduce(c, request, t), ids)

    async def _settle(self, ticket: _hoplite.Ticket, ids: Collection[ObjectIdLike]) -> Any:
        return await self._run(None, lambda _c, _t: calls.answer(ticket), ids)

    async def _run(
        self,
        timeout: Timeout,
        call: Callable[[_hoplite.Connection, float | None], calls.Steps[Result]],
        ids: Collection[ObjectIdLike],
    ) -> Result:
        """Run the steps of a call, and await each."""
        seconds = self._seconds(timeout)
        try:
            aio, connection = await self._attached(seconds)
            steps = call(connection, seconds)
            step = next(steps)
            while True:
                try:
                    value = await _taken(step, aio)
                except BaseException as error:
                    step = steps.throw(error)
                else:
                    step = steps.send(value)
        except StopIteration as end:
            result: Result = end.value
            return result
        except HopliteError as error:
            name_objects(error, ids)
            raise


async def _taken(step: calls.Step, aio: AioConnection) -> Any:
    match step:
        case calls.Work():
            return await _worked(step)
        case calls.Tell():
            told = step.do()
            if inspect.isawaitable(told):
                await told
            return None
        case ticket:
            return await aio.settle(ticket)


async def _worked(work: calls.Work) -> Any:
    if work.size <= INLINE_COPY_BYTES_MAX:
        return work.wait()
    running = asyncio.ensure_future(asyncio.to_thread(work.wait))
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        # The thread must end its copy before the memory on either side is released.
        work.stop()
        with contextlib.suppress(Exception):
            await running
        raise
