"""LocalCluster: its processes start, die, restart, and never stay behind."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import hoplite
import numpy as np
import pytest
from conftest import TIMEOUT, ClusterOf, eventually, process


def alive(pid: int) -> bool:
    """Whether the process runs and is not a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_addresses_sockets_and_members(cluster: hoplite.LocalCluster) -> None:
    assert len(cluster) == 4
    assert len(set(cluster.addresses)) == 4
    assert all(address.startswith("127.0.0.1:") for address in cluster.addresses)
    assert all(Path(path).is_socket() for path in cluster.sockets)
    for i in range(4):
        with cluster.connect(i) as client:
            assert client.node == cluster.addresses[i]
            assert client.socket == cluster.sockets[i]
            assert sorted(client.status().members) == sorted(cluster.addresses)


def test_nothing_stays_behind() -> None:
    with hoplite.LocalCluster(2, store_size="16MiB") as cluster:
        pids = [pid for pid in cluster.pids if pid is not None]
        folder = Path(cluster.sockets[0]).parent
        assert all(map(alive, pids))
    assert not any(map(alive, pids))
    assert not folder.exists()
    assert cluster.pids == [None, None]
    cluster.close()


CHILD = """
import os, sys, time, hoplite
cluster = hoplite.LocalCluster(2, store_size="16MiB")
print(*cluster.pids, flush=True)
time.sleep(600)
"""


@pytest.mark.parametrize("signal_number", [signal.SIGKILL, signal.SIGINT])
def test_nothing_stays_behind_a_dead_parent(signal_number: signal.Signals) -> None:
    with process(sys.executable, "-c", CHILD) as parent:
        assert parent.stdout is not None
        pids = list(map(int, parent.stdout.readline().split()))
        assert len(pids) == 2
        assert all(map(alive, pids))
        parent.send_signal(signal_number)
    for pid in pids:
        eventually(lambda pid=pid: not alive(pid), f"node {pid} ends with its parent")  # type: ignore[misc]


FOLDER_CHILD = """
import os, signal, sys, hoplite
cluster = hoplite.LocalCluster(1, store_size="16MiB")
print(os.path.dirname(cluster.sockets[0]), cluster.pids[0], flush=True)
signal.pause()
"""


def test_the_folder_of_a_killed_cluster_is_removed_by_the_next() -> None:
    with (
        process(sys.executable, "-c", FOLDER_CHILD) as killed,
        process(sys.executable, "-c", FOLDER_CHILD) as alive_still,
    ):
        assert killed.stdout is not None
        assert alive_still.stdout is not None
        stale, pid = killed.stdout.readline().decode().split()
        used, _ = alive_still.stdout.readline().decode().split()
        killed.kill()
        killed.wait()
        eventually(lambda: not alive(int(pid)), "its node ends")
        assert Path(stale).exists()
        with hoplite.LocalCluster(1, store_size="16MiB"):
            assert not Path(stale).exists()
            assert Path(used).exists()


def test_nodes_outlive_their_starting_thread() -> None:
    with ThreadPoolExecutor(1) as thread:
        cluster = thread.submit(hoplite.LocalCluster, 1, store_size="16MiB").result()
    with cluster:
        with ThreadPoolExecutor(1) as thread:
            thread.submit(cluster.restart, 0).result()
        assert cluster.connect(0).status().clients == 1


def test_a_node_may_be_paused(pair: hoplite.LocalCluster) -> None:
    client = pair.connect(0)
    for _ in range(2):
        pair.pause(1)
        with pytest.raises(hoplite.HopliteError, match="no welcome"):
            pair.connect(1, timeout=0.1)
        # The others declare it dead after a while. Its own view does not count.
        pair.wait_members(1)
        pair.resume(1)
        pair.wait_members(2)
    client.put(np.arange(10), "x")
    np.testing.assert_array_equal(pair.connect(1).get("x", timeout=TIMEOUT), np.arange(10))


def test_a_paused_node_can_be_killed_stopped_and_closed(cluster_of: ClusterOf) -> None:
    cluster = cluster_of(3)
    for node in range(3):
        cluster.pause(node)
    cluster.kill(0)
    cluster.stop(1)
    assert cluster.pids[:2] == [None, None]
    cluster.resume(0)
    cluster.close()
    assert cluster.pids == [None] * 3


def test_a_stopped_node_leaves_and_hands_over_its_only_copies(cluster_of: ClusterOf) -> None:
    # It hands over everything if it has time for that, otherwise nothing.
    for drain, found in ((0, False), (5000, True)):
        with hoplite.LocalCluster(3, store_size="64MiB", daemon_args=["--drain-ms", str(drain)]) as cluster:
            client = cluster.connect(0)
            value = np.arange(1_000_000)
            cluster.connect(1).put(value, "only there", timeout=TIMEOUT)
            client.wait(["only there"], timeout=TIMEOUT)
            cluster.stop(1, timeout=TIMEOUT)
            assert cluster.pids[1] is None
            cluster.wait_members(2)
            if found:
                np.testing.assert_array_equal(client.get("only there", timeout=TIMEOUT), value)
            else:
                with pytest.raises((hoplite.TimedOut, hoplite.ObjectLost)):
                    client.get("only there", timeout=0.1)


