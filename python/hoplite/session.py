"""The session of a process with its node, which a blocking client and the results of its calls share."""

from __future__ import annotations

import threading
from collections.abc import Collection
from typing import Any, TypeVar

from hoplite import _hoplite, calls
from hoplite.connecting import ATTEMPT_TIMEOUT, open_connection
from hoplite.errors import Aborted, HopliteError, NodeUnreachable
from hoplite.ids import ObjectIdLike
from hoplite.naming import name_objects
from hoplite.timeouts import DEFAULT, Deadline, Timeout, in_seconds

Result = TypeVar("Result")


class Session:
    """The connection to the node at `socket`, and the default time-out. Runs calls on the calling thread."""

    def __init__(self, socket: str, timeout: float | None, default_timeout: Timeout) -> None:
        self.socket = socket
        self.default_timeout = in_seconds(default_timeout)
        self.connection = open_connection(socket, timeout)
        """The connection of all further calls. `renew` replaces it."""
        self._closed = False
        # Held only briefly, never during a wait.
        self._swapping = threading.Lock()

    def seconds(self, timeout: Timeout) -> float | None:
        """The time-out of a call that was given `timeout`."""
        return self.default_timeout if timeout is DEFAULT else timeout

    def run(self, steps: calls.Steps[Result], ids: Collection[ObjectIdLike]) -> Result:
        """Run the steps of a call about `ids` on this thread."""
        try:
            step = next(steps)
            while True:
                try:
                    value = step.wait()
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

    def settle(self, ticket: _hoplite.Ticket, ids: Collection[ObjectIdLike]) -> Any:
        """Wait for the answer to a call about `ids` that was sent before."""
        return self.run(calls.answer(ticket), ids)

    def is_done(self, ticket: _hoplite.Ticket) -> bool:
        """Whether `settle` would return or raise at once."""
        # Reads the answers that have arrived. A broken connection has settled its tickets.
        try:
            self.connection.is_alive()
        except Aborted:
            # The client was closed: every wait for an answer raises `Aborted` at once.
            return True
        return ticket.done()

    def renew(self, deadline: Deadline) -> bool:
        """Try once to connect again. False if it failed and there is time for another try."""
        broken = self.connection
        if broken.is_alive():
            return True
        try:
            fresh = open_connection(self.socket, deadline.left_at_most(ATTEMPT_TIMEOUT))
        except NodeUnreachable:
            if deadline.is_over():
                raise
            return False
        with self._swapping:
            if self.connection is broken and not self._closed:
                self.connection = fresh
                return True
        # Another thread has reconnected or closed the client meanwhile.
        fresh.close()
        return True

    def close(self) -> None:
        """End all calls with `Aborted`."""
        with self._swapping:
            self._closed = True
            self.connection.close()
