"""The blocking client."""

from __future__ import annotations

import threading
import time
from collections.abc import Collection, Iterable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

import numpy.typing as npt

from hoplite import _hoplite, calls
from hoplite.addresses import NodeLike, socket_of
from hoplite.aio import AsyncClient
from hoplite.connecting import ATTEMPT_TIMEOUT, RETRY_INTERVAL, open_connection
from hoplite.creation import Creation
from hoplite.destinations import caller_memory, new_array, new_tensor
from hoplite.errors import Aborted, HopliteError, NodeUnreachable
from hoplite.ids import ObjectId, ObjectIdLike
from hoplite.naming import name_objects
from hoplite.nodes import Locations, Status
from hoplite.on_lost import OnLost
from hoplite.reduction import Op, Order, ReduceRequest, Reduction
from hoplite.timeouts import CONNECT_TIMEOUT, DEFAULT, Deadline, Timeout, in_seconds

if TYPE_CHECKING:
    import torch

__all__ = ["Client", "connect"]

Result = TypeVar("Result")


def connect(
    address_or_socket: NodeLike = None,
    *,
    timeout: float | None = CONNECT_TIMEOUT,
    default_timeout: Timeout = DEFAULT,
) -> Client:
    """Connect to a node on this host.

    `address_or_socket` is the path of the node's Unix socket (anything with a "/" in it), or the
    port it listens on, as 7420, "7420", ":7420" or "host:7420" with a host that is this one.
    Default: `$HOPLITE_SOCKET`, or else the node on port 7420.

    `timeout`, for connecting, is in seconds, None for ever. `default_timeout` is that of every call
    of this client that gives none of its own: seconds, or None for ever; if it is not given
    `$HOPLITE_TIMEOUT` (seconds, or inf), or else half an hour.

    Raises `NodeUnreachable`, saying what was tried, if no node answers, `VersionMismatch` if it
    speaks another protocol, and `BadArgument`.
    """
    return Client(socket_of(address_or_socket), timeout=timeout, default_timeout=default_timeout)