def test_a_killed_node_is_noticed_and_may_come_back(pair: hoplite.LocalCluster) -> None:
    client = pair.connect(0)
    pair.connect(1).put(np.arange(100_000), "on the other")
    np.testing.assert_array_equal(client.get("on the other", copy=True, timeout=TIMEOUT), np.arange(100_000))
    address = pair.addresses[1]
    pair.kill(1)
    assert pair.pids[1] is None
    pair.wait_members(1)
    # The fetched copy is still here.
    np.testing.assert_array_equal(client.get("on the other", timeout=TIMEOUT), np.arange(100_000))
    pair.restart(1)
    pair.wait_members(2)
    assert pair.addresses[1] == address
    back = pair.connect(1)
    assert back.status().copies == 0
    np.testing.assert_array_equal(back.get("on the other", timeout=TIMEOUT), np.arange(100_000))
    id = back.put(np.ones(100_000), "after the restart")
    np.testing.assert_array_equal(client.get(id, timeout=TIMEOUT), np.ones(100_000))


def test_an_object_with_only_dead_holders_is_lost(pair: hoplite.LocalCluster) -> None:
    # So many that the living node owns the directory entries of some.
    names = [f"precious {i}" for i in range(16)]
    for name in names:
        pair.connect(1).put(np.arange(100_000), name)
    client = pair.connect(0)
    # A wait watches them, so that the directory remembers them.
    watcher = threading.Thread(target=lambda: client.wait([*names, "last"], timeout=TIMEOUT))
    watcher.start()
    eventually(lambda: len(client.wait(names, timeout=0)[0]) == len(names), "all are known")
    pair.kill(1)
    pair.wait_members(1)
    lost = []
    for name in names:
        with contextlib.suppress(hoplite.TimedOut):
            try:
                client.get(name, timeout=0.2)
            except hoplite.ObjectLost as error:
                lost.append(str(error))
    assert lost
    assert all("precious" in message for message in lost)
    with pytest.raises(hoplite.TimedOut):
        client.get(names[0], timeout=0.1, on_lost="wait")
    for name in [*names, "last"]:
        client.put(np.arange(100_000), name)
    np.testing.assert_array_equal(client.get(names[0], timeout=TIMEOUT), np.arange(100_000))
    watcher.join()


def test_calls_to_a_dead_node_raise_node_unreachable(pair: hoplite.LocalCluster) -> None:
    client = pair.connect(1)
    view = client.get(client.put(np.arange(1000_000), "x"))
    pair.kill(1)
    with pytest.raises(hoplite.NodeUnreachable) as caught:
        client.get("y")
    assert pair.addresses[1] in str(caught.value)
    assert caught.value.is_retryable
    # The memory is still mapped.
    assert view[-1] == 999_999
    with pytest.raises(hoplite.NodeUnreachable):
        client.put(b"x")


def test_killing_a_node_in_the_middle_of_a_wait(pair: hoplite.LocalCluster) -> None:
    client = pair.connect(1)
    reduction = client.reduce(["a", "b"])
    pair.kill(1)
    with pytest.raises(hoplite.NodeUnreachable):
        reduction.result(TIMEOUT)


def test_the_error_of_a_failed_start_has_the_reason() -> None:
    with pytest.raises(hoplite.NodeUnreachable, match="store"):
        hoplite.LocalCluster(1, store_size="12 parsecs")
    with pytest.raises(hoplite.BadArgument):
        hoplite.LocalCluster(0)


def test_a_paused_node_does_not_hang_its_clients(pair: hoplite.LocalCluster) -> None:
    client = pair.connect(1)
    pair.pause(1)
    with pytest.raises(hoplite.TimedOut):
        client.get("x", timeout=0.1)
    with pytest.raises(hoplite.HopliteError, match="no welcome"):
        pair.connect(1, timeout=0.1)
    pair.resume(1)
    client.put(b"awake", timeout=TIMEOUT)


@pytest.mark.parametrize(
    "mistake", [{"nodes": 1.5}, {"nodes": "2"}, {"start_timeout": -1}, {"nodes": 0}], ids=str
)
def test_a_failed_cluster_leaves_no_folder(mistake: dict[str, Any]) -> None:
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises((hoplite.BadArgument, TypeError)):
        hoplite.LocalCluster(**{"nodes": 1, **mistake})
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_dropped_client_closes_its_connection(pair: hoplite.LocalCluster) -> None:
    kept = pair.connect(0)
    before = kept.status().clients
    for number in range(10):
        pair.connect(0).put(np.arange(10), f"number {number}")
    eventually(lambda: kept.status().clients == before, "the node has only the clients that are left")
