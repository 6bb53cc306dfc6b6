"""Traffic between hosts: counters of their links during a run, and which host sends to which.

The system chooses its relays while a collective runs, so a fault that is to hit one half-way must look first.
Both views come from the kernel and cost the run next to nothing.
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

#: Time between two readings of all links: finer than any detection, coarse enough to cost nothing.
SAMPLE_SECONDS = 0.005

#: A connection that carried less than this since the tree was last looked at bears no object.
EDGE_BYTES_MIN = 1 << 20

#: Over this time a link's rate is taken, and what part of its full rate counts as moving: gossip, control
#: messages and what is left in queues are far below it.
WINDOW_SECONDS = 0.01
MOVING_SHARE = 0.25

_CONNECTION = re.compile(r"(?P<local>\S+):(?P<port>\d+)\s+(?P<peer>\S+):(?P<peer_port>\d+)\s")
_SENT = re.compile(r"bytes_sent:(\d+)")

Connections = Mapping[tuple[int, str, int, str, int], int]


@dataclass(frozen=True, slots=True)
class Sample:
    """Bytes since the sampler began, by host."""

    at: float
    down: tuple[int, ...]
    up: tuple[int, ...]


class Sampler:
    """Reads every host's link in a thread of its own until it is closed."""

    def __init__(self, pids: Sequence[int]) -> None:
        """``pids``: of one program in each host that is up already; it may end meanwhile."""
        # An open file keeps its namespace, also when the process is gone.
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
    """Longest time, in seconds, that a host's link did not bring a good part of ``full_rate`` bytes/s."""
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
    """Bytes sent on each TCP connection so far, by sending host."""
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
    """(sender, receiver) of every pair that moved bulk bytes between two looks."""
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
    """Every host whose bytes come through this one."""
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
    """The host that both receives and sends and has as near as can be half of the others behind it."""
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
    """(bytes received, bytes sent) on eth0; the columns are those of proc_net_dev(5)."""
    for line in os.pread(file, 1 << 16, 0).splitlines():
        name, _, counters = line.strip().partition(b":")
        if name == b"eth0":
            fields = counters.split()
            return int(fields[0]), int(fields[8])
    raise RuntimeError("a host without eth0")
