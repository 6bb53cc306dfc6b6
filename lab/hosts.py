"""Hosts on one machine: a network namespace each, joined by a bridge, each with its own link rate.

::

    with Hosts(8, rate_mbit=500) as hosts:
        server = hosts[0].start(["iperf3", "-s", "-1"])
        hosts[1].run(["iperf3", "-c", hosts[0].address])

Layout: the switch and each host have a namespace of their own. The machine's own network is not changed, and
traffic cannot leave. Host *i* has the address ``10.77.0.(i+1)`` on ``eth0``. The other end of that cable is
``p<i>``, a port of the bridge ``br0``. A token bucket on ``eth0`` limits the up rate, one on ``p<i>`` the
down rate. Hosts in racks are on the bridge of their rack, and ``br0`` joins the racks.

Faults of the network are silent. No cable goes down and no connection is reset: packets vanish, as with a
dead switch or a host that lost its power::

    hosts[2].cut()                      # no packet to or from host 2 arrives
    hosts[2].heal()
    hosts.partition([0, 1], [2, 3])     # two sides; each goes on by itself
    hosts.heal()                        # everything as it was built
    hosts[1].limit(2)                   # both directions at 2 Mbit/s until heal() or restore()

Hosts in racks, and connections that get less than the link::

    Hosts(8, rate_mbit=500, hosts_per_rack=4, uplink_mbit=500)
    Hosts(2, rate_mbit=800, flow_cap_mbit=200)

As on real hosts, a kernel that failed to reach a host that was cut off tries again only after a second.

Needs root. All namespaces are removed when the context ends, at exit, and on SIGTERM or SIGHUP. The next run
removes those that a killed run left behind.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import itertools
import os
import shutil
import signal
import subprocess
import threading
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lab.links import Link, LinkRates, add_bridge, add_rack, bridge, ip
from lab.memory import Memory
from lab.network import Network

#: Prefix of all namespaces made here. The pid of their maker and a number follow.
PREFIX = "hoplab"

#: Hosts that one /24 holds.
HOSTS_MAX = 250

#: Time that a program has to end after SIGTERM before it is killed.
STOP_SECONDS = 5.0

_numbers = itertools.count()


class HostsUnavailable(RuntimeError):
    """This machine or user cannot make network namespaces. The message gives the reason."""


def require() -> None:
    """Raises ``HostsUnavailable`` unless hosts can be made. This needs root, iproute2 and kernel support."""
    if os.geteuid() != 0:
        raise HostsUnavailable("network namespaces need root: run this as root (sudo)")
    for tool in ("ip", "tc"):
        if shutil.which(tool) is None:
            raise HostsUnavailable(f"`{tool}` is missing: install iproute2")
    probe = f"{PREFIX}{os.getpid()}-probe"
    made = subprocess.run(["ip", "netns", "add", probe], capture_output=True, text=True)
    subprocess.run(["ip", "netns", "del", probe], capture_output=True)
    if made.returncode != 0:
        raise HostsUnavailable(f"the kernel refuses network namespaces: {made.stderr.strip()}")


@dataclass
class Host:
    """One host: a namespace with loopback and ``eth0``. Closing the hosts stops the programs in it."""

    index: int
    namespace: str
    address: str
    _link: Link = field(repr=False)
    _programs: list[subprocess.Popen[Any]] = field(default_factory=list, repr=False)

    def command(self, arguments: Sequence[str]) -> list[str]:
        """The command that runs ``arguments`` in this host. It execs, so its pid is the program's own."""
        return ["ip", "netns", "exec", self.namespace, *arguments]

    def start(self, arguments: Sequence[str], **options: Any) -> subprocess.Popen[Any]:
        """Starts a program in this host. ``options`` are passed to ``subprocess.Popen``."""
        program = subprocess.Popen(self.command(arguments), **options)
        self._programs.append(program)
        return program

    def run(self, arguments: Sequence[str], **options: Any) -> subprocess.CompletedProcess[Any]:
        """Runs a program in this host to its end. Raises ``CalledProcessError`` if it fails."""
        return subprocess.run(self.command(arguments), check=True, **options)

    def crash(self) -> None:
        """Kills all programs in this host at once. The host itself stays."""
        _kill_inside(self.namespace)

    def link_bytes(self) -> Mapping[str, int]:
        """The traffic of this host's link so far: ``{"up": bytes sent, "down": bytes received}``."""
        read = self.run(
            ["cat", *(f"/sys/class/net/eth0/statistics/{way}_bytes" for way in ("tx", "rx"))],
            capture_output=True,
            text=True,
        ).stdout.split()
        return {"up": int(read[0]), "down": int(read[1])}

    def cut(self) -> None:
        """Cuts this host off silently: every packet from and to it vanishes. A second cut does nothing."""
        self._link.cut()

    def heal(self) -> None:
        """Undoes ``cut``. If there is a partition, the host is back on its side."""
        self._link.heal()

    @property
    def is_cut(self) -> bool:
        return self._link.is_cut

    def control_congestion(self, algorithm: str) -> None:
        """Sets the congestion control of new connections (cubic, bbr, reno). A program may ask for another.

        It is set on the route, as a namespace's own setting allows only unrestricted algorithms.
        """
        self._link.control_congestion(self.address, algorithm)

    def limit(self, up_mbit: float, down_mbit: float | None = None) -> None:
        """Changes the link's rates at once, also for queued packets. One number is for both directions."""
        self._link.limit(up_mbit, up_mbit if down_mbit is None else down_mbit)

    def restore(self) -> None:
        """Gives the link its original rates again."""
        self._link.restore()

    def _stop(self) -> None:
        for program in self._programs:
            if program.poll() is None:
                program.terminate()
        for program in self._programs:
            try:
                program.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                program.kill()
                program.wait()
            for pipe in (program.stdin, program.stdout, program.stderr):
                if pipe is not None:
                    pipe.close()
        self._programs.clear()
        _kill_inside(self.namespace)


