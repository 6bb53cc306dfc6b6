"""Clients killed with SIGKILL: unsealed objects are withdrawn everywhere, and views are released."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import Future
from typing import Any

import hoplite
import numpy as np
import pytest
from conftest import EVENTUALLY_SECONDS, ClusterOf, Threads, eventually, process
from faults import MIB, TIMEOUT, bytes_of, has_received, names_owned_by, returns_to, usage

SIZE = 8 * MIB
HALF = SIZE // 2

CREATE = f"""
import signal, sys, numpy as np, hoplite
client = hoplite.connect(sys.argv[1])
creation = client.create(sys.argv[2], {SIZE}, np.uint8)
creation.array[:] = 1
creation.advance({HALF})
print("ready", flush=True)
signal.pause()
"""

CREATE_AND_FORK = CREATE.replace("print(", "child = os.fork() or signal.pause()\nprint(child, ").replace(
    "import ", "import os, ", 1
)
"""The same, with a forked child that has inherited everything. Its process id follows the word."""

LARGE = 512 * MIB
"""So large that the process can be killed during the copy, which goes to memory that was not used before."""

ATTEMPTS = 10
"""Most tries to kill it during the copy. Nearly always one is enough."""

PUT = f"""
import signal, sys, numpy as np, hoplite
client = hoplite.connect(sys.argv[1])
value = np.ones({LARGE}, np.uint8)
print("ready", flush=True)
client.get("go", timeout={TIMEOUT})
client.put(value, sys.argv[2])
signal.pause()
"""

HOLD = f"""
import signal, sys, threading, numpy as np, hoplite
client = hoplite.connect(sys.argv[1])
deleted, first, second, never, target = sys.argv[2:]
view = client.get(deleted, timeout={TIMEOUT})
client.delete(deleted, timeout={TIMEOUT})
reduction = client.reduce([first, second, never], target=target)
for call in (lambda: client.get(never), lambda: client.wait([first, never]), lambda: client.get(target)):
    threading.Thread(target=call).start()
print("ready", flush=True)
signal.pause()
"""


@contextlib.contextmanager
def child(code: str, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    """A process with a client of its own. It is ready."""
    with process(sys.executable, "-c", code, *arguments) as started:
        assert started.stdout is not None
        assert started.stdout.readline() == b"ready\n"
        yield started


def kill(child: subprocess.Popen[bytes]) -> None:
    child.send_signal(signal.SIGKILL)
    child.wait(EVENTUALLY_SECONDS)


@pytest.fixture
def clients(cluster_of: ClusterOf) -> list[hoplite.Client]:
    """One client on each of four nodes. The killed client is on the first node."""
    cluster = cluster_of(4)
    return [cluster.connect(node) for node in range(4)]


def gets(threads: Threads, clients: list[hoplite.Client], name: str) -> list[Future[Any]]:
    """Start gets on every node, also on the writer's, of views and of copies."""
    return [
        threads.submit(client.get, name, copy=copy, timeout=TIMEOUT)
        for client in clients
        for copy in (False, True)
    ]


# The writer's node, a receiver's or a third one owns the directory entry.
@pytest.mark.parametrize("owner", [0, 1, 3])
def test_a_streaming_writer(threads: Threads, clients: list[hoplite.Client], owner: int) -> None:
    (name,) = names_owned_by(clients, owner)
    before = [usage(client) for client in clients]
    with child(CREATE, clients[0].socket, name) as writer:
        waiting = gets(threads, clients[:3], name)
        for client in clients[1:3]:
            has_received(client, HALF - MIB)
        kill(writer)
    # Receivers that streamed behind the writer drop their bytes too.
    returns_to(before, clients)
    assert [get.exception(0) for get in waiting if get.done()] == []
    # Another client on another node puts other bytes of another size.
    content = bytes_of(1, SIZE + 1)
    clients[3].put(content, name, timeout=TIMEOUT)
    for get in waiting:
        np.testing.assert_array_equal(get.result(), content)


def test_a_killed_writer_with_a_living_child(threads: Threads, clients: list[hoplite.Client]) -> None:
    (name,) = names_owned_by(clients, 3)
    before = [usage(client) for client in clients]
    with process(sys.executable, "-c", CREATE_AND_FORK, clients[0].socket, name) as writer:
        assert writer.stdout is not None
        child, ready = writer.stdout.readline().split()
        assert ready == b"ready"
        try:
            waiting = gets(threads, clients[:2], name)
            has_received(clients[1], HALF - MIB)
            kill(writer)
            # The child keeps the connection open but never writes to it.
            returns_to(before, clients)
            content = bytes_of(1, SIZE + 1)
            clients[0].put(content, name, timeout=TIMEOUT)
            for get in waiting:
                np.testing.assert_array_equal(get.result(), content)
        finally:
            os.kill(int(child), signal.SIGKILL)


