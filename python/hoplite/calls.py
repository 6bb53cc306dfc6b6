"""All calls, written once for the blocking and the asyncio client.

A call is a generator. It yields the steps that take time, and receives their values:

- `Ticket`: wait for an answer of the node.
- `Work`: copy bytes.
- `Tell`: call the caller's function.

`Client` runs the steps on the calling thread, `AsyncClient` awaits them. Puts and gets of small arrays take
few steps in Python. When a process has slept, its code and data have left the caches, and a step then takes
ten times as long as in a loop.
"""

from __future__ import annotations

import inspect
import operator
import time
from collections.abc import Callable, Generator, Iterable, Sequence
from typing import Any, TypeVar

import numpy.typing as npt

from hoplite import _hoplite
from hoplite._hoplite import PICKLE
from hoplite.creation import Reserved
from hoplite.destinations import Destination
from hoplite.errors import BadArgument, Mismatch, ObjectLost
from hoplite.ids import ObjectId, ObjectIdLike
from hoplite.nodes import Gauge, Link, Location, Locations, Status
from hoplite.on_lost import OnLost, checked_on_lost
from hoplite.pickling import pickled, unpickle
from hoplite.reduction import ReduceRequest, ReduceResult
from hoplite.timeouts import Deadline
from hoplite.values import Header, Payload, array_header, array_of, as_array, payload_of

Result = TypeVar("Result")


class Work:
    """Bytes to copy. This may take long, so it must not block an event loop."""

    def __init__(self, size: int, do: Callable[[], Any], stop: Callable[[], None]) -> None:
        self.size = size
        """In bytes. `AsyncClient` copies small sizes without a thread."""
        self.wait = do
        """Does the copying on the calling thread."""
        self.stop = stop
        """Makes a `wait` that runs in another thread raise soon."""


class Tell:
    """A call of the caller's `on_lost` function with the id of a lost object."""

    def __init__(self, told: Callable[[ObjectId], object], id: ObjectId) -> None:
        self._told = told
        self._id = id

    def do(self) -> object:
        """Call the function. Its result matters only if it is an awaitable."""
        return self._told(self._id)

    def wait(self) -> None:
        """Call the function on this thread. Raises `BadArgument` if its result is a coroutine."""
        told = self.do()
        if inspect.iscoroutine(told):
            told.close()
            raise BadArgument("on_lost is a coroutine function; only the calls of client.aio await it")


Step = _hoplite.Ticket | Work | Tell
Steps = Generator[Step, Any, Result]


def put(
    connection: _hoplite.Connection, value: Any, id: ObjectIdLike | None, timeout: float | None
) -> Steps[ObjectId]:
    object_id = ObjectId.random() if id is None else ObjectId.of(id)
    ticket = connection.put_array(object_id, value, timeout)
    if ticket is not None:
        yield ticket
        return object_id
    return (yield from _put(connection, payload_of(value), object_id, timeout))


def put_object(
    connection: _hoplite.Connection, value: Any, id: ObjectIdLike | None, timeout: float | None
) -> Steps[ObjectId]:
    payload = pickled(value)
    object_id = ObjectId.random() if id is None else ObjectId.of(id)
    return (yield from _put(connection, payload, object_id, timeout))


def _put(
    connection: _hoplite.Connection, payload: Payload, id: ObjectId, timeout: float | None
) -> Steps[ObjectId]:
    header, parts = payload
    deadline = Deadline(timeout)
    writing = yield connection.put(id, header, parts, timeout)
    if writing is None:
        return id
    try:
        yield Work(sum(part.nbytes for part in parts), lambda: writing.write(parts), writing.stop)
        yield writing.seal(deadline.left())
    except BaseException:
        writing.abort()
        raise
    return id


def _copy_out(arriving: _hoplite.Arriving, memory: Any, deadline: Deadline) -> Work:
    return Work(arriving.size, lambda: arriving.copy_into(memory, deadline.left()), arriving.stop)


def create(
    connection: _hoplite.Connection,
    id: ObjectIdLike,
    shape: int | Sequence[int],
    dtype: npt.DTypeLike,
    timeout: float | None,
) -> Steps[Reserved]:
    object_id = ObjectId.of(id)
    header, size = array_header(shape, dtype)
    writing = yield connection.create(object_id, header, size, timeout)
    buffer = bytearray(size) if writing is None else writing
    return Reserved(object_id, as_array(header, buffer, size), writing)


def get(
    connection: _hoplite.Connection, id: ObjectIdLike, timeout: float | None, on_lost: OnLost
) -> Steps[npt.NDArray[Any]]:
    return _get(connection, id, timeout, on_lost, array_of)


