"""The asyncio form of a session."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
from collections.abc import Callable, Collection
from typing import Any, TypeVar

from hoplite import _hoplite, calls
from hoplite.aio_connection import AioConnection
from hoplite.connecting import RETRY_INTERVAL
from hoplite.errors import BadArgument, HopliteError
from hoplite.ids import ObjectIdLike
from hoplite.naming import name_objects
from hoplite.session import Session
from hoplite.timeouts import Deadline, Timeout

INLINE_COPY_BYTES_MAX = 256 << 10
"""Copies up to this size are made on the event loop: a round trip to a thread takes longer (some 50 us)."""

Result = TypeVar("Result")


class AioSession:
    """Runs calls on the running event loop, over a connection of its own beside that of `session`."""

    def __init__(self, session: Session) -> None:
        """The first call connects."""
        self._session = session
        self._aio: AioConnection | None = None
        # The connection of `session` when this one was made. If the session has another one now, it was
        # reconnected.
        self._beside: _hoplite.Connection | None = None

    def seconds(self, timeout: Timeout) -> float | None:
        """As `Session.seconds`."""
        return self._session.seconds(timeout)

    async def run(
        self,
        timeout: Timeout,
        call: Callable[[_hoplite.Connection, float | None], calls.Steps[Result]],
        ids: Collection[ObjectIdLike],
    ) -> Result:
        """Run the steps of a call about `ids`, and await each."""
        seconds = self.seconds(timeout)
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

    async def settle(self, ticket: _hoplite.Ticket, ids: Collection[ObjectIdLike]) -> Any:
        """As `Session.settle`."""
        return await self.run(None, lambda _c, _t: calls.answer(ticket), ids)

    async def reconnect(self, timeout: float | None) -> None:
        """As `Client.reconnect`."""
        deadline = Deadline(timeout)
        while not await asyncio.to_thread(self._session.renew, deadline):
            await asyncio.sleep(RETRY_INTERVAL)

    def close(self) -> None:
        """End all calls with `Aborted`. The next call connects again, unless the session is closed."""
        if self._aio is not None:
            self._aio.close()
            self._aio = None

    async def _attached(self, timeout: float | None) -> tuple[AioConnection, _hoplite.Connection]:
        loop = asyncio.get_running_loop()
        beside = self._session.connection
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
            self._aio, self._beside = AioConnection(self._session.socket, loop), beside
        return self._aio, await self._aio.opened(timeout)


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