class Hosts:
    """``count`` hosts on one switch, or with one switch in each rack. Index or iterate to reach them.

    ``rate_mbit`` limits each direction of every link, in Mbit/s. ``up_mbit`` and ``down_mbit`` override one
    direction, as a number for all hosts or a sequence with one number per host. ``None`` means no limit.

    A rack has ``hosts_per_rack`` hosts, in order. Its hosts share ``uplink_mbit`` to other racks, each way.
    One TCP connection gets ``flow_cap_mbit`` at most.
    """

    def __init__(
        self,
        count: int,
        rate_mbit: float | None = None,
        up_mbit: float | Sequence[float | None] | None = None,
        down_mbit: float | Sequence[float | None] | None = None,
        hosts_per_rack: int | None = None,
        uplink_mbit: float | None = None,
        flow_cap_mbit: float | None = None,
    ) -> None:
        if not 1 <= count <= HOSTS_MAX:
            raise ValueError(f"between 1 and {HOSTS_MAX} hosts, not {count}")
        up = _per_host(count, up_mbit, rate_mbit)
        down = _per_host(count, down_mbit, rate_mbit)
        prefix = f"{PREFIX}{os.getpid()}-{next(_numbers)}"
        self._switch = f"{prefix}-switch"
        self.network = Network(rate_mbit, hosts_per_rack, uplink_mbit, flow_cap_mbit)
        self._hosts: list[Host] = []
        for i in range(count):
            namespace = f"{prefix}-h{i}"
            rack = self.network.rack_of(i)
            link = Link(self._switch, namespace, i, LinkRates(up[i], down[i], flow_cap_mbit), rack)
            self._hosts.append(Host(i, namespace, f"10.77.0.{i + 1}", link))
        self._bridges = 0
        self._built = False

    def __len__(self) -> int:
        return len(self._hosts)

    def __iter__(self) -> Iterator[Host]:
        return iter(self._hosts)

    def __getitem__(self, index: int) -> Host:
        return self._hosts[index]

    def __enter__(self) -> Hosts:
        require()
        sweep()
        self._built = True
        atexit.register(self.close)
        _exit_on_signals()
        try:
            self._build()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Stops the programs in the hosts and removes the hosts. A second call does nothing."""
        if not self._built:
            return
        self._built = False
        atexit.unregister(self.close)
        if "memory" in vars(self):
            self.memory.close()
        for host in self._hosts:
            host._stop()
        for namespace in [*(host.namespace for host in self._hosts), self._switch]:
            subprocess.run(["ip", "netns", "del", namespace], capture_output=True)

    @functools.cached_property
    def memory(self) -> Memory:
        """The memory that systems share which take turns on these hosts."""
        return Memory(len(self))

    def partition(self, *sides: Collection[int]) -> None:
        """Splits the network until ``heal``: hosts reach only the hosts of their own side.

        Each side is a list of host numbers. Hosts in no list are one more side, and stay in their racks.
        A new partition replaces the one before. Links that are cut stay cut.
        """
        chosen = {index: number for number, side in enumerate(sides, 1) for index in side}
        if len(chosen) != sum(map(len, sides)) or not set(chosen) <= set(range(len(self))):
            raise ValueError(f"{sides} are no separate sides of {len(self)} hosts")
        self._add_bridges(len(sides) + 1)
        for host in self:
            host._link.join(chosen.get(host.index, 0))

    def heal(self) -> None:
        """Ends every fault of the network: partitions, cuts and changed rates."""
        for host in self:
            host._link.join(0)
            host.heal()
            host.restore()

    def _build(self) -> None:
        ip("netns", "add", self._switch)
        self._add_bridges(1)
        for rack in self.network.racks(len(self)):
            add_rack(self._switch, rack, self.network.uplink_mbit)
        for host in self._hosts:
            host._link.build(host.address)

    def _add_bridges(self, wanted: int) -> None:
        for number in range(self._bridges, wanted):
            add_bridge(self._switch, bridge(number))
        self._bridges = max(self._bridges, wanted)


def sweep() -> None:
    """Removes the namespaces of runs whose process has ended, and kills the programs in them."""
    listed = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True).stdout
    for line in listed.splitlines():
        name = line.split()[0] if line.split() else ""
        maker = name.removeprefix(PREFIX).split("-")[0]
        if name.startswith(PREFIX) and maker.isdigit() and not Path("/proc", maker).exists():
            _kill_inside(name)
            subprocess.run(["ip", "netns", "del", name], capture_output=True)


def _per_host(
    count: int, rates: float | Sequence[float | None] | None, default: float | None
) -> list[float | None]:
    if rates is None or isinstance(rates, (int, float)):
        return [default if rates is None else rates] * count
    if len(rates) != count:
        raise ValueError(f"{len(rates)} rates for {count} hosts")
    return list(rates)


def _kill_inside(namespace: str) -> None:
    """Kills all programs in one of our own namespaces, such as children of the programs that we started."""
    found = subprocess.run(["ip", "netns", "pids", namespace], capture_output=True, text=True).stdout
    for pid in found.split():
        with contextlib.suppress(ProcessLookupError):
            os.kill(int(pid), signal.SIGKILL)


def _exit_on_signals() -> None:
    """Makes SIGTERM and SIGHUP end Python normally, so that `atexit` and contexts clean up."""
    if threading.current_thread() is not threading.main_thread():
        return
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is signal.SIG_DFL:
            signal.signal(number, _exit)


def _exit(number: int, _frame: object) -> None:
    raise SystemExit(128 + number)
