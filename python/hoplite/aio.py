"""The asyncio client."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import numpy.typing as npt

from hoplite import _hoplite, calls
from hoplite.creation import AsyncCreation
from hoplite.errors import Aborted
from hoplite.ids import ObjectId, ObjectIdLike
from hoplite.naming import named
from hoplite.nodes import Locations, Status
from hoplite.reduction import Op, Order, ReduceRequest, ReduceResult
from hoplite.rooms import fresh_room, room_in, torch_room

if TYPE_CHECKING:
    import torch

__all__ = ["AsyncClient"]

INLINE_COPY_BYTES_MAX = 256 << 10
"""Copies up to this size are made on the event loop: a thread's round trip takes longer (some 50 us)."""

Result = TypeVar("Result")


class _Line:
    """A connection whose answers are read by one event loop."""

    def __init__(self, socket: str, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.connection = _hoplite.Connection(socket, None)
        self._waiting: dict[int, tuple[_hoplite.Ticket, asyncio.Future[None]]] = {}
        self._fd = self.connection.fileno()
        loop.add_reader(self._fd, self._on_ready)

    def _on_ready(self) -> None:
        """Answers have come, or there is room for calls that wait to be sent."""
        alive = self.connection.pump()
        settled = [number for number, (ticket, _) in self._waiting.items() if ticket.done()]
        for number in settled:
            _, future = self._waiting.pop(number)
            if not future.done():
                future.set_result(None)
        if not alive:
            # An end of file stays readable for ever; every call has failed, nothing more will come.
            self._unwatch()
        elif self.connection.wants_write():
            self.loop.add_writer(self._fd, self._on_ready)
        else:
            self.loop.remove_writer(self._fd)

    async def settle(self, ticket: _hoplite.Ticket) -> Any:
        """The answer to `ticket`; cancelling the awaiting task cancels the call."""
        if self.connection.wants_write():
            self.loop.add_writer(self._fd, self._on_ready)
        if not ticket.done():
            future: asyncio.Future[None] = self.loop.create_future()
            self._waiting[id(future)] = (ticket, future)
            try:
                async with asyncio.timeout(ticket.limit):
                    await future
            except TimeoutError:
                # The node is overdue by a margin: wait() says so, naming all it knows.
                return ticket.wait()
            except BaseException:
                ticket.cancel()
                raise
            finally:
                self._waiting.pop(id(future), None)
        return ticket.wait()

    def close(self) -> None:
        if not self.loop.is_closed():
            self._unwatch()
            for _, future in self._waiting.values():
                if not future.done():
                    future.set_exception(Aborted("the client was closed"))
        self._waiting.clear()
        self.connection.close()

    def _unwatch(self) -> None:
        self.loop.remove_reader(self._fd)
        self.loop.remove_writer(self._fd)


class AsyncClient:
    """The asyncio forms of `Client`'s calls: `client.aio`.

    Same arguments, results and errors. One connection, read by the running event loop: no threads
    but for copies of more than 256 KiB, which are made off the loop. Cancelling the task that
    awaits a call cancels the call. Belongs to one event loop at a time.
    """

    def __init__(self, socket: str) -> None:
        """Use `Client.aio`; connects with the first call."""
        self._socket = socket
        self._line: _Line | None = None

    async def put(
        self, value: Any, id: ObjectIdLike | None = None, *, timeout: float | None = None
    ) -> ObjectId:
        """As `Client.put`. Do not change `value` until it is done."""
        ids = [] if id is None else [ObjectId.of(id)]
        return await self._run(lambda c: calls.put(c, value, id, timeout), ids)

    async def create(
        self,
        id: ObjectIdLike,
        shape: int | Sequence[int],
        dtype: npt.DTypeLike,
        *,
        timeout: float | None = None,
    ) -> AsyncCreation:
        """As `Client.create`: `async with await client.aio.create(...) as creation: ...`."""
        draft = await self._run(lambda c: calls.create(c, id, shape, dtype, timeout), [ObjectId.of(id)])
        return AsyncCreation(draft, self)

    async def get(
        self,
        id: ObjectIdLike,
        *,
        timeout: float | None = None,
        copy: bool = False,
        out: Any = None,
        fail_if_lost: bool = True,
    ) -> Any:
        """As `Client.get`; a copy is made when all bytes are here, not while they arrive."""
        ids = [ObjectId.of(id)]
        if out is None and not copy:
            return await self._run(lambda c: calls.get(c, id, timeout, fail_if_lost), ids)
        room = fresh_room if out is None else room_in(out)
        return await self._run(
            lambda c: calls.get_copy(c, id, timeout, room, fail_if_lost, partial=False), ids
        )

    async def get_torch(
        self, id: ObjectIdLike, *, timeout: float | None = None, fail_if_lost: bool = True
    ) -> torch.Tensor:
        """As `Client.get_torch`."""
        ids = [ObjectId.of(id)]
        tensor: torch.Tensor = await self._run(
            lambda c: calls.get_copy(c, id, timeout, torch_room, fail_if_lost, partial=False), ids
        )
        return tensor

    async def put_object(
        self, value: Any, id: ObjectIdLike | None = None, *, timeout: float | None = None
    ) -> ObjectId:
        """As `Client.put_object`; the pickling itself is done on the loop."""
        ids = [] if id is None else [ObjectId.of(id)]
        return await self._run(lambda c: calls.put_object(c, value, id, timeout), ids)

    async def get_object(
        self, id: ObjectIdLike, *, timeout: float | None = None, fail_if_lost: bool = True
    ) -> Any:
        """As `Client.get_object`; the unpickling itself is done on the loop."""
        ids = [ObjectId.of(id)]
        return await self._run(lambda c: calls.get_object(c, id, timeout, fail_if_lost), ids)

    async def delete(
        self, ids: ObjectIdLike | Iterable[ObjectIdLike], *, timeout: float | None = None
    ) -> None:
        """As `Client.delete`."""
        chosen = calls.ids_of(ids)
        await self._run(lambda c: calls.delete(c, chosen, timeout), chosen)

    async def reduce(
        self,
        sources: Sequence[ObjectIdLike],
        *,
        target: ObjectIdLike | None = None,
        num_objects: int | None = None,
        op: Op = "sum",
        order: Order = "arrival",
        timeout: float | None = None,
    ) -> ReduceResult:
        """As `Client.reduce`, but returns the result when the reduction is complete.

        To use the target before that, name it and run this as a task. Cancelling that task stops
        the waiting; the reduction itself goes on, until its target is deleted.
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
        timeout: float | None = None,
    ) -> ReduceResult:
        """As `Client.allreduce`, but returns the result when the reduction is complete."""
        request = ReduceRequest(sources, target, num_objects, op, order, to_sources=True)
        return await self._reduce(request, timeout)

    async def wait(
        self, ids: Iterable[ObjectIdLike], num_ready: int | None = None, timeout: float | None = None
    ) -> tuple[list[ObjectId], list[ObjectId]]:
        """As `Client.wait`."""
        chosen = calls.ids_of(ids)
        return await self._run(lambda c: calls.wait(c, chosen, num_ready, timeout), chosen)

    async def prefetch(
        self,
        ids: ObjectIdLike | Iterable[ObjectIdLike],
        nodes: str | Iterable[str] = (),
        *,
        timeout: float | None = None,
    ) -> None:
        """As `Client.prefetch`."""
        chosen = calls.ids_of(ids)
        await self._run(lambda c: calls.prefetch(c, chosen, nodes, timeout), chosen)

    async def locations(self, id: ObjectIdLike, *, timeout: float | None = None) -> Locations:
        """As `Client.locations`."""
        return await self._run(lambda c: calls.locations(c, id, timeout), [ObjectId.of(id)])

    async def status(self, *, timeout: float | None = None) -> Status:
        """As `Client.status`."""
        return await self._run(lambda c: calls.status(c, timeout), [])

    def close(self) -> None:
        """Disconnect; running calls raise `Aborted`. `Client.close` does this too."""
        if self._line is not None:
            self._line.close()
            self._line = None

    def _attached(self) -> _Line:
        loop = asyncio.get_running_loop()
        if self._line is not None and self._line.loop is not loop:
            # The loop it belonged to is over (asyncio.run, called again): so is that connection.
            self.close()
        if self._line is None:
            self._line = _Line(self._socket, loop)
        return self._line

    async def _reduce(self, request: ReduceRequest, timeout: float | None) -> ReduceResult:
        line = self._attached()
        with named([request.target, *request.sources]):
            return request.result(await line.settle(request.send(line.connection, timeout)))

    async def _settle(self, ticket: _hoplite.Ticket, ids: Iterable[ObjectId]) -> Any:
        with named(ids):
            return await self._attached().settle(ticket)

    async def _run(
        self, call: Callable[[_hoplite.Connection], calls.Steps[Result]], ids: Iterable[ObjectId]
    ) -> Result:
        """Take the steps of a call, awaiting each."""
        line = self._attached()
        steps = call(line.connection)
        with named(ids):
            try:
                step = next(steps)
                while True:
                    try:
                        if isinstance(step, calls.Work):
                            value = await _worked(step)
                        else:
                            value = await line.settle(step)
                    except BaseException as error:
                        step = steps.throw(error)
                    else:
                        step = steps.send(value)
            except StopIteration as end:
                result: Result = end.value
                return result


async def _worked(work: calls.Work) -> Any:
    if work.size <= INLINE_COPY_BYTES_MAX:
        return work.do()
    running = asyncio.ensure_future(asyncio.to_thread(work.do))
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        # The thread must be out of the store before the memory it copies to or from is let go.
        work.stop()
        with contextlib.suppress(Exception):
            await running
        raise
