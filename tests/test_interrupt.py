"""Time-outs, Ctrl-C, threads and `close` end every wait."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import hoplite
import numpy as np
import pytest
from conftest import TIMEOUT, Names, eventually, process

WAITS: dict[str, Callable[[hoplite.Client, str, dict[str, float]], object]] = {
    "get": lambda client, name, timeout: client.get(name, **timeout),
    "get copy": lambda client, name, timeout: client.get(name, copy=True, **timeout),
    "get out": lambda client, name, timeout: client.get(name, out=bytearray(8), **timeout),
    "get_object": lambda client, name, timeout: client.get_object(name, **timeout),
    "reduce": lambda client, name, timeout: client.reduce([name, name + "2"]).result(**timeout),
    "allreduce": lambda client, name, timeout: client.allreduce([name, name + "2"], **timeout).result(),
}


@pytest.mark.parametrize("seconds", [0, 0.02])
@pytest.mark.parametrize("wait", WAITS.values(), ids=WAITS)
def test_every_wait_times_out(
    client: hoplite.Client,
    name: Names,
    wait: Callable[[hoplite.Client, str, dict[str, float]], object],
    seconds: float,
) -> None:
    with pytest.raises(hoplite.TimedOut):
        wait(client, name(), {"timeout": seconds})


def test_a_copying_get_times_out_half_way(clients: list[hoplite.Client], name: Names) -> None:
    size = 4 << 20
    with clients[0].create(name(), size, np.uint8) as creation:
        creation.advance(size // 2)
        with pytest.raises(hoplite.TimedOut, match=str(size)):
            clients[0].get(creation.id, copy=True, timeout=0.1)


@pytest.mark.parametrize("timeout", [-1, float("nan"), -0.001])
def test_bad_timeouts(client: hoplite.Client, timeout: float) -> None:
    with pytest.raises(hoplite.BadArgument, match="timeout"):
        client.get("x", timeout=timeout)


def test_infinity_is_for_ever(client: hoplite.Client, name: Names) -> None:
    id = client.put(np.arange(3), name())
    client.get(id, timeout=float("inf"))


Interrupted = Callable[[Callable[[], object]], None]


@pytest.fixture
def interrupted() -> Iterator[Interrupted]:
    """Makes a call during which a SIGINT arrives. It raises KeyboardInterrupt however pytest was started."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)

    def interrupt(call: Callable[[], object]) -> None:
        timer = threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT))
        timer.start()
        try:
            call()
        finally:
            timer.join()

    yield interrupt
    signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize("wait", WAITS.values(), ids=WAITS)
def test_ctrl_c_ends_every_wait(
    interrupted: Interrupted,
    client: hoplite.Client,
    name: Names,
    wait: Callable[[hoplite.Client, str, dict[str, float]], object],
) -> None:
    with pytest.raises(KeyboardInterrupt):
        interrupted(lambda: wait(client, name(), {}))
    client.status(timeout=TIMEOUT)


def test_a_reduction_survives_ctrl_c(interrupted: Interrupted, client: hoplite.Client, name: Names) -> None:
    names = [name(0), name(1)]
    reduction = client.reduce(names, target=name("sum"))
    with pytest.raises(KeyboardInterrupt):
        interrupted(reduction.result)
    assert not reduction.done()
    for source in names:
        client.put(np.ones(1000), source)
    assert set(map(str, reduction.result(TIMEOUT).sources)) == set(names)


def test_ctrl_c_ends_a_wait_for_space(interrupted: Interrupted) -> None:
    with hoplite.LocalCluster(1, store_size="8MiB") as cluster:
        client = cluster.connect()
        client.put(bytes(6 << 20), "first")
        with pytest.raises(KeyboardInterrupt):
            interrupted(lambda: client.put(bytes(6 << 20), "second"))
        assert client.status().copies == 1


def test_ctrl_c_ends_a_connect(interrupted: Interrupted, tmp_path: Path) -> None:
    # A listener that never answers.
    path = str(tmp_path / "mute.sock")
    with socket.socket(socket.AF_UNIX) as mute:
        mute.bind(path)
        mute.listen()
        with pytest.raises(hoplite.NodeUnreachable, match="no welcome"):
            hoplite.connect(path, timeout=0.05)
        with pytest.raises(KeyboardInterrupt):
            interrupted(lambda: hoplite.connect(path, timeout=None))


CHILD = """
import signal, sys, hoplite
# A shell ignores it in what it starts in the background, these tests perhaps, and that is inherited.
signal.signal(signal.SIGINT, signal.default_int_handler)
client = hoplite.connect(sys.argv[1])
print("ready", flush=True)
client.get("never put by anyone")
"""


def test_ctrl_c_ends_a_process(cluster: hoplite.LocalCluster) -> None:
    with process(sys.executable, "-c", CHILD, cluster.sockets[0]) as child:
        assert child.stdout is not None
        assert child.stderr is not None
        assert child.stdout.readline() == b"ready\n"
        child.send_signal(signal.SIGINT)
        assert b"KeyboardInterrupt" in child.stderr.read()
    assert child.returncode != 0


def test_other_threads_run_during_a_wait(client: hoplite.Client, name: Names) -> None:
    counted = 0
    stop = threading.Event()

    def count() -> None:
        nonlocal counted
        while not stop.is_set():
            counted += 1

    thread = threading.Thread(target=count)
    thread.start()
    with pytest.raises(hoplite.TimedOut):
        client.get(name(), timeout=0.2)
    stop.set()
    thread.join()
    assert counted > 1000


def test_close_ends_waits_of_other_threads(cluster: hoplite.LocalCluster, name: Names) -> None:
    client = cluster.connect(0)
    outcome: list[BaseException] = []

    def get() -> None:
        try:
            client.get(name())
        except hoplite.HopliteError as error:
            outcome.append(error)

    thread = threading.Thread(target=get)
    thread.start()
    eventually(thread.is_alive, "the thread runs")
    client.close()
    thread.join()
    assert isinstance(outcome[0], hoplite.Aborted)
    with pytest.raises(hoplite.Aborted, match="closed"):
        client.put(b"x")
    client.close()


@pytest.mark.parametrize("length", [100, 100_000])
def test_a_forked_child_is_told_to_connect_itself(
    cluster: hoplite.LocalCluster, name: Names, length: int
) -> None:
    # In a process of its own, because pytest's has threads, which make forks unsafe.
    code = """
import os, sys, numpy as np, hoplite
client = hoplite.connect(sys.argv[1])
view = client.get(client.put(np.arange(int(sys.argv[3])), sys.argv[2]))
pid = os.fork()
if pid == 0:
    try:
        client.get(sys.argv[2], timeout=1)
    except hoplite.BadArgument as error:
        ok = "forked" in str(error)
    own = hoplite.connect(sys.argv[1])
    ok = ok and (own.get(sys.argv[2]) == view).all()
    del view, client
    os._exit(0 if ok else 1)
assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
assert (view == np.arange(int(sys.argv[3]))).all()
client.delete(sys.argv[2])
"""
    subprocess.run([sys.executable, "-c", code, cluster.sockets[0], name(), str(length)], check=True)
