"""A client process in a host that makes calls on command, at given times.

``Worker`` is the benchmark's end of the pipe. ``python -m lab.worker SOCKET`` is the process. A call with
``at`` starts at that time of the machine's monotonic clock. All namespaces share this clock, so many
processes start together without communication.

``Driven`` and ``Process`` do the same for processes of other systems, which answer with ``serve``.
"""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import time
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import IO, Any

import numpy as np

from lab.hosts import Host
from lab.memory import mapped
from lab.results import ROOT

#: Longest time of a single call of a benchmark.
CALL_SECONDS = 120.0

#: Longest time until an answer: the call itself, the wait for its start, and untimed work such as filling
#: arrays.
ANSWER_SECONDS = CALL_SECONDS + 60.0

#: Time that a process has to end after its pipe is closed, before it is killed.
END_SECONDS = 10.0

#: Delay of an answer after a timed call. Writing and reading an answer each take a fifth of a millisecond of
#: a core, which would delay processes that are still in the call.
REPORT_AFTER_SECONDS = 0.02

#: Numbers of a pattern that are made at a time. So many fit into the processor's cache, and the memory is
#: reused.
PATTERN_PIECE = 1 << 18

#: Time between the command and the start of the workers. In this time all read their commands.
START_AHEAD_SECONDS = 0.1


class WorkerFailed(RuntimeError):
    """A worker's call raised. The message is the traceback's last line."""


class Driven:
    """Drives one process over a pair of pipes, or a socket, with a line of JSON each way for every call.

    ``send`` and ``receive`` are separate, so that many processes can work at once.
    """

    def __init__(self, name: str, calls: IO[str], answers: IO[str]) -> None:
        self.name = name
        self._calls, self._answers = calls, answers

    def send(self, call: str, **arguments: Any) -> None:
        self._calls.write(json.dumps({"call": call, **arguments}) + "\n")
        self._calls.flush()

    def receive(self, timeout: float = ANSWER_SECONDS) -> dict[str, Any]:
        # The reader's buffer is empty here, as there is exactly one line for each call.
        if not select.select([self._answers], [], [], timeout)[0]:
            raise WorkerFailed(f"{self.name} has not answered for {timeout:g} s")
        line = self._answers.readline()
        if not line:
            raise WorkerFailed(f"{self.name} ended{self._end()}")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise WorkerFailed(f"{self.name}: {answer['error']}")
        return answer

    def ask(self, call: str, **arguments: Any) -> dict[str, Any]:
        self.send(call, **arguments)
        return self.receive()

    def _end(self) -> str:
        """How the process ended, if that is known."""
        return ""


