"""The blocking client."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

import numpy.typing as npt

from hoplite import _hoplite, calls
from hoplite.addresses import NodeLike, socket_of
from hoplite.aio import AsyncClient
from hoplite.creation import Creation
from hoplite.errors import NodeUnreachable
from hoplite.ids import ObjectId, ObjectIdLike
from hoplite.naming import named
from hoplite.nodes import Locations, Status
from hoplite.reduction import Op, Order, ReduceRequest, Reduction
from hoplite.rooms import fresh_room, room_in, torch_room

if TYPE_CHECKING:
    import torch

__all__ = ["Client", "connect"]

Result = TypeVar("Result")


def connect(address_or_socket: NodeLike = None, *, timeout: float | None = 10.0) -> Client:
    """Connect to a node on this host.

    `address_or_socket` is the path of the node's Unix socket (anything with a "/" in it), or the
    port it listens on, as 7420, "7420", ":7420" or "host:7420" with a host that is this one.
    Default: `$HOPLITE_SOCKET`, or else the node on port 7420.

    `timeout` is in seconds, None for ever. Raises `NodeUnreachable`, saying what was tried, if no
    node answers, `VersionMismatch` if it speaks another protocol, and `BadArgument`.
    """
    return Client(socket_of(address_or_socket), timeout=timeout)


class Client:
    """A process's way to the node on its host; made by `connect`.

    Every call takes an `ObjectId` or a name (str). Every blocking call releases the GIL, gives way
    to Ctrl-C at once, and takes `timeout` in seconds (None, the default: for ever); when it is up,
    `TimedOut` is raised and nothing is left behind. A client may be used by several threads at
    once. It cannot be used in a forked child: connect there.
    """

    def __init__(self, socket: str, *, timeout: float | None = 10.0) -> None:
        """Use `connect`."""
        self._socket = socket
        self._connection = _open(socket, timeout)
        self._aio: AsyncClient | None = None

    @property
    def node(self) -> str:
        """The address the node announces, "host:port"."""
        return self._connection.node

    @property
    def socket(self) -> str:
        """The path of the node's Unix socket."""
        return self._socket

    @property
    def aio(self) -> AsyncClient:
        """The asyncio forms of all calls, over a connection of their own."""
        if self._aio is None:
            self._aio = AsyncClient(self._socket)
        return self._aio

    def put(self, value: Any, id: ObjectIdLike | None = None, *, timeout: float | None = None) -> ObjectId:
        """Make `value` an object, pinned here until deleted; returns its id (random by default).

        `value` is anything with one buffer of bytes: a NumPy array of any dtype (but not of Python
        objects) and any shape, a PyTorch CPU tensor (bfloat16 too), an Arrow buffer or an Arrow
        array without nulls, an `array.array`, bytes, a memoryview, ... It is copied once, into the
        store; only what is not C-contiguous is copied before. Receivers everywhere stream behind
        the copying.

        Arrays and tensors keep dtype and shape. Buffers whose items are single bytes (bytes,
        bytearray, Arrow buffers) become plain bytes, which `get` shows as an array of uint8.

        The same id and size again is accepted and stored once. Raises `ObjectExists` (id taken by
        another size), `ObjectDeleted`, `StoreFull` (no room within `timeout`; at once if it can
        never fit), `BadArgument` (no buffer), `TimedOut`.
        """
        ids = [] if id is None else [ObjectId.of(id)]
        return self._run(calls.put(self._connection, value, id, timeout), ids)

    def create(
        self,
        id: ObjectIdLike,
        shape: int | Sequence[int],
        dtype: npt.DTypeLike,
        *,
        timeout: float | None = None,
    ) -> Creation:
        """Reserve a new array's memory in the store, to be filled in place: no copy at all.

        ::

            with client.create("features", (1000, 64), np.float32) as creation:
                model.features(out=creation.array)

        Leaving the with-block seals the object, an exception aborts it. Errors as for `put`.
        """
        draft = self._run(calls.create(self._connection, id, shape, dtype, timeout), [ObjectId.of(id)])
        return Creation(draft, self)

    def get(
        self,
        id: ObjectIdLike,
        *,
        timeout: float | None = None,
        copy: bool = False,
        out: Any = None,
        fail_if_lost: bool = True,
    ) -> Any:
        """The object, whenever it comes to exist: waits for its put and for its bytes.

        By default a read-only NumPy array that lies in the node's shared memory: nothing is
        copied, however large. It keeps its bytes (also after a delete, or after `close`) until it
        and all views of it are garbage. Plain bytes come as one-dimensional uint8.

        `copy=True` returns a writable array in private memory, copied while the bytes arrive.
        `out` (a writable C-contiguous array, tensor or buffer of exactly the object's bytes) is
        filled instead, in the same way, and returned.

        Raises `ObjectDeleted`, `ObjectLost` (its last complete copy died; with
        `fail_if_lost=False` the call waits for a new put instead), `TimedOut`, `StoreFull` (no
        room to bring it here), `Mismatch` (`out` does not fit), `BadArgument` (bad `out`).
        """
        ids = [ObjectId.of(id)]
        if out is None and not copy:
            return self._run(calls.get(self._connection, id, timeout, fail_if_lost), ids)
        room = fresh_room if out is None else room_in(out)
        return self._run(calls.get_copy(self._connection, id, timeout, room, fail_if_lost, partial=True), ids)

    def get_torch(
        self, id: ObjectIdLike, *, timeout: float | None = None, fail_if_lost: bool = True
    ) -> torch.Tensor:
        """As `get(copy=True)`, into a new PyTorch CPU tensor (bfloat16 too).

        A copy, because PyTorch knows no read-only tensors. Raises `Mismatch` for other dtypes
        than PyTorch's.
        """
        steps = calls.get_copy(self._connection, id, timeout, torch_room, fail_if_lost, partial=True)
        tensor: torch.Tensor = self._run(steps, [ObjectId.of(id)])
        return tensor

    def put_object(
        self, value: Any, id: ObjectIdLike | None = None, *, timeout: float | None = None
    ) -> ObjectId:
        """Pickle any Python object (protocol 5) and put that; buffers inside are copied only once.

        Raises what `pickle.dumps` raises, and what `put` raises.
        """
        ids = [] if id is None else [ObjectId.of(id)]
        return self._run(calls.put_object(self._connection, value, id, timeout), ids)

    def get_object(self, id: ObjectIdLike, *, timeout: float | None = None, fail_if_lost: bool = True) -> Any:
        """Unpickle an object put by `put_object`; waits as `get` does.

        Arrays and other buffers inside it are read-only views of shared memory, not copied.
        Unpickling runs code the writer chose: only for clusters you trust. Raises what `get`
        raises, and `Mismatch` for an object that was not put by `put_object`.
        """
        steps = calls.get_object(self._connection, id, timeout, fail_if_lost)
        return self._run(steps, [ObjectId.of(id)])

    def delete(self, ids: ObjectIdLike | Iterable[ObjectIdLike], *, timeout: float | None = None) -> None:
        """Delete objects (one id, or many): all copies, everywhere.

        Running transfers of them are aborted; views that processes hold stay readable. Gets and
        puts of a deleted id raise `ObjectDeleted` for ten minutes. Deleting what does not exist
        (yet) is no error.
        """
        chosen = calls.ids_of(ids)
        self._run(calls.delete(self._connection, chosen, timeout), chosen)

    def reduce(
        self,
        sources: Sequence[ObjectIdLike],
        *,
        target: ObjectIdLike | None = None,
        num_objects: int | None = None,
        op: Op = "sum",
        order: Order = "arrival",
        timeout: float | None = None,
    ) -> Reduction:
        """Start reducing the first `num_objects` of `sources` that come to exist (default: all).

        Sources are arrays of one shape and dtype (float16, bfloat16, float32, float64, signed and
        unsigned integers), wherever they are, put before or after this call; results of other
        reductions may be among them, finished or not. The result becomes the object `target`
        (random id by default), of the same shape and dtype.

        Returns at once; `timeout` bounds the whole reduction. Raises `BadArgument` for a repeated
        source, an unknown `op` or `order`, or an impossible `num_objects`; the other errors come
        from `Reduction.result`.
        """
        request = ReduceRequest(sources, target, num_objects, op, order, to_sources=False)
        return self._reduce(request, timeout)

    def allreduce(
        self,
        sources: Sequence[ObjectIdLike],
        *,
        target: ObjectIdLike | None = None,
        num_objects: int | None = None,
        op: Op = "sum",
        order: Order = "arrival",
        timeout: float | None = None,
    ) -> Reduction:
        """As `reduce`; besides, the result is brought to every node that gave a source.

        It streams there while it is being reduced: a `get` of it on those nodes finds it there.
        """
        request = ReduceRequest(sources, target, num_objects, op, order, to_sources=True)
        return self._reduce(request, timeout)

    def wait(
        self, ids: Iterable[ObjectIdLike], num_ready: int | None = None, timeout: float | None = None
    ) -> tuple[list[ObjectId], list[ObjectId]]:
        """Wait until `num_ready` (default: all) of `ids` are complete somewhere.

        Returns (ready, not ready), each in the order of `ids`; when `timeout` is up, as things
        are then. Raises `ObjectDeleted` if one of them is deleted before enough are ready.
        """
        chosen = calls.ids_of(ids)
        return self._run(calls.wait(self._connection, chosen, num_ready, timeout), chosen)

    def prefetch(
        self,
        ids: ObjectIdLike | Iterable[ObjectIdLike],
        nodes: str | Iterable[str] = (),
        *,
        timeout: float | None = None,
    ) -> None:
        """Ask that objects be brought to `nodes` ("host:port" each; default: this one).

        Returns at once. Raises `BadArgument` for a node that is not a member.
        """
        chosen = calls.ids_of(ids)
        self._run(calls.prefetch(self._connection, chosen, nodes, timeout), chosen)

    def locations(self, id: ObjectIdLike, *, timeout: float | None = None) -> Locations:
        """Who has the object, and how far. Raises `ObjectDeleted`."""
        return self._run(calls.locations(self._connection, id, timeout), [ObjectId.of(id)])

    def status(self, *, timeout: float | None = None) -> Status:
        """What the node says of itself: members, store use, traffic."""
        return self._run(calls.status(self._connection, timeout), [])

    def close(self) -> None:
        """Disconnect; running calls raise `Aborted`. May be called twice.

        Arrays got before stay readable, and keep the connection itself: with the last of them,
        reductions that were started here and are still running end.
        """
        self._connection.close()
        if self._aio is not None:
            self._aio.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<hoplite.Client of node {self.node} at {self._socket}>"

    def _reduce(self, request: ReduceRequest, timeout: float | None) -> Reduction:
        with named([request.target, *request.sources]):
            ticket = request.send(self._connection, timeout)
        return Reduction(request, ticket, self)

    def _run(self, steps: calls.Steps[Result], ids: Iterable[ObjectId]) -> Result:
        """Take the steps of a call, here and now."""
        with named(ids):
            try:
                step = next(steps)
                while True:
                    try:
                        value = step.do() if isinstance(step, calls.Work) else step.wait()
                    except BaseException as error:
                        step = steps.throw(error)
                    else:
                        step = steps.send(value)
            except StopIteration as end:
                result: Result = end.value
                return result

    def _settle(self, ticket: _hoplite.Ticket, ids: Iterable[ObjectId]) -> Any:
        with named(ids):
            return ticket.wait()

    def _is_done(self, ticket: _hoplite.Ticket) -> bool:
        self._connection.pump()
        return ticket.done()

    def _ready_within(self, ticket: _hoplite.Ticket, timeout: float | None) -> bool:
        """Whether the answer came in time; the call goes on if not."""
        return ticket.ready_within(calls.Deadline(timeout).left())


def _open(socket: str, timeout: float | None) -> _hoplite.Connection:
    try:
        return _hoplite.Connection(socket, timeout)
    except NodeUnreachable as error:
        hint = "is a node running here? `hoplite node` starts one"
        raise NodeUnreachable(f"no node answers at {socket}: {error} ({hint})") from None
