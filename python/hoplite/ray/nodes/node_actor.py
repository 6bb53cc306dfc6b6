"""The actor beside each Hoplite node. It runs the node, owns its objects' guards, and serves other
processes."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import ray
from ray._private import worker

from hoplite.client import connect
from hoplite.errors import BadArgument, HopliteError, NodeUnreachable, ObjectDeleted, ObjectLost, TimedOut
from hoplite.ids import ObjectId
from hoplite.launching import Launcher
from hoplite.ray.errors import unavailable
from hoplite.ray.nodes.guards import Guards, id_of
from hoplite.ray.nodes.lookup import address_of_node, announce
from hoplite.ray.recovery.loss_poller import awaiting
from hoplite.ray.values.forms import Form
from hoplite.ray.values.handle_unpickler import keep_handles
from hoplite.ray.values.handles import Handle, kept_as_handles
from hoplite.reduction import Op, Order
from hoplite.tempdirs import OwnedTempdir
from hoplite.values import is_torch_tensor

__all__ = ["CONCURRENCY_MAX", "NodeActor"]

logger = logging.getLogger(__name__)

CONCURRENCY_MAX = 10_000
"""Calls that wait at once. Reductions wait for each other's results, so none may wait in a queue."""

COLLECT_DELAY = 0.1
"""Seconds until the garbage of a failed reduction is collected. Its error must have been answered before."""

LOSS_INTERVAL = 0.5
"""Seconds between two checks for lost sources of a reduction. Most reductions take less. After a loss was
found, the reduction may still end within this time."""

END_TIMEOUT = 5.0
"""Seconds for this process to end after its node has."""


Method = TypeVar("Method", bound=Callable[..., Any])

_made_again: Callable[[Method], Method] = ray.method(max_task_retries=-1)
"""Marks calls that Ray repeats when a node actor has ended with its node and was restarted."""


class NodeActor:
    """Actor and node end together. The guards are lost with the store, and Ray starts both again."""

    def __init__(self, store_size: str | None) -> None:
        """Start the node, which joins the others. Raises `NodeUnreachable`."""
        keep_handles()
        self._tempdir = OwnedTempdir()
        self._socket = str(self._tempdir.path / "node.sock")
        self._launcher = Launcher()
        node_id = ray.get_runtime_context().get_node_id()
        host = ray.util.get_node_ip_address()
        self._process, self._address = self._launcher.start(
            f"{host}:0",
            self._socket,
            store_size=store_size,
            seeds=_others(node_id),
            log=_log_path(node_id),
            args=["--niceness", str(_niceness_of_ray())],
        )
        self._client = connect(self._socket)
        me = ray.get_runtime_context().current_actor
        self._guards = Guards(self._client, me.empty_values, node_id, self._address)
        announce(node_id, self._address, self._socket)
        self._stopping = False

    @_made_again
    async def address(self) -> str:
        """The address at which the node listens, "host:port"."""
        return self._address

    @_made_again
    async def guards(self, count: int) -> list[ray.ObjectRef]:
        """New guards for objects that a process of this Ray node is going to put."""
        return await self._guards.make(count)

    @_made_again
    async def replacement_guards(self, ended: Sequence[str]) -> list[ray.ObjectRef]:
        """New guards for objects whose guards (in hex) have ended with their node actor."""
        return await self._guards.replace(ended)

    async def empty_values(self, count: int) -> list[bytes]:
        """A number of empty values. Only this actor itself calls it."""
        return [b""] * count

    async def run(self) -> None:
        """Wait until the node ends, which is unexpected, and then end this process."""
        status = await asyncio.to_thread(self._process.wait)
        logger.warning("the node %s ended with status %s", self._address, status)
        if not self._stopping:
            # An exception would not do: Ray must restart this actor and repeat the calls that wait.
            os._exit(1)

    async def stop(self, timeout: float) -> None:
        """End the node within `timeout` seconds, or by force."""
        self._stopping = True
        self._client.close()
        self._process.terminate()
        try:
            await asyncio.to_thread(self._process.wait, timeout)
        except subprocess.TimeoutExpired:
            self._process.kill()
        self._tempdir.remove()

    @_made_again
    async def fetch(self, references: Sequence[ray.ObjectRef], timeout: float | None) -> str:
        """Bring the values to this node within `timeout` seconds. Returns the node's address."""
        await asyncio.gather(*(self._fetch(reference, timeout) for reference in references))
        return self._address

    @_made_again
    async def wait_available(self, id: ObjectId, timeout: float) -> bool:
        """Whether some node has the object. Answers when one has, or after `timeout` seconds."""
        there, _ = await self._client.aio.wait([id], timeout=timeout)
        return bool(there)

    @_made_again
    async def reduce(
        self,
        references: Sequence[ray.ObjectRef],
        op: Op,
        order: Order,
        to_sources: bool,
        timeout: float | None,
    ) -> Handle:
        """Reduce the values of all `references`, which may not exist yet, within `timeout` seconds."""
        async with _reducing():
            (target,) = await self._guards.make(1)
            # Kept until the end: a handle keeps its object alive.
            sources = [await self._handle(value) for value in await _got(references, timeout)]
            forms = {source.form for source in sources}
            if len(forms) > 1:
                raise BadArgument(f"sources of different kinds: {', '.join(form.name for form in forms)}")
            reduce = self._client.aio.allreduce if to_sources else self._client.aio.reduce
            if not to_sources:
                # The result is wanted on the caller's node. With the prefetch it streams here while the
                # reduction runs.
                await self._client.aio.prefetch(id_of(target), timeout=timeout)
            ids = [source.id for source in sources]
            try:
                with awaiting(*sources):
                    await self._unless_lost(
                        sources, reduce(ids, target=id_of(target), op=op, order=order, timeout=timeout)
                    )
            except (ObjectDeleted, ObjectLost) as error:
                lost = None if error.object_id not in ids else references[ids.index(error.object_id)]
                raise unavailable(lost, error) from error
            return Handle(target, forms.pop(), None)

    async def _unless_lost(self, sources: Sequence[Handle], reduction: Awaitable[object]) -> None:
        """Await `reduction`. By itself, it waits for a lost source until somebody puts it again.

        Raises `ObjectLost` if the lost source has no task that rebuilds it. Other lost sources are rebuilt by
        the callers of their tasks, or deleted.
        """
        ids = [source.id for source in sources if source.origin is None]
        reducing = asyncio.ensure_future(reduction)
        try:
            while not await _is_over(reducing) and ids:
                try:
                    await self._client.aio.wait(ids, timeout=LOSS_INTERVAL, on_lost="raise")
                except ObjectLost:
                    # All bytes may have come before the loss, and the end may be on its way.
                    if not await _is_over(reducing):
                        raise
            await reducing
        finally:
            reducing.cancel()

    async def _fetch(self, reference: ray.ObjectRef, timeout: float | None) -> None:
        await _got([reference], timeout)
        parts = await asyncio.to_thread(_parts_of, reference)
        # All parts are requested before the first is awaited.
        await self._client.aio.prefetch([part.id for part in parts], timeout=timeout)
        for part in parts:
            await self._get(reference, part, timeout)

    async def _handle(self, value: Any) -> Handle:
        """`value` if it is a handle. Other values came through Ray, and are put here."""
        if isinstance(value, Handle):
            return value
        (guard,) = await self._guards.make(1)
        await self._client.aio.put(value, id_of(guard))
        return Handle(guard, Form.TENSOR if is_torch_tensor(value) else Form.ARRAY, None)

    async def _get(self, reference: ray.ObjectRef, handle: Handle, timeout: float | None) -> None:
        try:
            with awaiting(handle):
                await self._client.aio.get(handle.id, timeout=timeout, on_lost=handle.on_lost)
        except HopliteError as error:
            raise unavailable(reference, error) from error


