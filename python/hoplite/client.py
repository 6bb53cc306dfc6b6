"""The blocking client."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any

import numpy.typing as npt

from hoplite import calls
from hoplite.addresses import NodeLike, socket_of
from hoplite.aio import AsyncClient
from hoplite.connecting import RETRY_INTERVAL
from hoplite.creation import Creation
from hoplite.destinations import caller_memory, new_array, new_tensor
from hoplite.errors import HopliteError
from hoplite.ids import ObjectId, ObjectIdLike
from hoplite.naming import name_objects
from hoplite.nodes import Locations, Status
from hoplite.on_lost import OnLost
from hoplite.reduction import Op, Order, ReduceRequest, Reduction
from hoplite.session import Session
from hoplite.timeouts import CONNECT_TIMEOUT, DEFAULT, Deadline, Timeout

if TYPE_CHECKING:
    import torch

__all__ = ["Client", "connect"]


def connect(
    address_or_socket: NodeLike = None,
    *,
    timeout: float | None = CONNECT_TIMEOUT,
    default_timeout: Timeout = DEFAULT,
) -> Client:
    """Connect to a node on this host.

    `address_or_socket` is the path of the node's Unix socket (any string with a "/" in it) or the
    node's port. A port is written as 7420, "7420", ":7420" or "host:7420", where the host must be
    this one. The default is `$HOPLITE_SOCKET`, or else the node on port 7420.

    `timeout` bounds connecting, in seconds (None: for ever). `default_timeout` is the time-out of
    every call of this client that gives no `timeout`, in seconds (None: for ever). Its default is
    `$HOPLITE_TIMEOUT` (seconds, or inf), or else half an hour.

    Raises `NodeUnreachable` if no node answers (the message names what was tried), `VersionMismatch`
    if the node speaks another version of the protocol, and `BadArgument`.
    """
    return Client(socket_of(address_or_socket), timeout=timeout, default_timeout=default_timeout)


class Client:
    """A process's connection to the node on its host. `connect` makes it.

    Every call takes an `ObjectId` or a name (str). Every blocking call releases the GIL, and Ctrl-C
    interrupts it at once.

    Every call takes `timeout` in seconds (None: for ever). After that time it raises `TimedOut`,
    which names what the call waited for, and it leaves nothing behind. A call without `timeout` uses
    the client's `default_timeout`, so no call waits for ever unless asked to.

    When the node dies, running and later calls raise `NodeUnreachable` at once, until `reconnect`.
    Arrays from earlier gets stay readable.

    Several threads may use one client at once. A forked child cannot use it; connect in the child.
    """

    def __init__(
        self, socket: str, *, timeout: float | None = CONNECT_TIMEOUT, default_timeout: Timeout = DEFAULT
    ) -> None:
        """Use `connect`."""
        self._session = Session(socket, timeout, default_timeout)
        self._aio: AsyncClient | None = None

    @property
    def node(self) -> str:
        """The address the node announces, "host:port"."""
        return self._session.connection.node

    @property
    def socket(self) -> str:
        """The path of the node's Unix socket."""
        return self._session.socket

    @property
    def aio(self) -> AsyncClient:
        """The asyncio forms of all calls. They use a connection of their own."""
        if self._aio is None:
            self._aio = AsyncClient(self._session)
        return self._aio

    @property
    def default_timeout(self) -> float | None:
        """The time-out of calls that give no `timeout`, in seconds; None: for ever."""
        return self._session.default_timeout

    def reconnect(self, *, timeout: float | None = CONNECT_TIMEOUT) -> None:
        """Connect again to a node that was restarted at the same socket. `aio` reconnects too.

        Tries until a node answers. After `timeout` seconds (None: for ever) it raises
        `NodeUnreachable`. It does nothing while the connection works, so several threads that all see
        the node die may all call it.

        A restarted node is empty:

        - Objects put here before are gone, unless another node holds a copy.
        - Reductions started here have ended.
        - Objects not yet sealed are withdrawn.

        The program that put the objects must know of this, so no call reconnects by itself. Put the
        missing objects again under the same ids. This completes gets on other nodes that wait for them.
        """
        deadline = Deadline(timeout)
        while not self._session.renew(deadline):
            time.sleep(RETRY_INTERVAL)

    def put(self, value: Any, id: ObjectIdLike | None = None, *, timeout: Timeout = DEFAULT) -> ObjectId:
        """Make `value` an object that this node keeps until it is deleted. Returns its id (default: random).

        `value` is any value with one buffer of bytes:

        - a NumPy array of any shape and any dtype but Python objects,
        - a PyTorch CPU tensor (bfloat16 too),
        - an Arrow buffer, or an Arrow array without nulls,
        - an `array.array`, bytes, a memoryview, ...

        The value is copied once, into the store. A value that is not C-contiguous is first copied into
        a contiguous one. Receivers can read the bytes while they are being copied.

        Arrays and tensors keep dtype and shape. Buffers whose items are single bytes (bytes,
        bytearray, Arrow buffers) become plain bytes, which `get` returns as an array of uint8.

        A second put with the same id and size succeeds and stores nothing: the object keeps its first
        content. Raises `ObjectExists` (the id has an object of another size), `ObjectDeleted`,
        `StoreFull` (no room within `timeout`; at once if the value can never fit), `BadArgument` (no
        buffer), `TimedOut`.
        """
        session = self._session
        ids = () if id is None else (id,)
        return session.run(calls.put(session.connection, value, id, session.seconds(timeout)), ids)

    def create(
        self,
        id: ObjectIdLike,
        shape: int | Sequence[int],
        dtype: npt.DTypeLike,
        *,
        timeout: Timeout = DEFAULT,
    ) -> Creation:
        """Reserve memory in the store for a new array, which the caller fills in place without a copy.

        ::

            with client.create("features", (1000, 64), np.float32) as creation:
                model.features(out=creation.array)

        Leaving the with-block seals the object. An exception aborts it. Raises the errors of `put`, and
        `BadArgument` for an invalid shape or dtype and for more than 2**47 bytes.
        """
        session = self._session
        reserved = session.run(
            calls.create(session.connection, id, shape, dtype, session.seconds(timeout)), (id,)
        )
        return Creation(reserved, session)

    def get(
        self,
        id: ObjectIdLike,
        *,
        timeout: Timeout = DEFAULT,
        copy: bool = False,
        out: Any = None,
        on_lost: OnLost = "raise",
    ) -> Any:
        """Return the object. Waits until it has been put, and until its bytes are here.

        The default result is a read-only NumPy array in the node's shared memory, which needs no copy
        at any size. The array keeps its bytes until it and all views of it are garbage, even after a
        delete or `close`. Plain bytes come as one-dimensional uint8.

        An array of up to 64 KiB is in private memory. It is read-only too, and takes no room in the
        store. The client caches up to 4 MiB of these objects and drops the least recently used first.
        A get of a cached object does not ask the node, as long as the node has the object.

        `copy=True` returns a writable array in private memory, copied while the bytes arrive.
        `out` is a writable C-contiguous array, tensor or buffer of exactly the object's size. It is
        filled in the same way, and returned.

        `on_lost` says what happens when the object is lost (its last complete copy died):

        - `"raise"` ends the call with `ObjectLost` at once.
        - `"wait"` waits for a new put of the object.
        - A function is called once with the `ObjectId`, and then the call goes on waiting. The function
          may put the object, or have it put::

            client.get("features", on_lost=lambda id: client.put(features(), id))

        Raises `ObjectDeleted`, `ObjectLost`, `TimedOut`, `StoreFull` (no room to bring it here),
        `NodeUnreachable`, `Mismatch` (`out` does not fit), `BadArgument` (bad `out`).
        """
        session = self._session
        ids = (id,)
        if out is None and not copy:
            return session.run(calls.get(session.connection, id, session.seconds(timeout), on_lost), ids)
        destination = new_array if out is None else caller_memory(out)
        return session.run(
            calls.get_copy(
                session.connection, id, session.seconds(timeout), destination, on_lost, partial=True
            ),
            ids,
        )

    def get_torch(
        self, id: ObjectIdLike, *, timeout: Timeout = DEFAULT, on_lost: OnLost = "raise"
    ) -> torch.Tensor:
        """As `get(copy=True)`, into a new PyTorch CPU tensor (bfloat16 too).

        It copies because PyTorch has no read-only tensors. Raises `Mismatch` for a dtype that PyTorch
        does not have.
        """
        session = self._session
        steps = calls.get_copy(
            session.connection, id, session.seconds(timeout), new_tensor, on_lost, partial=True
        )
        tensor: torch.Tensor = session.run(steps, (id,))
        return tensor

    def put_object(
        self, value: Any, id: ObjectIdLike | None = None, *, timeout: Timeout = DEFAULT
    ) -> ObjectId:
        """Pickle any Python object (protocol 5) and put the result. Buffers inside it are copied only once.

        Raises the errors of `pickle.dumps` and of `put`.
        """
        session = self._session
        ids = () if id is None else (id,)
        return session.run(calls.put_object(session.connection, value, id, session.seconds(timeout)), ids)

    def get_object(self, id: ObjectIdLike, *, timeout: Timeout = DEFAULT, on_lost: OnLost = "raise") -> Any:
        """Unpickle an object that `put_object` has put. Waits as `get` does.

        Arrays and other buffers inside it are read-only views of shared memory; they are not copied.
        Unpickling runs code that the writer chose, so use this only in clusters that you trust. Raises
        the errors of `get`, and `Mismatch` for an object that `put_object` did not put.
        """
        session = self._session
        steps = calls.get_object(session.connection, id, session.seconds(timeout), on_lost)
        return session.run(steps, (id,))

    def delete(self, ids: ObjectIdLike | Iterable[ObjectIdLike], *, timeout: Timeout = DEFAULT) -> None:
        """Delete all copies of the objects (one id, or many) on all nodes.

        Returns when every node concerned has dropped its copies. Running transfers of the objects are
        aborted. Views that processes hold stay readable. Gets and puts of a deleted id raise
        `ObjectDeleted` for ten minutes. It is no error to delete an object that does not exist (yet).
        """
        session = self._session
        chosen = calls.ids_of(ids)
        session.run(calls.delete(session.connection, chosen, session.seconds(timeout)), chosen)

    def reduce(
        self,
        sources: Sequence[ObjectIdLike],
        *,
        target: ObjectIdLike | None = None,
        num_objects: int | None = None,
        op: Op = "sum",
        order: Order = "arrival",
        timeout: Timeout = DEFAULT,
    ) -> Reduction:
        """Start to reduce the first `num_objects` of `sources` to arrive (default: all).

        Sources are arrays of one shape and dtype: float16, bfloat16, float32, float64, or signed or
        unsigned integers. They may be on any node, and may be put before or after this call. A source
        may also be the target of another reduction, finished or not. The result becomes the object
        `target` (default: a random id), of the same shape and dtype.

        Returns at once; `timeout` bounds the whole reduction. Raises `BadArgument` for a repeated
        source, an unknown `op` or `order`, or a `num_objects` out of range. `Reduction.result` raises
        the other errors.
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
        timeout: Timeout = DEFAULT,
    ) -> Reduction:
        """As `reduce`, and the result is also sent to every node that gave a source.

        It is sent while it is being reduced, so a `get` on these nodes finds it there. Large sources that
        arrive together are summed in stripes, which sends fewer bytes over each link.
        """
        request = ReduceRequest(sources, target, num_objects, op, order, to_sources=True)
        return self._reduce(request, timeout)

    def wait(
        self,
        ids: Iterable[ObjectIdLike],
        num_ready: int | None = None,
        timeout: Timeout = DEFAULT,
        *,
        on_lost: OnLost = "wait",
    ) -> tuple[list[ObjectId], list[ObjectId]]:
        """Wait until `num_ready` (default: all) of `ids` are complete on any node.

        Returns (ready, not ready), each in the order of `ids`. After `timeout` it returns the state at
        that time. Raises `ObjectDeleted` if one of the objects is deleted before enough are ready, and
        `BadArgument` if an id is listed twice.

        `on_lost` is as for `get`, with two differences. A function is called for each lost object. The
        default is "wait", as the other objects may be enough and a lost object may be put again.
        """
        session = self._session
        chosen = calls.ids_of(ids)
        steps = calls.wait(session.connection, chosen, num_ready, session.seconds(timeout), on_lost)
        return session.run(steps, chosen)

    def prefetch(
        self,
        ids: ObjectIdLike | Iterable[ObjectIdLike],
        nodes: str | Iterable[str] = (),
        *,
        timeout: Timeout = DEFAULT,
    ) -> None:
        """Ask that copies of objects be fetched to `nodes` ("host:port" each; default: this node).

        Returns at once. A few objects are fetched at a time, in the order of `ids`. A `get` does not wait
        for the prefetches before it. Raises `BadArgument` for a node that is not a member.
        """
        session = self._session
        chosen = calls.ids_of(ids)
        session.run(calls.prefetch(session.connection, chosen, nodes, session.seconds(timeout)), chosen)

    def locations(self, id: ObjectIdLike, *, timeout: Timeout = DEFAULT) -> Locations:
        """The copies of the object, and whether each is complete. Raises `ObjectDeleted`."""
        session = self._session
        return session.run(calls.locations(session.connection, id, session.seconds(timeout)), (id,))

    def status(self, *, timeout: Timeout = DEFAULT) -> Status:
        """The node's report on itself: members, store use, traffic."""
        session = self._session
        return session.run(calls.status(session.connection, session.seconds(timeout)), ())

    def close(self) -> None:
        """Disconnect. Running calls raise `Aborted`. A second call does nothing.

        Arrays from earlier gets stay readable. Arrays of more than 64 KiB keep the connection open.
        When the last of them is garbage, reductions that this client started and that still run end.
        """
        self._session.close()
        if self._aio is not None:
            self._aio.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<hoplite.Client of node {self.node} at {self.socket}>"

    def _reduce(self, request: ReduceRequest, timeout: Timeout) -> Reduction:
        session = self._session
        try:
            ticket = request.send(session.connection, session.seconds(timeout))
        except HopliteError as error:
            name_objects(error, [request.target, *request.sources])
            raise
        return Reduction(request, ticket, session)
