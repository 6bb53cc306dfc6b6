"""Act 1: a file goes from one node to all others, and is checked there."""

from __future__ import annotations

import hashlib
import time
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import hoplite
import numpy as np
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

from examples.demo.stage import CALL_TIMEOUT, NODES, Stage

NAME = "the file"
AGAIN = "the file once more"
GENERATED_BYTES = 256 << 20
READ_BYTES = 1 << 20
"""How much is read and declared final at a time, so that the others stream behind the reading."""

REFRESH_SECONDS = 0.05


def size_of(file: Path | None) -> int:
    """Bytes the act is about to broadcast."""
    return GENERATED_BYTES if file is None else file.stat().st_size


def perform(stage: Stage, file: Path | None) -> None:
    """Broadcast `file`, or a generated array, from node 0; raises if any checksum differs."""
    size = size_of(file)
    what = f"a generated array of {size >> 20} MiB" if file is None else str(file)
    stage.console.rule(f"1  Broadcast {what} from node 0 to {NODES - 1} others")
    before = [client.status().received_bytes for client in stage.clients]
    content = None if file is not None else np.random.default_rng(7).integers(0, 256, size, np.uint8)

    # The receivers ask first: a get waits for its object.
    receivers = {i: stage.processes.submit(_receive, stage.cluster.sockets[i]) for i in range(1, NODES)}
    waiting = [_ready_name(stage.cluster.sockets[i]) for i in receivers]
    stage.clients[0].wait(waiting, timeout=CALL_TIMEOUT)
    stage.clients[0].delete(waiting)
    start = time.perf_counter()
    writer = stage.processes.submit(_write, stage.cluster.sockets[0], str(file)) if file is not None else None
    if content is not None:
        stage.clients[0].put(content, NAME, timeout=CALL_TIMEOUT)
    _show(stage, size, before, receivers)
    arrivals = {i: receiver.result() for i, receiver in receivers.items()}
    if writer is not None:
        # Before that, its process had to start.
        start, expected = writer.result()
    else:
        expected = _checksum(stage.clients[0].get(NAME))
    elapsed = max(at for at, _ in arrivals.values()) - start
    for i, (_, checksum) in arrivals.items():
        if checksum != expected:
            raise AssertionError(f"node {i} received other bytes: {checksum}, not {expected}")
    stage.console.print(f"   checksum {expected[:16]}... equal on all nodes")
    moved = size * len(arrivals)
    _report(stage, "delivered into memory never used before", moved, elapsed)
    # The system clears fresh memory page by page; the second time, the stores have theirs.
    copy = stage.clients[0].get(NAME, copy=True)
    stage.clients[0].delete(NAME)
    _report(stage, "delivered once more", moved, _once_more(stage, copy))


def _once_more(stage: Stage, content: np.ndarray) -> float:
    """Broadcast `content` without checks; the seconds from the put to the last arrival."""

    def arrival(client: hoplite.Client) -> float:
        client.get(AGAIN, timeout=CALL_TIMEOUT)
        return time.perf_counter()

    with ThreadPoolExecutor(NODES) as threads:
        gets = [threads.submit(arrival, client) for client in stage.clients[1:]]
        start = time.perf_counter()
        stage.clients[0].put(content, AGAIN, timeout=CALL_TIMEOUT)
        end = max(get.result() for get in gets)
    stage.clients[0].delete(AGAIN)
    return end - start


def _report(stage: Stage, what: str, moved: int, elapsed: float) -> None:
    rate = stage.of_machine(moved / elapsed)
    stage.console.print(f"   {moved / 2**20:.0f} MiB {what}, in {elapsed:.2f} s: {rate}")


def _show(
    stage: Stage, size: int, before: list[int], receivers: dict[int, Future[tuple[float, str]]]
) -> None:
    columns = (TextColumn("   {task.description}"), BarColumn(), DownloadColumn(True), TransferSpeedColumn())
    with Progress(*columns, console=stage.console) as progress:
        bars = {i: progress.add_task(f"node {i}", total=size) for i in receivers}
        while not all(receiver.done() for receiver in receivers.values()):
            for i, bar in bars.items():
                got = stage.clients[i].status().received_bytes - before[i]
                progress.update(bar, completed=min(got, size))
            time.sleep(REFRESH_SECONDS)
        for bar in bars.values():
            progress.update(bar, completed=size)


def _write(socket: str, path: str) -> tuple[float, str]:
    """In another process: read the file straight into the store, declaring each piece as it is there.

    Returns when it began, and the checksum.
    """
    with hoplite.connect(socket) as client, open(path, "rb") as file:
        size = Path(path).stat().st_size
        start = time.perf_counter()
        with client.create(NAME, size, np.uint8, timeout=CALL_TIMEOUT) as creation:
            memory = creation.array.data
            done = 0
            while done < size:
                count = file.readinto(memory[done : done + READ_BYTES])
                if count == 0:
                    raise OSError(f"{path} became shorter while it was read")
                done += count
                creation.advance(done)
            del memory
        return start, _checksum(client.get(NAME))


def _receive(socket: str) -> tuple[float, str]:
    """In another process: wait for the object; when it came, and its checksum."""
    with hoplite.connect(socket) as client:
        client.put(b"", _ready_name(socket))
        view = client.get(NAME, timeout=CALL_TIMEOUT)
        at = time.perf_counter()  # one clock for all processes of a host
        return at, _checksum(view)


def _ready_name(socket: str) -> str:
    return f"ready at {socket}"


def _checksum(array: np.ndarray) -> str:
    return hashlib.sha256(array.data).hexdigest()