def get_object(
    connection: _hoplite.Connection, id: ObjectIdLike, timeout: float | None, on_lost: OnLost
) -> Steps[Any]:
    def read(view: Any) -> Any:
        if Header(*view.header).encoding != PICKLE:
            raise Mismatch(f"{ObjectId.of(id)!r} was not put by put_object; use get")
        return unpickle(memoryview(view))

    return _get(connection, id, timeout, on_lost, read)


def _get(
    connection: _hoplite.Connection,
    id: ObjectIdLike,
    timeout: float | None,
    on_lost: OnLost,
    read: Callable[[_hoplite.View], Result],
) -> Steps[Result]:
    checked_on_lost(on_lost)
    left, began = timeout, time.monotonic()
    while True:
        try:
            found = connection.get(id, left, on_lost != "wait")
            view = found if isinstance(found, _hoplite.View) else (yield found)
        except ObjectLost:
            if not callable(on_lost):
                raise
        else:
            return read(view)
        # The caller's function is called once only.
        yield Tell(on_lost, ObjectId.of(id))
        on_lost, left = "wait", Deadline(timeout, began).left()


def get_copy(
    connection: _hoplite.Connection,
    id: ObjectIdLike,
    timeout: float | None,
    destination: Destination,
    on_lost: OnLost,
    *,
    partial: bool,
) -> Steps[Any]:
    """`partial`: copy while the bytes arrive. A step of `Work` may then wait for bytes."""
    checked_on_lost(on_lost)
    deadline = Deadline(timeout)
    while True:
        try:
            arriving = yield connection.get_copy(id, deadline.left(), partial, on_lost != "wait")
            try:
                result, memory = destination(Header(*arriving.header), arriving.size)
                if (yield _copy_out(arriving, memory, deadline)):
                    return result
                # The writer has abandoned this edition. Copy the next edition from its start.
                continue
            finally:
                arriving.release()
        except ObjectLost:
            if not callable(on_lost):
                raise
        yield Tell(on_lost, ObjectId.of(id))
        on_lost = "wait"


def delete(connection: _hoplite.Connection, ids: Iterable[ObjectId], timeout: float | None) -> Steps[None]:
    yield connection.delete(list(ids), timeout)


def reduce(
    connection: _hoplite.Connection, request: ReduceRequest, timeout: float | None
) -> Steps[ReduceResult]:
    return request.result((yield request.send(connection, timeout)))


def answer(ticket: _hoplite.Ticket) -> Steps[Any]:
    """Wait for the answer to a call that was sent before."""
    return (yield ticket)


def wait(
    connection: _hoplite.Connection,
    ids: Sequence[ObjectId],
    num_ready: int | None,
    timeout: float | None,
    on_lost: OnLost,
) -> Steps[tuple[list[ObjectId], list[ObjectId]]]:
    count = len(ids) if num_ready is None else operator.index(num_ready)
    if not 0 <= count <= len(ids):
        raise BadArgument(f"num_ready is 0 to the number of ids ({len(ids)}), not {count}")
    answer = checked_on_lost(on_lost)
    deadline = Deadline(timeout)
    lost: list[ObjectId] = []
    while True:
        try:
            found = set((yield connection.wait(ids, count, deadline.left(), answer != "wait", lost)))
        except ObjectLost as error:
            if not callable(answer):
                raise
            lost += [id for id in ids if id == error.object_id]
        else:
            return [id for id in ids if id in found], [id for id in ids if id not in found]
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
    yield connection.prefetch(ids, chosen, timeout)


def locations(connection: _hoplite.Connection, id: ObjectIdLike, timeout: float | None) -> Steps[Locations]:
    size, copies = yield connection.locate(id, timeout)
    return Locations(size, tuple(Location(*copy) for copy in copies))


def status(connection: _hoplite.Connection, timeout: float | None) -> Steps[Status]:
    fields = yield connection.status(timeout)
    fields["members"] = tuple(address for address, _ in fields["members"])
    fields["links"] = tuple(_link(*link) for link in fields["links"])
    fields["gauges"] = tuple(Gauge(*gauge) for gauge in fields["gauges"])
    return Status(**fields)


def _link(peer: str, latency_ns: int, bytes_per_s: int) -> Link:
    # 0 on the wire stands for "not yet measured".
    return Link(peer, latency_ns / 1e9 if latency_ns else None, float(bytes_per_s) if bytes_per_s else None)


def ids_of(ids: ObjectIdLike | Iterable[ObjectIdLike]) -> list[ObjectId]:
    """One id or many, as a list."""
    if isinstance(ids, ObjectId | str):
        return [ObjectId.of(ids)]
    return [ObjectId.of(id) for id in ids]