async def _is_over(reducing: asyncio.Future[object]) -> bool:
    """Whether it ends now or within `LOSS_INTERVAL`."""
    done, _ = await asyncio.wait([reducing], timeout=LOSS_INTERVAL)
    return bool(done)


@contextlib.asynccontextmanager
async def _reducing() -> AsyncIterator[None]:
    """Handles the failure of a reduction inside."""
    try:
        yield
    except NodeUnreachable:
        # `NodeActor.run` ends this process, and Ray repeats the call.
        await asyncio.sleep(END_TIMEOUT)
        raise
    except BaseException:
        # The error and the frames it came through refer to each other, and hold the sources. In an idle
        # process nothing else collects such garbage.
        asyncio.get_running_loop().call_later(COLLECT_DELAY, gc.collect)
        raise


async def _got(references: Sequence[ray.ObjectRef], timeout: float | None) -> list[Any]:
    waiting = [asyncio.wrap_future(reference.future()) for reference in references]
    try:
        return await asyncio.wait_for(asyncio.gather(*waiting), timeout)
    except TimeoutError:
        missing = sum(not future.done() or future.cancelled() for future in waiting)
        raise TimedOut(f"{missing} of {len(waiting)} values are not ready after {timeout} s") from None


def _parts_of(reference: ray.ObjectRef) -> list[Handle]:
    """The handles in a value that is ready, however deep."""
    with kept_as_handles() as parts:
        ray.get(reference)
    # If unpickling failed and the value was read with dummies instead, its handles are listed twice.
    return list(dict.fromkeys(parts))


def _others(node_id: str) -> list[str]:
    """The addresses of the Hoplite nodes beside the other live Ray nodes."""
    alive = [node["NodeID"] for node in ray.nodes() if node["Alive"] and node["NodeID"] != node_id]
    return [address for other in alive if (address := address_of_node(other))]


def _niceness_of_ray() -> int:
    """The niceness of Ray's own node, which started this process at a lower priority than its own."""
    return os.getpriority(os.PRIO_PROCESS, os.getppid())


def _log_path(node_id: str) -> Path:
    """The path of the node's log, in the folder of Ray's own logs."""
    return Path(worker._global_node.get_logs_dir_path()) / f"hoplited-{node_id}.log"
