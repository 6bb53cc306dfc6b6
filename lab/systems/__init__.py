"""Systems that do collectives over the lab's hosts: Hoplite and its peers, behind one interface.

Each is a module with ``missing``, which names what must be installed for it, and ``opened``, which starts it
on hosts. Most modules give one system; some give two, one with its defaults and one tuned by hand.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Protocol, cast, runtime_checkable

import numpy as np

from lab.hosts import Hosts
from lab.worker import checksum, pattern

#: Module of each name that can be asked for, in the order of the tables.
MODULES = {
    "hoplite": "lab.systems.hoplite",
    "openmpi": "lab.systems.openmpi",
    "mpich": "lab.systems.mpich",
    "gloo": "lab.systems.gloo",
    "ray": "lab.systems.ray",
    "dask": "lab.systems.dask",
    "relays": "lab.systems.relays",
    "chain": "lab.systems.chain",
}

#: The collectives that a system may be able to do. In all of them S is the size of one object, and all hosts
#: start at one instant. Sources, and a broadcast's object, are where they belong before that.
#:
#: broadcast: host 0 has the object; ends when the last of the others has it.
#: gather: every other host has a source; ends when host 0 has all of them.
#: reduce: every host has a source; ends when host 0 has their sum.
#: allreduce: every host has a source; ends when the last host has their sum.
CASES = ("broadcast", "gather", "reduce", "allreduce")

#: What hosts can also do one after the other, at a fixed interval: ask for a broadcast's object, which host 0
#: has before; or make a source, or enter the collective, of a reduce or allreduce.
STAGGERED_CASES = ("broadcast", "reduce", "allreduce")

#: Host 0's object goes to host 1, which sends back what it got; ends when that is on host 0. Over two hosts.
ROUND_TRIP = "round trip"

#: So many bytes go in one run of round trips, but not more trips than this: small ones are too short for one.
ROUND_TRIP_BYTES = 4 << 20
ROUND_TRIPS_MAX = 200

#: Settings and ways to do a case are searched with objects of this size at most; the best for it are taken
#: for larger ones, too. Searching with those would take hours, and at this size links decide, not latencies.
SEARCH_BYTES_MAX = 64 << 20


class WrongContent(RuntimeError):
    """A result's bytes are not what they must be."""


class System(Protocol):
    """One way of doing collectives over the lab's hosts: Hoplite, or a peer.

    Between runs its processes wait in a blocking read, so that they take no processor time from the
    system that is being measured.
    """

    name: str
    cases: frozenset[str]

    def run(self, case: str, size: int, name: str, interval: float | None = None) -> float:
        """Does ``case`` once with objects of ``size`` bytes and returns the seconds it took.

        ``interval``: the hosts come one after the other, ``delays`` apart, and the time is from the first;
        none: all at once, with what they bring ready before. ``name`` is unlike that of any other run. Of
        round trips, several are made, and the time is that of one. The content of every result is checked,
        outside of the time: ``WrongContent``.
        """
        ...

    def close(self) -> None: ...


@runtime_checkable
class Tuned(Protocol):
    """What a system has besides, whose settings were searched."""

    def chosen(self, case: str, size: int) -> str:
        """The settings that are best, in words; the last that were chosen."""
        ...


class Module(Protocol):
    """What each module of ``MODULES`` has."""

    def missing(self) -> str:
        """What must be installed, or done, before it can be used here; empty if nothing."""
        ...

    def opened(self, hosts: Hosts, store: str) -> AbstractContextManager[Sequence[System]]:
        """The systems, running on all hosts; ``store`` is the size of each host's object store, if any."""
        ...


def module(name: str) -> Module:
    return cast(Module, importlib.import_module(MODULES[name]))


def installed() -> list[str]:
    """All that can be used here."""
    return [name for name in MODULES if not module(name).missing()]


def delays(case: str, hosts: int, interval: float | None) -> list[float]:
    """Of each host, the seconds from the start until it comes; a broadcast's sender is no arrival."""
    late = [index * (interval or 0.0) for index in range(hosts)]
    return [0.0, *late[:-1]] if case == "broadcast" else late


def round_trips(size: int) -> int:
    """Round trips of one run."""
    return min(max(ROUND_TRIP_BYTES // size, 1), ROUND_TRIPS_MAX)


def bytes_of_limit(case: str, size: int, hosts: int) -> float:
    """What must cross the most loaded link in one direction: the physical limit is this over B."""
    if case == "gather":
        return (hosts - 1) * size
    if case == "allreduce":
        return 2 * (hosts - 1) / hosts * size
    return size


@functools.lru_cache(maxsize=64)
def expected(case: str, size: int, hosts: int) -> list[int]:
    """The checksums of all that a case must leave behind, where host i's source is ``pattern(size, i)``.

    By host: for a gather, those of the sources in host 0; otherwise one for each host that gets something.
    """
    if case == ROUND_TRIP:
        return [checksum(pattern(size, 0))]
    if case == "gather":
        return [checksum(pattern(size, index)) for index in range(1, hosts)]
    if case == "broadcast":
        return [checksum(pattern(size, 0))] * (hosts - 1)
    total = np.zeros(size // 4, np.float32)
    for index in range(hosts):
        total += pattern(size, index)
    return [checksum(total)] * (hosts if case == "allreduce" else 1)
