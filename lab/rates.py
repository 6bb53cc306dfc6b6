"""Rates of network devices: of all traffic that leaves one, and of each TCP connection in it."""

from __future__ import annotations

import itertools
import subprocess

#: Depth of the token bucket, in bytes. With 512 KiB, 1 MiB arrives in 0.75 x S/B, which is too fast. 64 KiB
#: splits segments and saturates the machine.
TBF_BURST = 128 << 10

#: On slow links the bucket holds this much of their time, and at least some packets. As many bytes may also
#: queue in front of it. With half a second of queue, other hosts would believe the host dead.
TBF_BURST_SECONDS = 0.01
TBF_BURST_MIN = 16 << 10

#: How long a packet may queue in front of a link before it is dropped, as in a shallow switch port. A deeper
#: queue only adds latency to control messages, as cubic fills it.
QUEUE_SECONDS = 0.02

#: Number of classes for connections, the size of one hash table of u32. Connections from one host to another
#: rarely share a class, because the kernel gives them ports that are close but different.
FLOW_CLASSES = 256

#: The lowest bit of a port is ignored, as the kernel prefers one parity for connections and the other for
#: listeners.
PORT_SHIFT = 1

#: A bit that all ports have which the kernel gives to connecting sockets. Ports of servers do not have it.
EPHEMERAL_BIT = 0x8000

#: Bytes of one class's turn when classes share a link. It is the size of the largest packet.
CLASS_QUANTUM = 60_000

#: Handles of qdiscs. A handle has 16 bits, and the kernel uses the upper half itself.
_handles = itertools.cycle(range(1, 0x8000))


def limit(namespace: str, device: str, rate_mbit: float | None, flow_cap_mbit: float | None = None) -> None:
    """Sets or removes the rate of a device. Repeating it does no harm.

    Below this rate, each TCP connection gets ``flow_cap_mbit`` at most. Connections are told apart by the
    port of the side that connected.
    """
    if rate_mbit is None and flow_cap_mbit is None:
        # This fails if there is no qdisc, which is fine.
        subprocess.run(["tc", "-n", namespace, "qdisc", "del", "dev", device, "root"], capture_output=True)
        return
    commands = []
    above = "root"
    if rate_mbit is not None:
        # With a new handle it replaces the earlier qdisc. With the same handle it would keep the queued
        # packets, and a packet larger than a smaller bucket would block the link for ever.
        handle = f"{next(_handles):x}:"
        bucket = f"tbf rate {rate_mbit}mbit burst {_burst(rate_mbit)}b latency {QUEUE_SECONDS * 1e3:g}ms"
        commands.append(f"qdisc replace dev {device} root handle {handle} {bucket}")
        above = f"parent {handle}1"
    if flow_cap_mbit is not None:
        commands += _cap_flows(device, above, flow_cap_mbit)
    tc = ["tc", "-n", namespace, "-batch", "-"]
    done = subprocess.run(tc, input="\n".join(commands), capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(f"tc in {namespace}: {done.stderr.strip()}")


def _cap_flows(device: str, above: str, cap_mbit: float) -> list[str]:
    caps = f"{next(_handles):x}:"
    burst = _burst(cap_mbit)
    queue = int(cap_mbit * 1e6 / 8 * QUEUE_SECONDS) + burst
    commands = [f"qdisc replace dev {device} {above} handle {caps} htb"]
    for number in range(1, FLOW_CLASSES + 1):
        rate = f"rate {cap_mbit}mbit burst {burst}b cburst {burst}b quantum {CLASS_QUANTUM}"
        commands += [
            f"class add dev {device} parent {caps} classid {caps}{number:x} htb {rate}",
            f"qdisc add dev {device} parent {caps}{number:x} bfifo limit {queue}",
        ]
    # A table with an entry for each class. Its index is the sender's port, or the receiver's port if the
    # sender is the side that listened.
    filters = f"filter add dev {device} parent {caps} protocol ip prio 1"
    commands.append(f"{filters} handle 2: u32 divisor {FLOW_CLASSES}")
    commands += [
        f"{filters} u32 ht 2:{number - 1:x}: match ip protocol 6 0xff flowid {caps}{number:x}"
        for number in range(1, FLOW_CLASSES + 1)
    ]
    tcp = "u32 ht 800: match ip protocol 6 0xff"
    places = (FLOW_CLASSES - 1) << PORT_SHIFT
    commands += [
        f"{filters} {tcp} match ip sport {EPHEMERAL_BIT:#x} {EPHEMERAL_BIT:#x} "
        f"hashkey mask {places << 16:#010x} at 20 link 2:",
        f"{filters} {tcp} hashkey mask {places:#010x} at 20 link 2:",
    ]
    return commands


def _burst(rate_mbit: float) -> int:
    return min(max(int(rate_mbit * 1e6 / 8 * TBF_BURST_SECONDS), TBF_BURST_MIN), TBF_BURST)
