"""A connection to a node that one event loop reads."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

from hoplite import _hoplite
from hoplite.connecting import open_connection
from hoplite.errors import Aborted, TimedOut
from hoplite.timeouts import CONNECT_TIMEOUT, checked

__all__ = ["AioConnection"]

OPEN_TIMEOUT_MIN = 1.0
"""Seconds that the first call may always spend on connecting, even if its own time-out is shorter. The
time-out of a call is meant for its answer. A running node accepts a connection within a millisecond."""


class AioConnection:
    """Connects in the background. `opened` waits for the connection."""

    def __init__(self, socket: str, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._socket = socket
        self._waiting: dict[int, tuple[_hoplite.Ticket, asyncio.Future[None]]] = {}
        self._fd: int | None = None
        self._closed = False
        self._gone = False
        self._stop = _hoplite.Stop()
        self._opening = loop.create_task(self._open())
        # Retrieves the exception, as the waiting call may be gone. asyncio warns of exceptions that are
        # never retrieved.
        self._opening.add_done_callback(lambda task: task.cancelled() or task.exception())

    async def _open(self) -> _hoplite.Connection:
        # Off the loop: connecting to a stopped node blocks.
        try:
            connection = await asyncio.to_thread(open_connection, self._socket, CONNECT_TIMEOUT, self._stop)
        except asyncio.CancelledError:
            # The loop is ending, and waits for the thread.
            self._stop.set()
            raise
        if self._closed:
            connection.close()
            raise Aborted("the client was closed")
        self._fd = connection.fileno()
        self.loop.add_reader(self._fd, self._on_ready, connection)
        return connection

    async def opened(self, timeout: float | None) -> _hoplite.Connection:
        """Wait for the connection. Raises `NodeUnreachable`, `TimedOut`."""
        if not self._opening.done():
            seconds = checked(timeout)
            patience = None if seconds is None else max(seconds, OPEN_TIMEOUT_MIN)
            try:
                async with asyncio.timeout(patience):
                    await asyncio.shield(self._opening)
            except TimeoutError:
                raise TimedOut(f"no welcome from the node at {self._socket} in {patience} s") from None
        return self._opening.result()

    def is_of_no_use(self) -> bool:
        """Whether connecting has failed, or the node has gone since."""
        return self._gone or (self._opening.done() and self._connection() is None)

    def _connection(self) -> _hoplite.Connection | None:
        opened = self._opening.done() and not self._opening.cancelled()
        return self._opening.result() if opened and self._opening.exception() is None else None

    def _on_ready(self, connection: _hoplite.Connection) -> None:
        """Called when answers have arrived, or when the socket has room for calls that wait to be sent."""
        alive = connection.is_alive()
        settled = [number for number, (ticket, _) in self._waiting.items() if ticket.done()]
        for number in settled:
            _, future = self._waiting.pop(number)
            if not future.done():
                future.set_result(None)
        if not alive:
            # Stop watching: an end of file stays readable for ever. Every call has failed by now.
            self._gone = True
            self._unwatch()
        elif self._fd is not None and not self._watch_writable(connection):
            self.loop.remove_writer(self._fd)

    def _watch_writable(self, connection: _hoplite.Connection) -> bool:
        """Whether something waits to be sent; if so, watch for room in the socket."""
        if self._fd is None or not connection.wants_write():
            return False
        self.loop.add_writer(self._fd, self._on_ready, connection)
        return True

    async def settle(self, ticket: _hoplite.Ticket) -> Any:
        """Wait for the answer to `ticket`. Cancelling the awaiting task cancels the call."""
        self._watch_writable(self._opening.result())
        if not ticket.done():
            future: asyncio.Future[None] = self.loop.create_future()
            self._waiting[id(future)] = (ticket, future)
            try:
                async with asyncio.timeout(ticket.limit):
                    await future
            except TimeoutError:
                # The node has missed the call's limit. wait() raises the error with all that is known.
                return ticket.wait()
            except BaseException:
                ticket.cancel()
                raise
            finally:
                self._waiting.pop(id(future), None)
        return ticket.wait()

    def close(self) -> None:
        """Ends every waiting call with `Aborted`. May be called from any thread."""
        self._closed = True
        self._stop.set()
        if self.loop.is_running() and self.loop is not _running_loop():
            # The loop may end before it runs this. In that case no call waits any more.
            with contextlib.suppress(RuntimeError):
                self.loop.call_soon_threadsafe(self._end)
        else:
            self._end()

    def _end(self) -> None:
        if not self.loop.is_closed():
            self._unwatch()
            for _, future in self._waiting.values():
                if not future.done():
                    future.set_exception(Aborted("the client was closed"))
        self._waiting.clear()
        connection = self._connection()
        if connection is not None:
            connection.close()

    def _unwatch(self) -> None:
        if self._fd is not None:
            self.loop.remove_reader(self._fd)
            self.loop.remove_writer(self._fd)
            self._fd = None


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None
