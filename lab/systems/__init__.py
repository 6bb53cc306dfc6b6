"""Systems that do collectives over the lab's hosts: Hoplite and its peers, with one interface.

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

#: Modules by name, in the order of the tables.
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

#: The collectives that a system may support. In all of them S is the size of one object, and all hosts start
#: at the same time. Sources, and a broadcast's object, are in place before that.
#:
#: broadcast: host 0 has the object; ends when the last of the others has it.
#: gather: every other host has a source; ends when host 0 has all of them.
#: reduce: every host has a source; ends when host 0 has their sum.
#: allreduce: every host has a source; ends when the last host has their sum.
CASES = ("broadcast", "gather", "reduce", "allreduce")

#: Collectives whose hosts may also arrive one after the other, at a fixed interval. Each host asks for a
#: broadcast's object, which host 0 has before. Or it makes a source, or enters the collective, of a reduce or
#: allreduce.
STAGGERED_CASES = ("broadcast", "reduce", "allreduce")

#: Host 0's object goes to host 1, which sends it back. It ends when the object is back on host 0. Over two
#: hosts.
ROUND_TRIP = "round trip"

#: Bytes of one run of round trips, and the most trips of one. Small round trips are too short for a run of
#: one.
ROUND_TRIP_BYTES = 4 << 20
ROUND_TRIPS_MAX = 200

#: Largest size for which settings and ways are searched. Larger objects use the best ones for this size. A
#: search with them would take hours, and from this size on links matter, not latencies.
SEARCH_BYTES_MAX = 64 << 20


class WrongContent(RuntimeError):
    """A result's bytes are wrong."""


class System(Protocol):
    """A system that does collectives over the lab's hosts: Hoplite or a peer.

    Between runs its processes wait in a blocking read, so that they take no processor time from the system
    that is being measured.
    """

    name: str
    cases: frozenset[str]

    def run(self, case: str, size: int, name: str, interval: float | None = None) -> float:
        """Does ``case`` once with objects of ``size`` bytes and returns its seconds.

        ``interval``: the hosts arrive one after the other (see ``delays``), and the time counts from the
        first. None: all start at once, with their sources ready. ``name`` differs for each run. Several round
        trips are made, and the time is that of one. The content of every result is checked, untimed. Wrong
        content raises ``WrongContent``.
        """
        ...

    def close(self) -> None: ...


@runtime_checkable
class Tuned(Protocol):
    """The additional method of a system whose settings were searched."""

    def chosen(self, case: str, size: int) -> str:
        """The best settings that were chosen last, as text."""
        ...


class Module(Protocol):
    """The interface of each module of ``MODULES``."""

    def missing(self) -> str:
        """The requirements that are missing here, such as a package to install. Empty if there are none."""
        ...

    def opened(self, hosts: Hosts, store: str) -> AbstractContextManager[Sequence[System]]:
        """The systems, running on all hosts. ``store`` is the size of each host's object store, if any."""
        ...


def module(name: str) -> Module:
    return cast(Module, importlib.import_module(MODULES[name]))


def installed() -> list[str]:
    """The names of all systems that can be used here."""
    return [name for name in MODULES if not module(name).missing()]


def delays(case: str, hosts: int, interval: float | None) -> list[float]:
    """The seconds from the start until each host arrives. A broadcast's sender is no arrival."""
    late = [index * (interval or 0.0) for index in range(hosts)]
    return [0.0, *late[:-1]] if case == "broadcast" else late


def round_trips(size: int) -> int:
    """The number of round trips of one run."""
    return min(max(ROUND_TRIP_BYTES // size, 1), ROUND_TRIPS_MAX)


def bytes_of_limit(case: str, size: int, hosts: int) -> float:
    """The bytes that must cross the most loaded link in one direction. The physical limit is this over B."""
    if case == "gather":
        return (hosts - 1) * size
    if case == "allreduce":
        return 2 * (hosts - 1) / hosts * size
    return size


@functools.lru_cache(maxsize=64)
def expected(case: str, size: int, hosts: int) -> list[int]:
    """The checksums of all results of a case, where host i's source is ``pattern(size, i)``.

    For a gather, these are the checksums of the sources in host 0. Otherwise there is one for each host that
    gets a result, in the order of the hosts.
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
