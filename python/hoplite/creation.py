"""Writes an object in place: `create`, fill, `seal`."""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING, Any

import numpy.typing as npt

from hoplite.errors import BadArgument
from hoplite.ids import ObjectId
from hoplite.timeouts import DEFAULT, Timeout

if TYPE_CHECKING:
    from hoplite import _hoplite
    from hoplite.aio import AsyncClient
    from hoplite.client import Client

__all__ = ["AsyncCreation", "Creation"]


class Draft:
    """An object being written in place: the common part of both forms of `Creation`."""

    def __init__(self, id: ObjectId, array: npt.NDArray[Any], writing: _hoplite.Writing | None) -> None:
        self._id = id
        self._array = array
        self._writing = writing
        self._open = True

    @property
    def id(self) -> ObjectId:
        """The object's id."""
        return self._id

    @property
    def array(self) -> npt.NDArray[Any]:
        """The object's memory, of the shape and dtype given, contents undefined at first.

        Writable until sealed or aborted. Do not write after that through views made before (slices,
        memoryviews, tensors): others rely on a sealed object never changing.

        It keeps its bytes, as an array of `get` does, until it, all views of it and this creation are
        garbage: also when the object is aborted or deleted, and after `close`. Until then its room in
        the store goes to no other object. A forked child does not count: see docs/fault-tolerance.md.
        """
        return self._array

    @property
    def already_there(self) -> bool:
        """The node has the complete object already (a re-executed task made it again).

        Then `array` is private memory, and what is written to it goes nowhere.
        """
        return self._writing is None

    def advance(self, nbytes: int) -> None:
        """Declare the first `nbytes` bytes final: receivers and reductions may read up to there.

        Counts from the start of the object and never goes back. Optional: `seal` declares all.
        """
        if not self._open:
            raise BadArgument(f"{self._id!r} is sealed or aborted already")
        if self._writing is not None:
            self._writing.advance(nbytes)

    def _close(self) -> _hoplite.Writing | None:
        """From here on it can be neither written, sealed nor aborted."""
        if not self._open:
            raise BadArgument(f"{self._id!r} is sealed or aborted already")
        self._open = False
        self._array.flags.writeable = False
        return self._writing

    def abort(self) -> None:
        """Withdraw the object; those who wait for it wait on. A second call does nothing."""
        if self._open:
            writing = self._close()
            if writing is not None:
                writing.abort()


class Creation(Draft):
    """A new object's writable memory in the store. `Client.create` returns it.

    A context manager: leaving the with-block seals the object, an exception aborts it. If this process dies
    before that, the object is withdrawn.
    """

    def __init__(self, draft: Draft, client: Client) -> None:
        super().__init__(draft._id, draft._array, draft._writing)
        self._client = client

    def seal(self, *, timeout: Timeout = DEFAULT) -> ObjectId:
        """Declare all bytes written, and the object complete.

        Raises the errors of `put`. After an error the object is withdrawn.
        """
        writing = self._close()
        if writing is not None:
            try:
                self._client._settle(writing.seal(self._client._seconds(timeout)), [self._id])
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


class AsyncCreation(Draft):
    """As `Creation`, for asyncio: `async with await client.aio.create(...) as creation`."""

    def __init__(self, draft: Draft, client: AsyncClient) -> None:
        super().__init__(draft._id, draft._array, draft._writing)
        self._client = client

    async def seal(self, *, timeout: Timeout = DEFAULT) -> ObjectId:
        """As `Creation.seal`."""
        writing = self._close()
        if writing is not None:
            try:
                await self._client._settle(writing.seal(self._client._seconds(timeout)), [self._id])
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
