"""Tests the recovery benchmark's view of traffic: relays, hosts behind a relay, idle times of links."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import pytest
from conftest import eventually

from lab.hosts import Host, Hosts, HostsUnavailable, require
from lab.links import Link, LinkRates
from lab.traffic import Sample, Sampler, behind, edges, longest_standstill, middle_relay

PIPES = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}

CHAIN = {(0, 3), (3, 1), (1, 4), (4, 2)}


def test_hosts_behind_a_host_get_their_bytes_through_it() -> None:
    assert behind(CHAIN, 3) == {1, 4, 2}
    assert behind(CHAIN, 2) == set()
    assert behind({(0, 1), (1, 0)}, 0) == {1}


def test_the_middle_relay_halves_a_chain() -> None:
    assert middle_relay(CHAIN) == 1
    assert middle_relay({(5, 6), (6, 7)}) == 6


def test_without_a_relay_there_is_none_in_the_middle() -> None:
    with pytest.raises(RuntimeError, match="nobody relays"):
        middle_relay({(0, 1), (0, 2)})


def test_only_bytes_between_two_looks_make_an_edge() -> None:
    hosts = [
        Host(index, "none", f"10.77.0.{index + 1}", Link("none", "none", index, LinkRates()))
        for index in range(3)
    ]
    old = (0, "10.77.0.1", 4000, "10.77.0.2", 7420)
    new = (0, "10.77.0.1", 4001, "[::ffff:10.77.0.3]", 7420)
    before = {old: 50 << 20}
    after = {old: (50 << 20) + 1000, new: 2 << 20}
    assert edges(hosts, before, after) == {(0, 2)}


def test_a_standstill_is_the_longest_stretch_far_below_the_full_rate() -> None:
    rate, step = 1e8, 0.005
    samples, down = [], 0.0
    for number in range(200):
        at = number * step
        # Only gossip from 0.3 s to 0.7 s, full rate before and after.
        samples.append(Sample(at, (0, int(down)), (0, 0)))
        down += step * (rate / 500 if 0.3 <= at < 0.7 else rate)
    assert longest_standstill(samples, 1, 0.1, 0.9, rate) == pytest.approx(0.4, abs=2 * step)
    assert longest_standstill(samples, 1, 0.5, 0.9, rate) == pytest.approx(0.2, abs=2 * step)
    assert longest_standstill(samples, 1, 0.75, 0.9, rate) <= 2 * step
    # A link that never moves again is idle until the end.
    assert longest_standstill(samples, 0, 0.1, 0.9, rate) == pytest.approx(0.8)


@pytest.fixture
def hosts() -> Iterator[Hosts]:
    try:
        require()
    except HostsUnavailable as reason:
        pytest.skip(str(reason))
    with Hosts(2) as built:
        yield built


def test_links_are_read_by_host_and_way_also_when_the_program_has_ended(hosts: Hosts) -> None:
    size = 4 << 20
    sender, receiver = hosts
    listen = "import socket as s\nl = s.create_server(('', 9))\nprint('up', flush=True)\nc, _ = l.accept()\n"
    code = listen + "while c.recv(1 << 20): pass"
    listening = receiver.start([sys.executable, "-c", code], **PIPES)
    assert listening.stdout is not None
    assert listening.stdout.readline() == b"up\n"
    idle = sender.start([sys.executable, "-c", "print('up', flush=True); input()"], **PIPES)
    assert idle.stdout is not None
    assert idle.stdout.readline() == b"up\n"
    with Sampler([idle.pid, listening.pid]) as sampler:
        code = f"import socket as s\ns.create_connection(({receiver.address!r}, 9)).sendall(bytes({size}))"
        sender.run([sys.executable, "-c", code])
        assert listening.wait(10) == 0
        eventually(lambda: sampler.last.down[1] >= size, "what came is seen")
        assert sampler.last.up[0] >= size
        assert max(sampler.last.down[0], sampler.last.up[1]) < size
