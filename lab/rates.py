"""Rates of network devices: of all traffic that leaves one, and of each TCP connection in it."""

from __future__ import annotations

import itertools
import subprocess

#: Depth of the token bucket, in bytes. 512 KiB lets 1 MiB arrive in 0.75 x S/B, which flatters; 64 KiB
#: splits segments and saturates the machine.
TBF_BURST = 128 << 10

#: On slow links the bucket is this much of their time, but holds some packets: what fits into it also
#: queues in front of it, and half a second of queue is a host that nobody hears.
TBF_BURST_SECONDS = 0.01
TBF_BURST_MIN = 16 << 10

#: How long a packet may queue in front of a link before it is dropped: a shallow switch port.
#: Deeper queues only add latency to control messages, as cubic fills whatever it finds.
QUEUE_SECONDS = 0.02

#: Classes that connections are told apart by, as many as one hash table of u32 has. Those of one host to
#: another rarely share one: the kernel gives them ports that are near each other, but not the same.
FLOW_CLASSES = 256

#: A port's lowest bit tells nothing: the kernel prefers one parity for connections, the other for listeners.
PORT_SHIFT = 1

#: Ports that the kernel gives to those who connect all have this bit; those of servers do not.
EPHEMERAL_BIT = 0x8000

#: Bytes of one class's turn, where classes share a link: a packet as large as they come.
CLASS_QUANTUM = 60_000

#: A qdisc's handle has 16 bits, and the kernel gives out the upper half by itself.
_handles = itertools.cycle(range(1, 0x8000))


def limit(namespace: str, device: str, rate_mbit: float | None, flow_cap_mbit: float | None = None) -> None:
    """Gives a device a rate, or takes its rate away; either may be so already.

    Under it, each TCP connection gets ``flow_cap_mbit`` at most, told apart by the port of whoever connected.
    """
    if rate_mbit is None and flow_cap_mbit is None:
        # Fails where there is none, which is what is wanted.
        subprocess.run(["tc", "-n", namespace, "qdisc", "del", "dev", device, "root"], capture_output=True)
        return
    commands = []
    above = "root"
    if rate_mbit is not None:
        # Under a handle of its own it takes the place of the one before. Under the same it would keep what
        # is queued there, and a packet larger than a smaller bucket would block the link for ever.
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
    # A table of as many places as classes, and two ways into it: by the sender's port, or by the receiver's
    # where the sender is who listened.
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