class Client:
    """A process's way to the node on its host; made by `connect`.

    Every call takes an `ObjectId` or a name (str). Every blocking call releases the GIL, gives way
    to Ctrl-C at once, and takes `timeout` in seconds; when it is up, `TimedOut` is raised, which
    says what was waited for, and nothing is left behind. None is for ever; a call that gives no
    `timeout` takes the client's `default_timeout`, so that nothing waits for ever unasked.

    When the node dies, every call under way and every later one raises `NodeUnreachable` at once,
    until `reconnect`. Arrays got before stay readable.

    A client may be used by several threads at once. It cannot be used in a forked child: connect
    there.
    """

    def __init__(
        self, socket: str, *, timeout: float | None = CONNECT_TIMEOUT, default_timeout: Timeout = DEFAULT
    ) -> None:
        """Use `connect`."""
        self._default_timeout = in_seconds(default_timeout)
        self._socket = socket
        self._connection = open_connection(socket, timeout)
        self._aio: AsyncClient | None = None
        self._closed = False
        # Held for moments only, never while waiting.
        self._swapping = threading.Lock()

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
            self._aio = AsyncClient(self)
        return self._aio

    @property
    def default_timeout(self) -> float | None:
        """Seconds that calls take at most which give no `timeout` of their own; None: for ever."""
        return self._default_timeout

    def reconnect(self, *, timeout: float | None = CONNECT_TIMEOUT) -> None:
        """Connect again to a node that was restarted (at the same socket); `aio` with it.

        Tries until a node answers or `timeout` (seconds, None for ever) is up: then raises
        `NodeUnreachable`. Does nothing while the connection is well, so that several threads which
        all see the node die may all call this.

        The node comes back empty. Objects put here before are gone, unless another node holds a
        copy; reductions started here and objects not yet sealed have ended. So no call reconnects
        by itself: the program that put them must know. Put again what is missing, under the same
        ids; gets elsewhere that wait for it are completed so.
        """
        deadline = Deadline(timeout)
        while not self._renewed(deadline):
            time.sleep(RETRY_INTERVAL)

    def put(self, value: Any, id: ObjectIdLike | None = None, *, timeout: Timeout = DEFAULT) -> ObjectId:
        """Make `value` an object, pinned here until deleted; returns its id (random by default).

        `value` is anything with one buffer of bytes: a NumPy array of any dtype (but not of Python
        objects) and any shape, a PyTorch CPU tensor (bfloat16 too), an Arrow buffer or an Arrow
        array without nulls, an `array.array`, bytes, a memoryview, ... It is copied once, into the
        store; only what is not C-contiguous is copied before. Receivers everywhere stream behind
        the copying.

        Arrays and tensors keep dtype and shape. Buffers whose items are single bytes (bytes,
        bytearray, Arrow buffers) become plain bytes, which `get` shows as an array of uint8.

        The same id and size again ends well and stores nothing: the first content is the object's.
        Raises `ObjectExists` (id taken by another size), `ObjectDeleted`, `StoreFull` (no room within
        `timeout`; at once if it can never fit), `BadArgument` (no buffer), `TimedOut`.
        """
        ids = () if id is None else (id,)
        return self._run(calls.put(self._connection, value, id, self._seconds(timeout)), ids)

    def create(
        self,
        id: ObjectIdLike,
        shape: int | Sequence[int],
        dtype: npt.DTypeLike,
        *,
        timeout: Timeout = DEFAULT,
    ) -> Creation:
        """Reserve a new array's memory in the store, to be filled in place: no copy at all.

        ::

            with client.create("features", (1000, 64), np.float32) as creation:
                model.features(out=creation.array)

        Leaving the with-block seals the object, an exception aborts it. Errors as for `put`, and
        `BadArgument` for what is no shape or dtype, or more than 2**47 bytes.
        """
        draft = self._run(calls.create(self._connection, id, shape, dtype, self._seconds(timeout)), (id,))
        return Creation(draft, self)

    def get(
        self,
        id: ObjectIdLike,
        *,
        timeout: Timeout = DEFAULT,
        copy: bool = False,
        out: Any = None,
        on_lost: OnLost = "raise",
    ) -> Any:
        """The object, whenever it comes to exist: waits for its put and for its bytes.

        By default a read-only NumPy array that lies in the node's shared memory: nothing is
        copied, however large. It keeps its bytes (also after a delete, or after `close`) until it
        and all views of it are garbage. Plain bytes come as one-dimensional uint8.

        Up to 64 KiB the array is private memory, read-only too, and takes no room in the store. The
        client keeps up to 4 MiB of what it got so, the least recently used goes first: getting it
        again does not ask the node, as long as the node has it.

        `copy=True` returns a writable array in private memory, copied while the bytes arrive.
        `out` (a writable C-contiguous array, tensor or buffer of exactly the object's bytes) is
        filled instead, in the same way, and returned.

        When the object is lost (its last complete copy died), `on_lost="raise"` ends the call with
        `ObjectLost`, at once; `"wait"` waits for a new put of it. A function is called with the
        `ObjectId`, once, and then the call waits on: it may have the object made again, or make it
        itself::

            client.get("features", on_lost=lambda id: client.put(features(), id))

        Raises `ObjectDeleted`, `ObjectLost`, `TimedOut`, `StoreFull` (no room to bring it here),
        `NodeUnreachable`, `Mismatch` (`out` does not fit), `BadArgument` (bad `out`).
        """
        ids = (id,)
        if out is None and not copy:
            return self._run(calls.get(self._connection, id, self._seconds(timeout), on_lost), ids)
        destination = new_array if out is None else caller_memory(out)
        return self._run(
            calls.get_copy(self._connection, id, self._seconds(timeout), destination, on_lost, partial=True),
            ids,
        )

    def get_torch(
        self, id: ObjectIdLike, *, timeout: Timeout = DEFAULT, on_lost: OnLost = "raise"
    ) -> torch.Tensor:
        """As `get(copy=True)`, into a new PyTorch CPU tensor (bfloat16 too).

        A copy, because PyTorch knows no read-only tensors. Raises `Mismatch` for other dtypes
        than PyTorch's.
        """
        steps = calls.get_copy(
            self._connection, id, self._seconds(timeout), new_tensor, on_lost, partial=True
        )
        tensor: torch.Tensor = self._run(steps, (id,))
        return tensor

    def put_object(
        self, value: Any, id: ObjectIdLike | None = None, *, timeout: Timeout = DEFAULT
    ) -> ObjectId:
        """Pickle any Python object (protocol 5) and put that; buffers inside are copied only once.

        Raises what `pickle.dumps` raises, and what `put` raises.
        """
        ids = () if id is None else (id,)
        return self._run(calls.put_object(self._connection, value, id, self._seconds(timeout)), ids)

    def get_object(self, id: ObjectIdLike, *, timeout: Timeout = DEFAULT, on_lost: OnLost = "raise") -> Any:
        """Unpickle an object put by `put_object`; waits as `get` does.

        Arrays and other buffers inside it are read-only views of shared memory, not copied.
        Unpickling runs code the writer chose: only for clusters you trust. Raises what `get`
        raises, and `Mismatch` for an object that was not put by `put_object`.
        """
        steps = calls.get_object(self._connection, id, self._seconds(timeout), on_lost)
        return self._run(steps, (id,))

    def delete(self, ids: ObjectIdLike | Iterable[ObjectIdLike], *, timeout: Timeout = DEFAULT) -> None:
        """Delete objects (one id, or many): all copies, everywhere.

        Returns when every node concerned has dropped them. Running transfers of them are aborted;
        views that processes hold stay readable. Gets and puts of a deleted id raise
        `ObjectDeleted` for ten minutes. Deleting what does not exist (yet) is no error.
        """
        chosen = calls.ids_of(ids)
        self._run(calls.delete(self._connection, chosen, self._seconds(timeout)), chosen)

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
        timeout: Timeout = DEFAULT,
    ) -> Reduction:
        """As `reduce`; besides, the result is brought to every node that gave a source.

        It is brought there while it is being reduced: a `get` of it on those nodes finds it there. Large
        sources that come together are summed in stripes, which sends less over each link.
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
        """Wait until `num_ready` (default: all) of `ids` are complete somewhere.

        Returns (ready, not ready), each in the order of `ids`; when `timeout` is up, as things
        are then. Raises `ObjectDeleted` if one of them is deleted before enough are ready, and
        `BadArgument` if one is listed twice.

        `on_lost` is as for `get`, but a function is called for each object that is lost, and "wait"
        is the default: the others may be enough, and a lost object be put again.
        """
        chosen = calls.ids_of(ids)
        steps = calls.wait(self._connection, chosen, num_ready, self._seconds(timeout), on_lost)
        return self._run(steps, chosen)

    def prefetch(
        self,
        ids: ObjectIdLike | Iterable[ObjectIdLike],
        nodes: str | Iterable[str] = (),
        *,
        timeout: Timeout = DEFAULT,
    ) -> None:
        """Ask that objects be brought to `nodes` ("host:port" each; default: this one).

        Returns at once. A few come at a time, in this order; what is got meanwhile does not wait its turn.
        Raises `BadArgument` for a node that is not a member.
        """
        chosen = calls.ids_of(ids)
        self._run(calls.prefetch(self._connection, chosen, nodes, self._seconds(timeout)), chosen)

    def locations(self, id: ObjectIdLike, *, timeout: Timeout = DEFAULT) -> Locations:
        """The copies of the object, and how far each is. Raises `ObjectDeleted`."""
        return self._run(calls.locations(self._connection, id, self._seconds(timeout)), (id,))

    def status(self, *, timeout: Timeout = DEFAULT) -> Status:
        """The node's account of itself: members, store use, traffic."""
        return self._run(calls.status(self._connection, self._seconds(timeout)), ())

    def close(self) -> None:
        """Disconnect; running calls raise `Aborted`. May be called twice.

        Arrays got before stay readable, and those of more than 64 KiB keep the connection itself:
        with the last of them, reductions that were started here and are still running end.
        """
        with self._swapping:
            self._closed = True
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

    def _seconds(self, timeout: Timeout) -> float | None:
        return self._default_timeout if timeout is DEFAULT else timeout

    def _renewed(self, deadline: Deadline) -> bool:
        """One try to connect again; False if it did not succeed, and there is time for another."""
        broken = self._connection
        if broken.is_alive():
            return True
        left = deadline.left()
        try:
            fresh = open_connection(
                self._socket, ATTEMPT_TIMEOUT if left is None else min(left, ATTEMPT_TIMEOUT)
            )
        except NodeUnreachable:
            if deadline.is_over():
                raise
            return False
        with self._swapping:
            if self._connection is broken and not self._closed:
                self._connection = fresh
                return True
        # Another thread was faster, or closed the client.
        fresh.close()
        return True

    def _reduce(self, request: ReduceRequest, timeout: Timeout) -> Reduction:
        try:
            ticket = request.send(self._connection, self._seconds(timeout))
        except HopliteError as error:
            name_objects(error, [request.target, *request.sources])
            raise
        return Reduction(request, ticket, self)

    def _run(self, steps: calls.Steps[Result], ids: Collection[ObjectIdLike]) -> Result:
        """Take the steps of a call, here and now."""
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

    def _settle(self, ticket: _hoplite.Ticket, ids: Collection[ObjectIdLike]) -> Any:
        return self._run(calls.answer(ticket), ids)

    def _is_done(self, ticket: _hoplite.Ticket) -> bool:
        # Takes in what has come; a connection that is gone has settled its tickets.
        try:
            self._connection.is_alive()
        except Aborted:
            # The client was closed: whatever waits for an answer raises that at once.
            return True
        return ticket.done()

    def _ready_within(self, ticket: _hoplite.Ticket, timeout: float | None) -> bool:
        """Whether the answer came in time; the call goes on if not."""
        return ticket.ready_within(Deadline(timeout).left())
