"""The cables of a lab: from a host to its switch, and from the switch of a rack to the spine.

A port that is cut off is on no bridge. Each side of a partition has a bridge of its own.
"""

from __future__ import annotations

import ipaddress
import subprocess
from typing import NamedTuple

from lab import rates

#: Size of the hosts' network.
PREFIX_BITS = 24


class LinkRates(NamedTuple):
    """The rates of a host's link in Mbit/s; None: no limit."""

    up: float | None = None
    down: float | None = None
    flow_cap: float | None = None
    """Limit of one TCP connection."""


class Link:
    """The cable of one host: the bridge of the switch that its port is on, and its rates."""

    def __init__(
        self,
        switch: str,
        namespace: str,
        index: int,
        built_with: LinkRates,
        rack: int | None = None,
    ) -> None:
        self._switch, self._namespace, self._port = switch, namespace, f"p{index}"
        self._built_with = built_with
        self._home = bridge(0) if rack is None else rack_bridge(rack)
        self._bridge = self._home
        self.is_cut = False

    def build(self, address: str) -> None:
        ip("netns", "add", self._namespace)
        host_end = ["peer", "name", "eth0", "netns", self._namespace]
        ip("-n", self._switch, "link", "add", self._port, "type", "veth", *host_end)
        ip("-n", self._switch, "link", "set", self._port, "master", self._home, "up")
        ip("-n", self._namespace, "addr", "add", f"{address}/{PREFIX_BITS}", "dev", "eth0")
        ip("-n", self._namespace, "link", "set", "lo", "up")
        ip("-n", self._namespace, "link", "set", "eth0", "up")
        self.restore()

    def cut(self) -> None:
        # "link set down" would remove the carrier at the host's end, and the kernel there would see it.
        ip("-n", self._switch, "link", "set", self._port, "nomaster")
        self.is_cut = True

    def heal(self) -> None:
        ip("-n", self._switch, "link", "set", self._port, "master", self._bridge)
        self.is_cut = False

    def join(self, side: int) -> None:
        """Moves the port to the bridge of a side of a partition (0: home). A cut link moves when healed."""
        self._bridge = bridge(side) if side else self._home
        if not self.is_cut:
            self.heal()

    def limit(self, up_mbit: float | None, down_mbit: float | None) -> None:
        rates.limit(self._namespace, "eth0", up_mbit, self._built_with.flow_cap)
        rates.limit(self._switch, self._port, down_mbit)

    def control_congestion(self, address: str, algorithm: str) -> None:
        network = str(ipaddress.ip_interface(f"{address}/{PREFIX_BITS}").network)
        route = [network, "dev", "eth0", "proto", "kernel", "scope", "link", "src", address]
        ip("-n", self._namespace, "route", "replace", *route, "congctl", algorithm)

    def restore(self) -> None:
        self.limit(self._built_with.up, self._built_with.down)


def bridge(side: int) -> str:
    """The bridge of a side of a partition. Without a partition, ports and racks are on 0, the spine."""
    return f"br{side}"


def rack_bridge(rack: int) -> str:
    return f"rack{rack}"


def add_bridge(switch: str, name: str) -> None:
    ip("-n", switch, "link", "add", name, "type", "bridge")
    ip("-n", switch, "link", "set", name, "up")


def add_rack(switch: str, rack: int, uplink_mbit: float | None) -> None:
    """Adds a bridge for the hosts of a rack, and its cable to the spine, with a rate each way."""
    add_bridge(switch, rack_bridge(rack))
    inner, outer = f"up{rack}", f"down{rack}"
    ip("-n", switch, "link", "add", inner, "type", "veth", "peer", "name", outer)
    for port, master in ((inner, rack_bridge(rack)), (outer, bridge(0))):
        ip("-n", switch, "link", "set", port, "master", master, "up")
        rates.limit(switch, port, uplink_mbit)


def ip(*arguments: str) -> None:
    done = subprocess.run(["ip", *arguments], capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(f"ip {' '.join(arguments)}: {done.stderr.strip()}")
