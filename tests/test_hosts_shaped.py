"""Hosts in racks, and connections capped below the rate of the link, measured with iperf3."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from conftest import eventually
from test_hosts import ANSWERING, reached

numpy = pytest.importorskip("numpy")

from lab.hosts import Host, Hosts, HostsUnavailable, require  # noqa: E402
from lab.limits import iperf  # noqa: E402
from lab.network import Network  # noqa: E402

#: Share of the rate that payload reaches. Headers take 5 %. Slow start and the burst of the bucket change it.
LEAST, MOST = 0.8, 1.1

RATE, CAP = 200, 40
BYTES = 16 << 20


@pytest.fixture(autouse=True)
def able() -> None:
    try:
        require()
    except HostsUnavailable as reason:
        pytest.skip(str(reason))
    if shutil.which("iperf3") is None:
        pytest.skip("iperf3 is missing")


@pytest.fixture
def capped() -> Iterator[Hosts]:
    with Hosts(2, rate_mbit=RATE, flow_cap_mbit=CAP) as built:
        yield built


@pytest.fixture
def racks() -> Iterator[Hosts]:
    with Hosts(4, rate_mbit=RATE, hosts_per_rack=2, uplink_mbit=RATE) as built:
        yield built


def mbit(server: Host, client: Host, flows: int = 1, size: int = BYTES) -> float:
    return iperf(server.address, size, server, client, flows).bytes_per_second * 8 / 1e6


def test_one_flow_is_capped_and_enough_of_them_fill_the_link(capped: Hosts) -> None:
    assert LEAST * CAP < mbit(capped[0], capped[1], size=BYTES // 4) < MOST * CAP
    assert LEAST * RATE < mbit(capped[0], capped[1], capped.network.flows_to_fill) < MOST * RATE


def test_flows_are_told_apart(capped: Hosts) -> None:
    # Sometimes two of four share a class. Then all four together get three quarters.
    best = max(mbit(capped[0], capped[1], flows=4) for _ in range(3))
    assert LEAST * 4 * CAP < best < MOST * 4 * CAP


def test_a_changed_rate_keeps_the_cap(capped: Hosts) -> None:
    capped[1].limit(CAP / 2)
    assert mbit(capped[0], capped[1], size=BYTES // 8) < MOST * CAP / 2
    capped[1].restore()
    assert LEAST * CAP < mbit(capped[0], capped[1], size=BYTES // 4) < MOST * CAP


def test_hosts_of_a_rack_share_its_uplink_and_not_each_others_links(racks: Hosts) -> None:
    def together(pairs: list[tuple[int, int]]) -> list[float]:
        with ThreadPoolExecutor() as threads:
            return list(threads.map(lambda pair: mbit(racks[pair[0]], racks[pair[1]]), pairs))

    within = together([(0, 1), (2, 3)])
    assert min(within) > LEAST * RATE
    between = together([(0, 2), (1, 3)])
    # The last flow has the link to itself at the end.
    assert min(between) < 0.7 * RATE
    assert sum(between) < 1.5 * RATE


def test_racks_can_be_cut_partitioned_and_healed(racks: Hosts) -> None:
    for host in racks:
        answering = host.start(["python3", "-c", ANSWERING], stdout=subprocess.PIPE)
        assert answering.stdout is not None
        answering.stdout.readline()

    def settles(expected: list[str]) -> None:
        eventually(lambda: reached(racks) == expected, f"{expected} reach each other")

    settles(["123", "023", "013", "012"])
    racks.partition([0, 2])
    settles(["2", "3", "0", "1"])
    racks[1].cut()
    settles(["2", "", "0", ""])
    racks.heal()
    settles(["123", "023", "013", "012"])
    found = json.loads(racks[0].run(["ip", "-json", "link"], capture_output=True).stdout)
    assert {link["ifname"] for link in found} == {"lo", "eth0"}


def test_namespaces_and_links_are_removed_at_the_end() -> None:
    with Hosts(3, RATE, hosts_per_rack=2, uplink_mbit=RATE, flow_cap_mbit=CAP) as hosts:
        names = [host.namespace for host in hosts]
    listed = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True).stdout
    links = subprocess.run(["ip", "link"], capture_output=True, text=True).stdout
    assert not any(name in listed for name in names)
    assert "rack0" not in links


def test_inconsistent_networks_are_refused() -> None:
    with pytest.raises(ValueError, match="without racks"):
        Network(RATE, uplink_mbit=RATE)
    with pytest.raises(ValueError, match="0 hosts in a rack"):
        Network(RATE, hosts_per_rack=0)
    with pytest.raises(ValueError, match="without a rate"):
        _ = Network(None, flow_cap_mbit=CAP).flows_to_fill


def test_a_network_describes_itself() -> None:
    assert str(Network(500.0)) == "500 Mbit/s"
    assert str(Network(500.0, 4, 250.0)) == "500 Mbit/s, racks of 4 behind 250 Mbit/s"
    assert str(Network(800.0, flow_cap_mbit=200.0)) == "800 Mbit/s, 200 Mbit/s a flow"
    assert Network(800.0, flow_cap_mbit=300.0).flows_to_fill == 6