def is_caught(threads: Threads, clients: list[hoplite.Client], waiting: list[Future[Any]]) -> bool:
    """Kill a client during a large put, behind which the `waiting` gets stream.

    False if the put was complete by then. Otherwise the object must be withdrawn.
    """
    before = [usage(client) for client in clients]
    with child(PUT, clients[0].socket, "large") as writer:
        waiting += gets(threads, clients[1:3], "large")
        clients[3].put(b"go", "go", timeout=TIMEOUT)
        for client in clients[1:3]:
            has_received(client, MIB)
        kill(writer)
    clients[3].delete("go", timeout=TIMEOUT)
    eventually(
        lambda: all(get.done() for get in waiting) or [usage(client) for client in clients] == before,
        "either all of it is there, or it is withdrawn everywhere",
    )
    return not any(get.done() for get in waiting)


def test_a_large_put(threads: Threads) -> None:
    for _ in range(ATTEMPTS):
        with hoplite.LocalCluster(4, store_size="576MiB") as cluster:
            clients = [cluster.connect(node) for node in range(4)]
            waiting: list[Future[Any]] = []
            if is_caught(threads, clients, waiting):
                clients[3].put(bytes_of(1), "large", timeout=TIMEOUT)
                for get in waiting:
                    np.testing.assert_array_equal(get.result(), bytes_of(1))
                return
    pytest.fail("the put was always done before its client was killed")


def test_views_calls_and_reductions_are_released(clients: list[hoplite.Client]) -> None:
    def entries() -> int:
        return clients[1].status(timeout=TIMEOUT).entries

    deleted, first, second, never, target = names_owned_by(clients, 1, 5)
    clients[2].put(bytes_of(0, SIZE), first, timeout=TIMEOUT)
    clients[3].put(bytes_of(1, SIZE), second, timeout=TIMEOUT)
    before = [usage(client) for client in clients]
    known = entries()
    clients[2].put(bytes_of(2, SIZE), deleted, timeout=TIMEOUT)
    with child(HOLD, clients[0].socket, deleted, first, second, never, target) as holder:
        # The view keeps its bytes. Nodes wait and reduce for the client.
        eventually(lambda: usage(clients[0]).reductions == 1, "the reduction has begun")
        eventually(lambda: any(usage(client).reductions for client in clients[2:]), "somebody adds up")
        eventually(lambda: entries() == known + 2, "somebody waits for what is missing")
        assert usage(clients[0]).used_bytes >= SIZE
        kill(holder)
    returns_to(before, clients)
    eventually(lambda: entries() == known, "nobody waits any more")
    eventually(lambda: clients[0].status(timeout=TIMEOUT).clients == 1, "its connection is gone")


WAITING = 500_000
"""Number of objects that a client waits for. Forgetting all of them at once would take the node seconds."""

WAIT = f"""
import signal, sys, threading, hoplite
client = hoplite.connect(sys.argv[1])
ids = [f"never {{number}}" for number in range({WAITING})]
for start in range(0, {WAITING}, 50_000):
    some = ids[start : start + 50_000]
    threading.Thread(target=client.wait, args=(some,), daemon=True).start()
print("ready", flush=True)
signal.pause()
"""

STALL_SECONDS = 0.45
"""Seconds of silence after which the others declare a node dead."""


def watched(client: hoplite.Client) -> int:
    gauges = {gauge.name: gauge.value for gauge in client.status(timeout=TIMEOUT).gauges}
    return gauges["objects watched"]


def test_a_dead_client_with_many_waits_stalls_nobody(clients: list[hoplite.Client]) -> None:
    with child(WAIT, clients[0].socket) as waiting:
        eventually(lambda: watched(clients[0]) == WAITING, "all are watched")
        kill(waiting)
        longest = 0.0
        while watched(clients[0]) > 0:
            began = time.monotonic()
            clients[0].status(timeout=TIMEOUT)
            longest = max(longest, time.monotonic() - began)
    assert longest < STALL_SECONDS
    assert len(clients[1].status(timeout=TIMEOUT).members) == len(clients)


CLOSE_AND_FORK = """
import os, signal, sys, hoplite
client = hoplite.connect(sys.argv[1])
closed_at_death, kept_by_parent = os.pipe()
if os.fork() == 0:
    os.close(kept_by_parent)
    os.read(closed_at_death, 1)
    os._exit(0)
client.close()
print("ready", flush=True)
signal.pause()
"""


def test_close_ends_the_connection_of_a_forked_child(clients: list[hoplite.Client]) -> None:
    before = clients[0].status(timeout=TIMEOUT).clients
    with process(sys.executable, "-c", CLOSE_AND_FORK, clients[0].socket) as closing:
        assert closing.stdout is not None
        assert closing.stdout.readline() == b"ready\n"
        eventually(lambda: clients[0].status(timeout=TIMEOUT).clients == before, "it is counted no more")
