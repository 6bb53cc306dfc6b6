"""The cable between a lab host and the switch: where it is plugged in, and how fast it is.

A port that is cut belongs to no bridge; each side of a partition is a bridge of its own.
"""

from __future__ import annotations

import ipaddress
import itertools
import subprocess

#: Depth of the token bucket, in bytes. 512 KiB lets 1 MiB arrive in 0.75 x S/B, which flatters; 64 KiB
#: splits segments and saturates the machine.
TBF_BURST = 128 << 10

#: On slow links the bucket is this much of their time, but holds some packets: what fits into it also
#: queues in front of it, and half a second of queue is a host that nobody hears.
TBF_BURST_SECONDS = 0.01
TBF_BURST_MIN = 16 << 10

#: A qdisc's handle has 16 bits, and the kernel gives out the upper half by itself.
_handles = itertools.cycle(range(1, 0x8000))

#: Size of the hosts' network.
PREFIX_BITS = 24

#: How long a packet may queue in front of a link before it is dropped: a shallow switch port.
#: Deeper queues only add latency to control messages, as cubic fills whatever it finds.
TBF_LATENCY = "20ms"


class Link:
    """The cable of one host: which bridge of the switch its port is on, and its rates."""

    def __init__(
        self, switch: str, namespace: str, index: int, up_mbit: float | None, down_mbit: float | None
    ) -> None:
        self._switch, self._namespace, self._port = switch, namespace, f"p{index}"
        self._built_with = (up_mbit, down_mbit)
        self._side = 0
        self.is_cut = False

    def build(self, address: str) -> None:
        ip("netns", "add", self._namespace)
        host_end = ["peer", "name", "eth0", "netns", self._namespace]
        ip("-n", self._switch, "link", "add", self._port, "type", "veth", *host_end)
        ip("-n", self._switch, "link", "set", self._port, "master", bridge(0), "up")
        ip("-n", self._namespace, "addr", "add", f"{address}/{PREFIX_BITS}", "dev", "eth0")
        ip("-n", self._namespace, "link", "set", "lo", "up")
        ip("-n", self._namespace, "link", "set", "eth0", "up")
        self.restore()

    def cut(self) -> None:
        # Not "link set down": that takes the carrier from the host's end, which the kernel there sees.
        ip("-n", self._switch, "link", "set", self._port, "nomaster")
        self.is_cut = True

    def heal(self) -> None:
        ip("-n", self._switch, "link", "set", self._port, "master", bridge(self._side))
        self.is_cut = False

    def join(self, side: int) -> None:
        """Moves to the bridge of another side of a partition; a cut link only once it is healed."""
        self._side = side
        if not self.is_cut:
            self.heal()

    def limit(self, up_mbit: float | None, down_mbit: float | None) -> None:
        _limit(self._namespace, "eth0", up_mbit)
        _limit(self._switch, self._port, down_mbit)

    def control_congestion(self, address: str, algorithm: str) -> None:
        network = str(ipaddress.ip_interface(f"{address}/{PREFIX_BITS}").network)
        route = [network, "dev", "eth0", "proto", "kernel", "scope", "link", "src", address]
        ip("-n", self._namespace, "route", "replace", *route, "congctl", algorithm)

    def restore(self) -> None:
        self.limit(*self._built_with)


def bridge(side: int) -> str:
    """The bridge of one side of a partition; side 0 is where all ports are when there is none."""
    return f"br{side}"


def _limit(namespace: str, device: str, rate_mbit: float | None) -> None:
    """Gives a device a rate, or takes its rate away; either may be so already."""
    if rate_mbit is None:
        # Fails where there is none, which is what is wanted.
        subprocess.run(["tc", "-n", namespace, "qdisc", "del", "dev", device, "root"], capture_output=True)
        return
    burst = min(max(int(rate_mbit * 1e6 / 8 * TBF_BURST_SECONDS), TBF_BURST_MIN), TBF_BURST)
    bucket = ["tbf", "rate", f"{rate_mbit}mbit", "burst", f"{burst}b", "latency", TBF_LATENCY]
    # Under a handle of its own it takes the place of the one before. Under the same it would keep what
    # is queued there, and a packet larger than a smaller bucket would block the link for ever.
    root = ["root", "handle", f"{next(_handles)}:"]
    subprocess.run(["tc", "-n", namespace, "qdisc", "replace", "dev", device, *root, *bucket], check=True)


def ip(*arguments: str) -> None:
    done = subprocess.run(["ip", *arguments], capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(f"ip {' '.join(arguments)}: {done.stderr.strip()}")
