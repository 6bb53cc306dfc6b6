"""Writes an object in place: `create` it, fill it, `seal` it."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy.typing as npt

from hoplite.errors import BadArgument
from hoplite.ids import ObjectId
from hoplite.timeouts import DEFAULT, Timeout

if TYPE_CHECKING:
    from hoplite import _hoplite
    from hoplite.aio_session import AioSession
    from hoplite.session import Session

__all__ = ["AsyncCreation", "Creation"]


class Reserved(NamedTuple):
    """Memory for an object that will be written in place. `writing` is None if the node has the object."""

    id: ObjectId
    array: npt.NDArray[Any]
    writing: _hoplite.Writing | None


class Draft:
    """An object that is being written in place. It is the common part of `Creation` and `AsyncCreation`."""

    def __init__(self, reserved: Reserved) -> None:
        self._id, self._array, self._writing = reserved
        self._open = True

    @property
    def id(self) -> ObjectId:
        """The object's id."""
        return self._id

    @property
    def array(self) -> npt.NDArray[Any]:
        """The object's memory as an array of the given shape and dtype. Its first contents are undefined.

        It is writable until the object is sealed or aborted. Do not write after that through earlier
        views (slices, memoryviews, tensors): readers rely on a sealed object never changing.

        As with an array of `get`, the bytes stay until the array, all views of it and this creation are
        garbage. This holds even when the object is aborted or deleted, and after `close`. Until then no
        other object gets this room in the store. References in a forked child do not count: see
        docs/fault-tolerance.md.
        """
        return self._array

    @property
    def already_there(self) -> bool:
        """Whether the node has the complete object already, as when a task is re-executed.

        If so, `array` is private memory, and writes to it have no effect on the object.
        """
        return self._writing is None

    def advance(self, nbytes: int) -> None:
        """Declare the first `nbytes` bytes final, so that receivers and reductions may read them.

        `nbytes` counts from the start of the object and never decreases. The call is optional: `seal`
        declares all bytes final.
        """
        if not self._open:
            raise BadArgument(f"{self._id!r} is sealed or aborted already")
        if self._writing is not None:
            self._writing.advance(nbytes)

    def _close(self) -> _hoplite.Writing | None:
        """Mark the draft as closed: it can no longer be written, sealed or aborted."""
        if not self._open:
            raise BadArgument(f"{self._id!r} is sealed or aborted already")
        self._open = False
        self._array.flags.writeable = False
        return self._writing

    def abort(self) -> None:
        """Withdraw the object. Calls that wait for it go on waiting. A second `abort` does nothing."""
        if self._open:
            writing = self._close()
            if writing is not None:
                writing.abort()


class Creation(Draft):
    """A new object's writable memory in the store. `Client.create` returns it.

    It is a context manager: leaving the with-block seals the object, an exception aborts it. If this process
    dies before that, the object is withdrawn.
    """

    def __init__(self, reserved: Reserved, session: Session) -> None:
        super().__init__(reserved)
        self._session = session

    def seal(self, *, timeout: Timeout = DEFAULT) -> ObjectId:
        """Declare that all bytes are written and the object is complete.

        Raises the errors of `put`. After an error the object is withdrawn.
        """
        writing = self._close()
        if writing is not None:
            try:
                self._session.settle(writing.seal(self._session.seconds(timeout)), [self._id])
            except BaseException:
                writing.abort()
                raise
        return self._id

    def __enter__(self) -> Creation:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            self.abort()
        elif self._open:
            self.seal()


def sealer(creation: Creation) -> Callable[[npt.NDArray[Any]], ObjectId]:
    """A function that seals the object, given its array. It does not keep the array alive."""
    id, writing, session = creation._id, creation._writing, creation._session
    return lambda array: Creation(Reserved(id, array, writing), session).seal()


class AsyncCreation(Draft):
    """As `Creation`, for asyncio. Use: `async with await client.aio.create(...) as creation`."""

    def __init__(self, reserved: Reserved, session: AioSession) -> None:
        super().__init__(reserved)
        self._session = session

    async def seal(self, *, timeout: Timeout = DEFAULT) -> ObjectId:
        """As `Creation.seal`."""
        writing = self._close()
        if writing is not None:
            try:
                await self._session.settle(writing.seal(self._session.seconds(timeout)), [self._id])
            except BaseException:
                writing.abort()
                raise
        return self._id

    async def __aenter__(self) -> AsyncCreation:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            self.abort()
        elif self._open:
            await self.seal()
