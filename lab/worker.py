"""A client process in a host, told over a pipe what to do and at which instant.

``Worker`` is the benchmark's end of the pipe; ``python -m lab.worker SOCKET`` is the process. Calls
with an ``at`` start at that instant of the machine's monotonic clock, which all namespaces share, so
that many processes start together without talking to each other.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
import zlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from lab.hosts import Host
from lab.report import ROOT

#: Longest a single call of a benchmark may take.
CALL_SECONDS = 120.0

#: Ahead of "now" by this much lie the instants that workers start at: all have read their line by then.
START_AHEAD_SECONDS = 0.1


class WorkerFailed(RuntimeError):
    """A worker's call raised; the message is the traceback's last line."""


class Worker:
    """Drives one client process. ``send`` and ``receive`` are apart so that many can work at once."""

    def __init__(self, socket: str, host: Host | None = None) -> None:
        command = [sys.executable, "-m", "lab.worker", socket]
        self._process = subprocess.Popen(
            host.command(command) if host else command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
        )
        self.receive()

    def send(self, call: str, **arguments: Any) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"call": call, **arguments}) + "\n")
        self._process.stdin.flush()

    def receive(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise WorkerFailed(f"worker ended with {self._process.wait()}")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise WorkerFailed(answer["error"])
        return answer

    def ask(self, call: str, **arguments: Any) -> dict[str, Any]:
        self.send(call, **arguments)
        return self.receive()

    @property
    def pid(self) -> int:
        return self._process.pid

    def kill(self) -> None:
        """SIGKILL: whatever it was at is left as it is."""
        self._process.kill()
        with self._process:
            pass

    def close(self) -> None:
        with self._process:
            assert self._process.stdin is not None
            self._process.stdin.close()


def together(workers: Sequence[Worker], call: str, **arguments: Any) -> float:
    """The same call by all workers from one instant: seconds until the last of them has its result."""
    at = time.monotonic() + START_AHEAD_SECONDS
    for worker in workers:
        worker.send(call, at=at, **arguments)
    return float(max([worker.receive()["ended"] for worker in workers])) - at


def pattern(size: int, seed: int) -> np.ndarray:
    """Float32 whole numbers below 4096: their sums over many hosts are exact in any order."""
    return np.random.default_rng(seed).integers(0, 4096, size // 4, np.uint16).astype(np.float32)


def checksum(array: np.ndarray) -> int:
    return zlib.crc32(array.data)


class Calls:
    """What a worker can be told to do.

    Results are kept for a later ``check``: reading one costs as much as moving it, and would slow
    down those that are still at it.
    """

    def __init__(self, socket: str) -> None:
        import hoplite

        self._client = hoplite.connect(socket)
        self._array = self._result = np.empty(0, np.float32)

    def fill(self, size: int, seed: int) -> dict[str, Any]:
        self._array = pattern(size, seed)
        return {"checksum": checksum(self._array)}

    def put(self, id: str) -> dict[str, Any]:
        self._client.put(self._array, id)
        return _ended()

    def get(self, id: str) -> dict[str, Any]:
        self._result = self._client.get(id, timeout=CALL_SECONDS)
        return _ended()

    def reduce(self, id: str, sources: list[str], count: int | None = None) -> dict[str, Any]:
        reduction = self._client.reduce(sources, target=id, num_objects=count, op="sum", timeout=CALL_SECONDS)
        self._result = self._client.get(id, timeout=CALL_SECONDS)
        ended = _ended()
        went_in = reduction.result(timeout=CALL_SECONDS).sources
        return {**ended, "sources": [source.name for source in went_in]}

    def check(self) -> dict[str, Any]:
        """The checksum of what was got last, which is then let go."""
        answer = {"checksum": checksum(self._result)}
        self._result = np.empty(0, np.float32)
        return answer

    def delete(self, ids: list[str]) -> dict[str, Any]:
        self._client.delete(ids)
        return {}


def _ended() -> dict[str, Any]:
    return {"ended": time.monotonic()}


def _wait_until(at: float) -> None:
    # Not spun: many workers share few cores, and spinning ones would delay the others' start.
    while (left := at - time.monotonic()) > 0:
        time.sleep(left)


def main(socket: str) -> None:
    calls = Calls(socket)
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        arguments = json.loads(line)
        call: Callable[..., dict[str, Any]] = getattr(calls, arguments.pop("call"))
        at = arguments.pop("at", None)
        if at is not None:
            _wait_until(at)
        began = time.monotonic()
        try:
            answer = {"began": began, **call(**arguments)}
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
