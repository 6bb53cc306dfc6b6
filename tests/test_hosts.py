"""Several hosts with their own addresses. Daemons find each other and move objects over the network."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Sequence

import pytest
from conftest import eventually

numpy = pytest.importorskip("numpy")

from lab.daemons import PORT, Daemon, on_hosts  # noqa: E402
from lab.hosts import Hosts, HostsUnavailable, require  # noqa: E402
from lab.memory import mapped  # noqa: E402
from lab.worker import Worker, checksum, pattern  # noqa: E402

SIZE = 8 << 20
STORE = "256MiB"


@pytest.fixture(scope="module")
def hosts() -> Iterator[Hosts]:
    try:
        require()
    except HostsUnavailable as reason:
        pytest.skip(str(reason))
    with Hosts(3, rate_mbit=1000) as built:
        yield built


@pytest.fixture(scope="module")
def daemons(hosts: Hosts) -> Iterator[list[Daemon]]:
    with on_hosts(hosts, STORE) as started:
        yield started


@pytest.fixture
def workers(hosts: Hosts, daemons: list[Daemon]) -> Iterator[list[Worker]]:
    started = [Worker(daemon.socket, host) for daemon, host in zip(daemons, hosts, strict=True)]
    yield started
    for worker in started:
        worker.close()


def test_a_host_has_its_own_address_and_nothing_of_the_machine(hosts: Hosts) -> None:
    for host in hosts:
        links = json.loads(host.run(["ip", "-json", "-4", "addr"], capture_output=True).stdout)
        addresses = {link["ifname"]: [entry["local"] for entry in link["addr_info"]] for link in links}
        assert addresses == {"lo": ["127.0.0.1"], "eth0": [host.address]}


def test_a_node_with_a_wildcard_address_announces_its_own(hosts: Hosts, daemons: Sequence[Daemon]) -> None:
    assert [daemon.address for daemon in daemons] == [f"{host.address}:{PORT}" for host in hosts]


def test_systems_share_a_hosts_memory_by_its_path() -> None:
    with Hosts(2) as hosts:
        first, second = hosts.memory.of(0), hosts.memory.of(1)
        mapped(first["source"], 4096).fill(7)
        # A process of another system in the host does this.
        told = "import sys; from lab.memory import mapped; mapped(sys.argv[1], 4096)[:10] += 1"
        hosts[0].run([sys.executable, "-c", told, first["source"]])
        assert list(mapped(first["source"], 8192)[[0, 9, 10, 1024]]) == [8, 8, 7, 0]
        assert (mapped(first["result"], 4096) == 0).all()
        assert (mapped(second["source"], 4096) == 0).all()
    with pytest.raises(OSError, match=first["source"]):
        mapped(first["source"], 4096)


def test_put_on_one_host_get_on_the_others_through_the_network(hosts: Hosts, workers: list[Worker]) -> None:
    expected = workers[0].ask("fill", size=SIZE, seed=1)["checksum"]
    before = [host.link_bytes() for host in hosts]
    workers[0].ask("put", id="spread")
    for worker in workers[1:]:
        worker.ask("get", id="spread")
        assert worker.ask("check")["checksums"] == [expected]
    after = [host.link_bytes() for host in hosts]
    for receiver in (1, 2):
        assert after[receiver]["down"] - before[receiver]["down"] >= SIZE
    assert sum(now["up"] - then["up"] for now, then in zip(after, before, strict=True)) >= 2 * SIZE


def test_reduce_over_three_hosts_through_the_network(hosts: Hosts, workers: list[Worker]) -> None:
    sources = [f"part-{index}" for index in range(len(workers))]
    for index, (worker, source) in enumerate(zip(workers, sources, strict=True)):
        worker.ask("fill", size=SIZE, seed=index)
        worker.ask("put", id=source)
    before = [host.link_bytes() for host in hosts]
    workers[0].ask("reduce", id="total", sources=sources)
    after = [host.link_bytes() for host in hosts]
    total = pattern(SIZE, 0) + pattern(SIZE, 1) + pattern(SIZE, 2)
    assert workers[0].ask("check")["checksums"] == [checksum(total)]
    for giver in (1, 2):
        assert after[giver]["up"] - before[giver]["up"] >= SIZE


def test_hosts_and_their_processes_are_removed_at_the_end() -> None:
    try:
        require()
    except HostsUnavailable as reason:
        pytest.skip(str(reason))
    with Hosts(2) as hosts:
        names = [host.namespace for host in hosts]
        program = hosts[0].start([sys.executable, "-c", "import signal; signal.pause()"])
    listed = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True).stdout
    assert program.poll() is not None
    assert not any(name in listed for name in names)


#: Programs of a host that accepts connections, and of one that connects and exits with the outcome.
ANSWERING = (
    "import socket; s = socket.create_server(('', 9), backlog=64); print(1, flush=True)\nwhile 1: s.accept()"
)
ASKING = "import socket, sys; socket.create_connection((sys.argv[1], 9), 0.5)"


@pytest.fixture
def network() -> Iterator[Hosts]:
    """Four hosts that accept connections. Tests may break their network."""
    try:
        require()
    except HostsUnavailable as reason:
        pytest.skip(str(reason))
    with Hosts(4, rate_mbit=100) as built:
        for host in built:
            answering = host.start([sys.executable, "-c", ANSWERING], stdout=subprocess.PIPE)
            assert answering.stdout is not None
            answering.stdout.readline()
        yield built


def reached(network: Hosts) -> list[str]:
    """For each host, the numbers of the hosts that it reaches."""
    tries = {
        (asker.index, asked.index): subprocess.Popen(
            asker.command([sys.executable, "-c", ASKING, asked.address]), stderr=subprocess.DEVNULL
        )
        for asker in network
        for asked in network
        if asker is not asked
    }
    can = {pair for pair, program in tries.items() if program.wait() == 0}
    return ["".join(str(j) for j in range(len(network)) if (i, j) in can) for i in range(len(network))]


def settles(network: Hosts, expected: list[str]) -> None:
    """Look several times: a kernel that has found no host at an address tries again only after a second."""
    eventually(lambda: reached(network) == expected, f"{expected} reach each other")


ALL_REACHED = ["123", "023", "013", "012"]


def test_a_cut_host_keeps_its_carrier_and_comes_back(network: Hosts) -> None:
    settles(network, ALL_REACHED)
    network[1].cut()
    assert network[1].is_cut
    settles(network, ["23", "", "03", "02"])
    carrier = network[1].run(["cat", "/sys/class/net/eth0/carrier"], capture_output=True, text=True)
    assert carrier.stdout == "1\n"
    network[1].heal()
    settles(network, ALL_REACHED)


def test_a_partition_has_sides_and_a_cut_host_on_no_side(network: Hosts) -> None:
    network.partition([0, 3])
    settles(network, ["3", "2", "1", "0"])
    network[3].cut()
    network.partition([0], [3, 1])
    settles(network, ["", "", "", ""])
    network[3].heal()
    settles(network, ["", "3", "", "1"])
    network.heal()
    settles(network, ALL_REACHED)
    with pytest.raises(ValueError, match="no separate sides"):
        network.partition([0, 1], [1, 2])


def test_a_changed_rate_is_given_back(network: Hosts) -> None:
    def rates() -> tuple[int, ...]:
        devices = json.loads(network[0].run(["tc", "-json", "qdisc"], capture_output=True).stdout)
        return tuple(device["options"]["rate"] for device in devices if device["kind"] == "tbf")

    built = rates()
    network[0].limit(2)
    assert [rate * 50 for rate in rates()] == list(built)
    network.heal()
    assert rates() == built


#: Sends without end to the host that connects, as fast as the link allows.
SENDING = """
import socket, sys
with socket.create_connection((sys.argv[1], 10)) as connection:
    while True:
        connection.sendall(bytes(1 << 20))
"""
TAKING = """
import socket
with socket.create_server(('', 10)) as listener:
    print(1, flush=True)
    connection, _ = listener.accept()
    while connection.recv(1 << 20):
        pass
"""


def test_a_slowed_full_link_still_carries(network: Hosts) -> None:
    taking = network[1].start([sys.executable, "-c", TAKING], stdout=subprocess.PIPE)
    assert taking.stdout is not None
    taking.stdout.readline()
    network[0].start([sys.executable, "-c", SENDING, network[1].address])
    eventually(lambda: network[1].link_bytes()["down"] > 1 << 20, "the link is in use")
    # The queue now has packets larger than a slow link's bucket.
    network[0].limit(5)
    wanted = network[1].link_bytes()["down"] + (256 << 10)
    eventually(lambda: network[1].link_bytes()["down"] > wanted, "bytes come at 5 Mbit/s")