class Process(Driven):
    """Starts a program in a host (None: here) and drives it. The program reports when it is ready."""

    def __init__(
        self,
        command: Sequence[str],
        host: Host | None = None,
        ready_seconds: float = ANSWER_SECONDS,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self._process = subprocess.Popen(
            host.command(command) if host else command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env={**os.environ, **(environment or {})},
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        name = " ".join(command[1:]) + (f" on host {host.index}" if host else "")
        super().__init__(name, self._process.stdin, self._process.stdout)
        try:
            self.receive(ready_seconds)
        except BaseException:
            self.kill()
            raise

    @property
    def pid(self) -> int:
        return self._process.pid

    def kill(self) -> None:
        """Kills the process with SIGKILL, in the middle of its work."""
        self._process.kill()
        with self._process:
            pass

    def close(self) -> None:
        with self._process:
            assert self._process.stdin is not None
            self._process.stdin.close()
            try:
                self._process.wait(END_SECONDS)
            except subprocess.TimeoutExpired:
                self._process.kill()

    def _end(self) -> str:
        return f" with {self._process.wait(END_SECONDS)}"


class Worker(Process):
    """Drives one Hoplite client."""

    def __init__(self, socket: str, host: Host | None = None) -> None:
        super().__init__([sys.executable, "-m", "lab.worker", socket], host)


def pattern(size: int, seed: int, out: np.ndarray | None = None) -> np.ndarray:
    """Whole numbers below 4096 as float32. Their sums over many hosts are exact in any order."""
    array = np.empty(size // 4, np.float32) if out is None else out
    random = np.random.default_rng(seed)
    for at in range(0, len(array), PATTERN_PIECE):
        piece = array[at : at + PATTERN_PIECE]
        piece[...] = random.integers(0, 4096, len(piece), np.uint16)
    return array


def checksum(array: np.ndarray) -> int:
    return zlib.crc32(array.data)


class Calls:
    """The commands of a worker.

    Results are kept for a later ``check``. Reading a result costs as much as moving it, and would slow down
    processes that are still in the call.
    """

    def __init__(self, socket: str) -> None:
        import hoplite

        self._client = hoplite.connect(socket)
        self._array = self._copy = np.empty(0, np.float32)
        self._results: list[np.ndarray] = []

    def touch(self, part: float, most: int) -> dict[str, Any]:
        """Writes once to this part of the node's store, ``most`` bytes at most."""
        status = self._client.status()
        id = f"touched on {status.node}"
        with self._client.create(id, min(int(part * status.store_bytes), most), np.uint8) as creation:
            creation.array.fill(1)
        self._client.delete([id])
        return {}

    def fill(self, size: int, seed: int, memory: str | None = None) -> dict[str, Any]:
        """Makes the array. ``memory``: the path of memory that other systems share (None: private memory)."""
        self._array = pattern(size, seed, mapped(memory, size) if memory else None)
        return {"checksum": checksum(self._array)}

    def put(self, id: str) -> dict[str, Any]:
        self._client.put(self._array, id)
        return _ended()

    def get(self, id: str, put: str | None = None) -> dict[str, Any]:
        """Gets an object. ``put``, here and below: an id under which the own array is put first."""
        self._put_first(put)
        self._results = [self._client.get(id, timeout=CALL_SECONDS)]
        return _ended()

    def gather(self, ids: list[str]) -> dict[str, Any]:
        # Request all objects before waiting for the first.
        self._client.prefetch(ids, timeout=CALL_SECONDS)
        self._results = [self._client.get(id, timeout=CALL_SECONDS) for id in ids]
        return _ended()

    def reduce(
        self, id: str, sources: list[str], count: int | None = None, put: str | None = None
    ) -> dict[str, Any]:
        self._put_first(put)
        reduction = self._client.reduce(sources, target=id, num_objects=count, op="sum", timeout=CALL_SECONDS)
        self._results = [self._client.get(id, timeout=CALL_SECONDS)]
        ended = _ended()
        went_in = reduction.result(timeout=CALL_SECONDS).sources
        return {**ended, "sources": [source.name for source in went_in]}

    def allreduce(self, id: str, sources: list[str], put: str | None = None) -> dict[str, Any]:
        """Starts an allreduce. One worker does this, and the others get the target."""
        self._put_first(put)
        reduction = self._client.allreduce(sources, target=id, op="sum", timeout=CALL_SECONDS)
        self._results = [self._client.get(id, timeout=CALL_SECONDS)]
        ended = _ended()
        reduction.result(timeout=CALL_SECONDS)
        return ended

    def ping(self, there: list[str], back: list[str]) -> dict[str, Any]:
        """Puts each of ``there``, and waits for the answer in ``back``."""
        for ping, pong in zip(there, back, strict=True):
            self._client.put(self._array, ping)
            self._results = [self._client.get(pong, timeout=CALL_SECONDS)]
        return _ended()

    def echo(self, there: list[str], back: list[str]) -> dict[str, Any]:
        for ping, pong in zip(there, back, strict=True):
            self._client.put(self._client.get(ping, timeout=CALL_SECONDS), pong)
        return _ended()

    def put_many(self, ids: list[str]) -> dict[str, Any]:
        """Puts objects one after the other. The calls below do the same."""
        for id in ids:
            self._client.put(self._array, id)
        return _ended()

    def get_many(self, ids: list[str]) -> dict[str, Any]:
        for id in ids:
            self._results = [self._client.get(id, timeout=CALL_SECONDS)]
        return _ended()

    def locate_many(self, ids: list[str]) -> dict[str, Any]:
        for id in ids:
            self._client.locations(id, timeout=CALL_SECONDS)
        return _ended()

    def copy_many(self, count: int) -> dict[str, Any]:
        """Copies the own array from private memory to private memory, ``count`` times."""
        if len(self._copy) != len(self._array):
            self._copy = np.zeros_like(self._array)
        for _ in range(count):
            np.copyto(self._copy, self._array)
        return _ended()

    def check(self) -> dict[str, Any]:
        """The checksums of the last results, which are then released."""
        checksums = [checksum(result) for result in self._results]
        self._results = []
        return {"checksums": checksums}

    def delete(self, ids: list[str]) -> dict[str, Any]:
        self._client.delete(ids)
        return {}

    def _put_first(self, id: str | None) -> None:
        if id is not None:
            self._client.put(self._array, id)


def _ended() -> dict[str, Any]:
    return {"ended": time.monotonic()}


def wait_until(at: float) -> None:
    # Sleep instead of spinning, as many workers share few cores and would delay each other's start.
    while (left := at - time.monotonic()) > 0:
        time.sleep(left)


def serve(calls: object, lines: Iterable[str], answers: IO[str], **about: Any) -> None:
    """Reports that it is ready, with ``about``. Then each line names a method of ``calls``."""
    print(json.dumps({"ready": True, **about}), file=answers, flush=True)
    for line in lines:
        arguments = json.loads(line)
        call: Callable[..., dict[str, Any]] = getattr(calls, arguments.pop("call"))
        at = arguments.pop("at", None)
        if at is not None:
            wait_until(at)
        began = time.monotonic()
        try:
            answer = {"began": began, **call(**arguments)}
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {error}"}
        if at is not None:
            time.sleep(REPORT_AFTER_SECONDS)
        print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    serve(Calls(sys.argv[1]), sys.stdin, sys.stdout)
