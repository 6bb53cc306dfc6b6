"""Every call once, for both clients.

A call is a generator: it yields the steps that take time, a `Ticket` (an answer of the node to
wait for), `Work` (bytes to copy) or `Tell` (the caller's own function), and is sent each step's
value. `Client` takes the steps on the calling thread, `AsyncClient` awaits them; neither knows what
a call does.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Sequence
from typing import Any, TypeVar

import numpy.typing as npt

from hoplite import _hoplite
from hoplite.creation import Draft
from hoplite.errors import BadArgument, Mismatch, ObjectLost
from hoplite.ids import ObjectId, ObjectIdLike
from hoplite.losses import OnLost, checked_on_lost
from hoplite.nodes import Link, Location, Locations, Status
from hoplite.pickling import Pickled, unpickle
from hoplite.rooms import RoomMaker
from hoplite.timeouts import Deadline
from hoplite.values import PICKLE, Header, array_header, as_array, payload_of

Result = TypeVar("Result")


class Work:
    """Bytes to copy: may take long, so it runs off an event loop."""

    def __init__(self, size: int, do: Callable[[], Any], stop: Callable[[], None]) -> None:
        self.size = size
        """Bytes, so that a driver can tell what is not worth a thread."""
        self.do = do
        self.stop = stop
        """Makes `do`, running in another thread, raise soon."""


class Tell:
    """The caller's function, to be told of an object that is lost."""

    def __init__(self, told: Callable[[ObjectId], object], id: ObjectId) -> None:
        self._told = told
        self._id = id

    def do(self) -> object:
        """What the function returns: nothing of interest, unless it is to be awaited."""
        return self._told(self._id)


Step = _hoplite.Ticket | Work | Tell
Steps = Generator[Step, Any, Result]


def put(
    connection: _hoplite.Connection, value: Any, id: ObjectIdLike | None, timeout: float | None
) -> Steps[ObjectId]:
    header, data = payload_of(value)
    return (yield from _put(connection, header, data.nbytes, [(0, data)], id, timeout))


def put_object(
    connection: _hoplite.Connection, value: Any, id: ObjectIdLike | None, timeout: float | None
) -> Steps[ObjectId]:
    pickled = Pickled(value)
    header = Header(encoding=PICKLE)
    return (yield from _put(connection, header, pickled.size, pickled.pieces(), id, timeout))


def _put(
    connection: _hoplite.Connection,
    header: Header,
    size: int,
    pieces: Sequence[tuple[int, Any]],
    id: ObjectIdLike | None,
    timeout: float | None,
) -> Steps[ObjectId]:
    object_id = ObjectId.random() if id is None else ObjectId.of(id)
    if size <= _hoplite.INLINE_BYTES_MAX:
        whole = b"".join(piece for _, piece in pieces)
        yield connection.put_small(bytes(object_id), header, whole, timeout)
        return object_id
    deadline = Deadline(timeout)
    writing = yield connection.create(bytes(object_id), header, size, timeout)
    if writing is None:
        return object_id
    try:
        for offset, piece in pieces:
            yield _copy_in(writing, offset, piece)
        yield writing.seal(deadline.left())
    except BaseException:
        writing.abort()
        raise
    return object_id


def _copy_in(writing: _hoplite.Writing, offset: int, piece: Any) -> Work:
    return Work(len(piece), lambda: writing.write(offset, piece), writing.stop)


def _copy_out(arriving: _hoplite.Arriving, room: Any, deadline: Deadline) -> Work:
    return Work(arriving.size, lambda: arriving.copy_into(room, deadline.left()), arriving.stop)


def create(
    connection: _hoplite.Connection,
    id: ObjectIdLike,
    shape: int | Sequence[int],
    dtype: npt.DTypeLike,
    timeout: float | None,
) -> Steps[Draft]:
    object_id = ObjectId.of(id)
    extents = (shape,) if isinstance(shape, int) else tuple(shape)
    header, size = array_header(extents, dtype)
    writing = yield connection.create(bytes(object_id), header, size, timeout)
    buffer = bytearray(size) if writing is None else writing
    return Draft(object_id, as_array(header, buffer, size), writing)


def get(
    connection: _hoplite.Connection, id: ObjectIdLike, timeout: float | None, on_lost: OnLost
) -> Steps[npt.NDArray[Any]]:
    view = yield from _view(connection, ObjectId.of(id), timeout, on_lost)
    return as_array(Header(*view.header), view, view.size)


def get_copy(
    connection: _hoplite.Connection,
    id: ObjectIdLike,
    timeout: float | None,
    make_room: RoomMaker,
    on_lost: OnLost,
    partial: bool,
) -> Steps[Any]:
    """`partial`: copy while the bytes arrive, so that a step of Work may wait for them."""
    object_id = ObjectId.of(id)
    deadline = Deadline(timeout)
    loss = _Loss(object_id, on_lost)
    while True:
        try:
            arriving = yield connection.get_copy(
                bytes(object_id), deadline.left(), partial, loss.is_of_interest
            )
            try:
                result, room = make_room(Header(*arriving.header), arriving.size)
                if (yield _copy_out(arriving, room, deadline)):
                    return result
                # That writing of it was abandoned half-way; the next one begins from its start.
            finally:
                arriving.release()
        except ObjectLost as error:
            yield from loss.survive(error)


