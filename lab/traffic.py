"""Traffic between hosts: counters of their links during a run, and which host sends to which.

The system chooses its relays while a collective runs. So a fault that must hit a relay half-way first looks
for one. Both views come from the kernel and cost almost no time.
"""

from __future__ import annotations

import os
import re
import subprocess
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from lab.hosts import Host

#: Interval of the readings of all links. It is shorter than any detection, and long enough to cost almost
#: nothing.
SAMPLE_SECONDS = 0.005

#: A connection that carried fewer bytes than this since the last look at the tree carries no object.
EDGE_BYTES_MIN = 1 << 20

#: Time over which the rate of a link is taken, and the share of the full rate from which it counts as moving.
#: Gossip, control messages and rests in queues are far below it.
WINDOW_SECONDS = 0.01
MOVING_SHARE = 0.25

_CONNECTION = re.compile(r"(?P<local>\S+):(?P<port>\d+)\s+(?P<peer>\S+):(?P<peer_port>\d+)\s")
_SENT = re.compile(r"bytes_sent:(\d+)")

Connections = Mapping[tuple[int, str, int, str, int], int]


@dataclass(frozen=True, slots=True)
class Sample:
    """Bytes since the start of the sampler, by host."""

    at: float
    down: tuple[int, ...]
    up: tuple[int, ...]


class Sampler:
    """Reads the links of all hosts in a thread of its own until it is closed."""

    def __init__(self, pids: Sequence[int]) -> None:
        """``pids``: ids of one running program in each host. The programs may end later."""
        # An open file keeps its namespace even after the process has ended.
        self._files = [os.open(f"/proc/{pid}/net/dev", os.O_RDONLY) for pid in pids]
        self._first = [_read(file) for file in self._files]
        self.samples: list[Sample] = []
        self._take()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    @property
    def last(self) -> Sample:
        return self.samples[-1]

    def close(self) -> None:
        self._stop.set()
        self._thread.join()
        for file in self._files:
            os.close(file)

    def __enter__(self) -> Sampler:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _run(self) -> None:
        while not self._stop.wait(SAMPLE_SECONDS):
            self._take()

    def _take(self) -> None:
        at = time.monotonic()
        now = [_read(file) for file in self._files]
        pairs = list(zip(now, self._first, strict=True))
        down, up = ([new[way] - old[way] for new, old in pairs] for way in (0, 1))
        self.samples.append(Sample(at, tuple(down), tuple(up)))


def longest_standstill(
    samples: Sequence[Sample], host: int, since: float, until: float, full_rate: float
) -> float:
    """Longest time, in seconds, in which a host's link was below a good part of ``full_rate`` bytes/s."""
    longest, moved_at, first = 0.0, since, 0
    for sample in samples:
        if not since <= sample.at <= until:
            continue
        while sample.at - samples[first + 1].at >= WINDOW_SECONDS:
            first += 1
        window = samples[first]
        rate = (sample.down[host] - window.down[host]) / max(sample.at - window.at, WINDOW_SECONDS)
        if rate >= MOVING_SHARE * full_rate:
            longest, moved_at = max(longest, sample.at - moved_at), sample.at
    return max(longest, until - moved_at)


def connections(hosts: Iterable[Host]) -> Connections:
    """Bytes sent so far on each TCP connection, by sending host."""
    running = [(host, _list_connections(host)) for host in hosts]
    found: dict[tuple[int, str, int, str, int], int] = {}
    for host, program in running:
        text, _ = program.communicate()
        for line in text.splitlines():
            ends, sent = _CONNECTION.search(line), _SENT.search(line)
            if ends and sent:
                key = (host.index, ends["local"], int(ends["port"]), ends["peer"], int(ends["peer_port"]))
                found[key] = int(sent[1])
    return found


def edges(
    hosts: Iterable[Host], before: Connections, after: Connections, bytes_min: int = EDGE_BYTES_MIN
) -> set[tuple[int, int]]:
    """The (sender, receiver) pairs with bulk traffic between two looks."""
    index = {host.address: host.index for host in hosts}
    moved: dict[tuple[int, int], int] = {}
    for key, sent in after.items():
        # An IPv4 peer of a dual-stack socket is written as [::ffff:10.77.0.2].
        peer = key[3].strip("[]").removeprefix("::ffff:")
        if peer in index:
            pair = (key[0], index[peer])
            moved[pair] = moved.get(pair, 0) + sent - before.get(key, 0)
    return {pair for pair, sent in moved.items() if sent >= bytes_min}


def behind(tree: Iterable[tuple[int, int]], host: int) -> set[int]:
    """All hosts whose bytes come through this one."""
    tree = list(tree)
    found: set[int] = set()
    todo = [host]
    while todo:
        at = todo.pop()
        new = {receiver for sender, receiver in tree if sender == at} - found - {host}
        found |= new
        todo += new
    return found


def middle_relay(tree: Iterable[tuple[int, int]]) -> int:
    """The relay that has as close to half of the other hosts behind it as possible."""
    tree = set(tree)
    hosts = {host for edge in tree for host in edge}
    relays = {sender for sender, _ in tree} & {receiver for _, receiver in tree}
    if not relays:
        raise RuntimeError(f"nobody relays: {sorted(tree)}")
    return min(relays, key=lambda host: (abs(len(behind(tree, host)) - (len(hosts) - 1) / 2), host))


def _list_connections(host: Host) -> subprocess.Popen[str]:
    command = host.command(["ss", "--tcp", "--numeric", "--info", "--oneline", "--no-header"])
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def _read(file: int) -> tuple[int, int]:
    """(bytes received, bytes sent) on eth0, from the columns of proc_net_dev(5)."""
    for line in os.pread(file, 1 << 16, 0).splitlines():
        name, _, counters = line.strip().partition(b":")
        if name == b"eth0":
            fields = counters.split()
            return int(fields[0]), int(fields[8])
    raise RuntimeError("a host without eth0")
