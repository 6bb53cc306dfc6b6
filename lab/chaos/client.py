"""A client process in a host: ``python -m lab.chaos.client SOCKET`` makes calls on command.

Each line on standard input is a call, which starts at once in a thread of its own. Each line on standard
output is the outcome of a call. All calls share one connection. It is made anew after the daemon's death.
"""

from __future__ import annotations

import faulthandler
import json
import signal
import sys
import threading
import time
from collections.abc import Callable
from typing import Any, Literal

import hoplite

from lab.chaos.contents import Array, Content, Leaf, WrongContent, check, from_json

#: Longest time to connect to a daemon that listens. A paused daemon answers later.
CONNECT_SECONDS = 10.0

#: Number of pieces of a slow writer.
TRICKLES = 12

Call = dict[str, Any]
Outcome = dict[str, Any]


class Connection:
    """The connection to this host's daemon. It is kept until a call reports that the daemon is gone."""

    def __init__(self, socket: str) -> None:
        self._socket = socket
        self._lock = threading.Lock()
        self._client: hoplite.Client | None = None
        self._since = 0.0

    def client(self) -> tuple[hoplite.Client, float]:
        """The connection, and the time at which it was made."""
        with self._lock:
            if self._client is None:
                self._since = time.monotonic()
                self._client = hoplite.connect(self._socket, timeout=CONNECT_SECONDS)
            return self._client, self._since

    def drop(self, client: hoplite.Client) -> None:
        with self._lock:
            if self._client is client:
                self._client = None


class Calls:
    """The calls that can be made. Every method returns the facts about its success that the judge needs."""

    def __init__(self, client: hoplite.Client, call: Call) -> None:
        self._client, self._call = client, call
        self._ids: list[str] = call["ids"]
        self._timeout: float = call["timeout"]

    def _content(self) -> Content:
        return from_json(self._call["content"])

    def _array(self) -> Array:
        content = self._content()
        assert isinstance(content, Leaf)
        return content.array()

    def put(self) -> Outcome:
        array = self._array()
        self._client.put(array, self._ids[0], timeout=self._timeout)
        return {"bytes": array.nbytes}

    def fill(self) -> Outcome:
        """Writes an object in place, all at once."""
        return self._created(pieces=1, pause=0.0)

    def trickle(self) -> Outcome:
        """Writes an object in place, piece by piece, while receivers read it."""
        return self._created(TRICKLES, self._call["seconds"] / TRICKLES)

    def abandon(self) -> Outcome:
        """Writes a part of an object, then aborts."""
        array = self._array()
        creation = self._create(array)
        cut = int(len(array) * self._call.get("until", 0.0))
        creation.array[:cut] = array[:cut]
        creation.advance(cut * array.itemsize)
        creation.abort()
        return {}

    def _created(self, pieces: int, pause: float) -> Outcome:
        array = self._array()
        creation = self._create(array)
        try:
            step = -(-len(array) // pieces)
            for begin in range(0, len(array), step):
                creation.array[begin : begin + step] = array[begin : begin + step]
                creation.advance(min(begin + step, len(array)) * array.itemsize)
                time.sleep(pause)
            creation.seal(timeout=self._timeout)
        finally:
            creation.abort()  # does nothing once it is sealed
        return {"bytes": array.nbytes}

    def _create(self, array: Array) -> hoplite.Creation:
        return self._client.create(self._ids[0], array.shape, array.dtype, timeout=self._timeout)

    def view(self) -> Outcome:
        return self._checked(copy=False)

    def copy(self) -> Outcome:
        return self._checked(copy=True)

    def _checked(self, copy: bool) -> Outcome:
        on_lost: Literal["raise", "wait"] = "wait" if self._call.get("keep_waiting") else "raise"
        array = self._client.get(self._ids[0], timeout=self._timeout, copy=copy, on_lost=on_lost)
        got = time.monotonic()
        mask = check(self._content(), array)
        hold = self._call.get("hold", 0.0)
        if hold:
            # A view never changes, even if the object is deleted or lost.
            time.sleep(hold)
            if check(self._content(), array) != mask:
                raise WrongContent("it changed while it was held")
        return {"bytes": array.nbytes, "mask": mask, "checks": 2 if hold else 1, "ended": got}

    def reduce(self) -> Outcome:
        return self._reduced(self._client.reduce)

    def allreduce(self) -> Outcome:
        return self._reduced(self._client.allreduce)

    def _reduced(self, call: Callable[..., hoplite.Reduction]) -> Outcome:
        reduction = call(
            self._ids[1:],
            target=self._ids[0],
            num_objects=int(self._call["k"]),
            op=self._call["op"],
            order="fixed" if self._call.get("fixed") else "arrival",
            timeout=self._timeout,
        )
        result = reduction.result()
        return {"sources": [source.name for source in result.sources]}

    def wait(self) -> Outcome:
        ready, _ = self._client.wait(self._ids, int(self._call["k"]), timeout=self._timeout)
        return {"ready": [id.name for id in ready]}

    def prefetch(self) -> Outcome:
        self._client.prefetch(self._ids, timeout=self._timeout)
        return {}

    def locate(self) -> Outcome:
        found = self._client.locations(self._ids[0], timeout=self._timeout)
        return {"complete": [copy.node for copy in found.copies if copy.complete]}

    def delete(self) -> Outcome:
        self._client.delete(self._ids, timeout=self._timeout)
        return {}


class Process:
    def __init__(self, socket: str) -> None:
        self._connection = Connection(socket)
        self._output = threading.Lock()

    def begin(self, call: Call) -> None:
        threading.Thread(target=self._run, args=(call,), daemon=True).start()

    def _run(self, call: Call) -> None:
        outcome: Outcome = {"attempt": call["attempt"], "began": time.monotonic(), **self._attempt(call)}
        with self._output:
            print(json.dumps({"ended": time.monotonic(), **outcome}), flush=True)

    def _attempt(self, call: Call) -> Outcome:
        client, since = None, time.monotonic()
        try:
            client, since = self._connection.client()
            done: Outcome = getattr(Calls(client, call), call["call"])()
            return done
        except hoplite.NodeUnreachable as error:
            if client is not None:
                self._connection.drop(client)
            return failure(error) | {"connected": since}
        except Exception as error:
            return failure(error)


def failure(error: Exception) -> Outcome:
    return {"error": type(error).__name__, "message": str(error)}


def main(socket: str) -> None:
    # On SIGUSR1, after a failure, write the stacks of all threads to the log.
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    process = Process(socket)
    print(json.dumps({"hello": True}), flush=True)
    for line in sys.stdin:
        process.begin(json.loads(line))


if __name__ == "__main__":
    main(sys.argv[1])
