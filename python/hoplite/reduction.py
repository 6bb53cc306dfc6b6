"""A reduction on the side of its caller: request, running reduction and result."""

from __future__ import annotations

import operator
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from hoplite.errors import BadArgument, HopliteError, TimedOut
from hoplite.ids import ObjectId, ObjectIdLike
from hoplite.timeouts import Deadline

if TYPE_CHECKING:
    from hoplite import _hoplite
    from hoplite.session import Session

__all__ = ["Op", "Order", "ReduceResult", "Reduction"]

Op = Literal["sum", "prod", "min", "max", "mean"]
"""How two elements are combined. Integers wrap and NaN propagates as in NumPy. "mean" is for floats only."""

Order = Literal["arrival", "fixed"]
"""The order in which sources are folded. "arrival" folds them as they arrive, which is fastest. "fixed" folds
them in the order of the list, which makes the result bitwise the same on every run."""


@dataclass(frozen=True, slots=True)
class ReduceResult:
    """A finished reduction."""

    target: ObjectId
    """The id of the result, an object like any other."""
    sources: tuple[ObjectId, ...]
    """The sources in the result, in fold order."""
    unreduced: tuple[ObjectId, ...]
    """The other sources, in the order of the call. They may be sources of the next reduction."""


class ReduceRequest:
    """The checked arguments of `reduce` and `allreduce`."""

    def __init__(
        self,
        sources: Sequence[ObjectIdLike],
        target: ObjectIdLike | None,
        num_objects: int | None,
        op: str,
        order: str,
        to_sources: bool,
    ) -> None:
        self.sources = [ObjectId.of(source) for source in sources]
        self.target = ObjectId.random() if target is None else ObjectId.of(target)
        self._count = len(self.sources) if num_objects is None else operator.index(num_objects)
        self._op = op
        self._order = order
        self._to_sources = to_sources
        if not 1 <= self._count <= len(self.sources):
            raise BadArgument(
                f"num_objects is 1 to the number of sources ({len(self.sources)}), not {self._count}"
            )
        # The node checks this too, but its message has no names.
        seen = {self.target}
        for source in self.sources:
            if source in seen:
                what = "the target" if source == self.target else "listed twice"
                raise BadArgument(f"the source {source.name or source.hex()!r} is {what}")
            seen.add(source)

    def send(self, connection: _hoplite.Connection, timeout: float | None) -> _hoplite.Ticket:
        return connection.reduce(
            self.target,
            self.sources,
            self._count,
            self._op,
            self._order,
            self._to_sources,
            timeout,
        )

    def result(self, ids: Sequence[ObjectId]) -> ReduceResult:
        # The ids in the node's answer have no names. Return the caller's ids.
        known = {source: source for source in self.sources}
        went_in = set(ids)
        return ReduceResult(
            self.target,
            tuple(known[source] for source in ids),
            tuple(source for source in self.sources if source not in went_in),
        )


class Reduction:
    """A running reduction. `Client.reduce` returns it at once.

    It goes on even if `result` is never called, as long as the client that started it stays open. Deleting
    the target ends it. The target can be got, and reduced further, at any time.
    """

    def __init__(self, request: ReduceRequest, ticket: _hoplite.Ticket, session: Session) -> None:
        self._request = request
        self._ticket = ticket
        self._session = session
        self._result: ReduceResult | None = None
        self._error: HopliteError | None = None
        # Held while the answer is taken, never during the wait for it.
        self._taking = threading.Lock()

    @property
    def target(self) -> ObjectId:
        """The id of the result."""
        return self._request.target

    def done(self) -> bool:
        """Whether `result` would return (or raise the reduction's error) at once."""
        return self._result is not None or self._error is not None or self._session.is_done(self._ticket)

    def result(self, timeout: float | None = None) -> ReduceResult:
        """Wait until the reduction is complete and its target sealed.

        `timeout` is in seconds (None: as long as the `timeout` of `reduce` allows). When it is up, this
        raises `TimedOut`; the reduction goes on, and `result` may be called again.

        If the reduction has failed, this raises its error:

        - `Mismatch`: sizes or dtypes differ.
        - `ObjectDeleted`: too many sources are gone.
        - `TimedOut`: the `timeout` of `reduce` is up.
        - `StoreFull`, `NodeUnreachable`.
        - `ObjectLost`: the result died with its node before another node had it. Reduce again, under
          another target.
        """
        if self._error is not None:
            raise self._error
        if self._result is None:
            # The answer is taken only when it has come. An interrupted wait (Ctrl-C, for one) must not
            # cancel the call.
            limit = self._ticket.limit
            if timeout is None or (limit is not None and limit < timeout):
                self._ready_within(limit)
            elif not self._ready_within(timeout):
                raise TimedOut(
                    f"the reduction to {self.target!r} is not complete after {timeout} s; it goes on"
                )
            with self._taking:
                self._take()
        if self._error is not None:
            raise self._error
        assert self._result is not None
        return self._result

    def _ready_within(self, timeout: float | None) -> bool:
        try:
            return self._ticket.ready_within(Deadline(timeout).left())
        except BadArgument:
            with self._taking:
                if self._result is None and self._error is None:
                    raise
            # Another thread has taken the answer in the meantime.
            return True

    def _take(self) -> None:
        """Take the answer, unless another thread has taken it before."""
        if self._result is not None or self._error is not None:
            return
        ids = [self.target, *self._request.sources]
        try:
            self._result = self._request.result(self._session.settle(self._ticket, ids))
        except HopliteError as error:
            self._error = error

    def __repr__(self) -> str:
        return f"<Reduction to {self.target!r}: {'done' if self.done() else 'running'}>"