def get_object(
    connection: _hoplite.Connection, id: ObjectIdLike, timeout: float | None, on_lost: OnLost
) -> Steps[Any]:
    object_id = ObjectId.of(id)
    view = yield from _view(connection, object_id, timeout, on_lost)
    if Header(*view.header).encoding != PICKLE:
        raise Mismatch(f"{object_id!r} was not put by put_object; use get")
    return unpickle(memoryview(view))


def _view(
    connection: _hoplite.Connection, id: ObjectId, timeout: float | None, on_lost: OnLost
) -> Steps[Any]:
    """The object's `View`."""
    deadline = Deadline(timeout)
    loss = _Loss(id, on_lost)
    while True:
        try:
            found = connection.get(bytes(id), deadline.left(), loss.is_of_interest)
            return found if isinstance(found, _hoplite.View) else (yield found)
        except ObjectLost as error:
            yield from loss.survive(error)


class _Loss:
    """What a get does when its object is lost; the caller is told once."""

    def __init__(self, id: ObjectId, on_lost: OnLost) -> None:
        self._id = id
        self._on_lost = checked_on_lost(on_lost)

    @property
    def is_of_interest(self) -> bool:
        """Whether the get is to hear of it."""
        return self._on_lost != "wait"

    def survive(self, error: ObjectLost) -> Steps[None]:
        """Tell the caller, who wants it so; else raise `error`."""
        if not callable(self._on_lost):
            raise error
        told, self._on_lost = self._on_lost, "wait"
        yield Tell(told, self._id)


def delete(connection: _hoplite.Connection, ids: Iterable[ObjectId], timeout: float | None) -> Steps[None]:
    yield connection.delete([bytes(id) for id in ids], timeout)


def wait(
    connection: _hoplite.Connection,
    ids: Sequence[ObjectId],
    num_ready: int | None,
    timeout: float | None,
    on_lost: OnLost,
) -> Steps[tuple[list[ObjectId], list[ObjectId]]]:
    count = len(ids) if num_ready is None else num_ready
    if not 0 <= count <= len(ids):
        raise BadArgument(f"num_ready is 0 to the number of ids ({len(ids)}), not {count}")
    answer = checked_on_lost(on_lost)
    deadline = Deadline(timeout)
    raw = [bytes(id) for id in ids]
    lost: list[ObjectId] = []
    while True:
        known = [bytes(id) for id in lost]
        try:
            found = set((yield connection.wait(raw, count, deadline.left(), answer != "wait", known)))
        except ObjectLost as error:
            if not callable(answer):
                raise
            lost += [id for id in ids if id == error.object_id]
        else:
            ready = [id for id in ids if bytes(id) in found]
            return ready, [id for id in ids if bytes(id) not in found]
        yield Tell(answer, lost[-1])


def prefetch(
    connection: _hoplite.Connection, ids: Sequence[ObjectId], nodes: Iterable[str], timeout: float | None
) -> Steps[None]:
    chosen = []
    wanted = [nodes] if isinstance(nodes, str) else list(nodes)
    if wanted:
        members = dict((yield connection.status(timeout))["members"])
        unknown = [address for address in wanted if address not in members]
        if unknown:
            raise BadArgument(f"{', '.join(unknown)}: not among the nodes {', '.join(members)}")
        chosen = [(address, members[address]) for address in wanted]
    yield connection.prefetch([bytes(id) for id in ids], chosen, timeout)


def locations(connection: _hoplite.Connection, id: ObjectIdLike, timeout: float | None) -> Steps[Locations]:
    size, copies = yield connection.locate(bytes(ObjectId.of(id)), timeout)
    return Locations(size, tuple(Location(*copy) for copy in copies))


def status(connection: _hoplite.Connection, timeout: float | None) -> Steps[Status]:
    fields = yield connection.status(timeout)
    fields["members"] = tuple(address for address, _ in fields["members"])
    fields["links"] = tuple(_link(*link) for link in fields["links"])
    return Status(**fields)


def _link(peer: str, latency_ns: int, bytes_per_s: int) -> Link:
    # 0 on the wire: not yet measured.
    return Link(peer, latency_ns / 1e9 if latency_ns else None, float(bytes_per_s) if bytes_per_s else None)


def ids_of(ids: ObjectIdLike | Iterable[ObjectIdLike]) -> list[ObjectId]:
    """One id or many, as a list."""
    if isinstance(ids, ObjectId | str):
        return [ObjectId.of(ids)]
    return [ObjectId.of(id) for id in ids]
