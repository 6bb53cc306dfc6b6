"""MPICH over TCP between the hosts. Its ranks yield the processor while they wait."""

from __future__ import annotations

import sysconfig
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path

from lab.hosts import Hosts
from lab.systems import System, mpi, mpi_launch
from lab.systems.mpi_tuning import Candidate, Settings

MPIRUN = "mpirun.mpich"

LIBRARY = "libmpich.so.12"

#: UCX can be told only at its start to send messages of any size without asking the receiver first. Otherwise
#: a message of 32 KiB or more waits for the receiver's answer, and rings stall.
EAGER = "eager"
LAUNCHES: dict[str, dict[str, str]] = {"as it comes": {}, EAGER: {"UCX_RNDV_THRESH": "inf"}}

#: Sizes of the segments of rings, in KiB.
SEGMENTS_KIB = (4, 8, 16, 32, 64, 128)

#: Numbers of the values of `MPIR_CVAR_<CALL>_INTRA_ALGORITHM`, in the order in which the library's
#: description of the variable lists them. "nb" selects the algorithms of the non-blocking call.
WHOLE = {
    "broadcast": ("BCAST", {"scatter_ring_allgather": 5}),
    "reduce": ("REDUCE", {"reduce_scatter_gather": 4}),
    "allreduce": ("ALLREDUCE", {"reduce_scatter_allgather": 4}),
    "gather": ("GATHER", {"binomial": 1}),
}
NON_BLOCKING = {"broadcast": 2, "reduce": 2, "allreduce": 1, "gather": 2}
RING = {"broadcast": 8, "reduce": 6, "allreduce": 9}
GATHER_TREE = 3


def missing() -> str:
    return mpi_launch.missing(MPIRUN)


def opened(hosts: Hosts, store: str) -> AbstractContextManager[Sequence[System]]:
    # Debian's library does not have the usual name of MPICH's, which mpi4py looks for.
    installed = Path("/usr/lib", sysconfig.get_config_var("MULTIARCH") or "", LIBRARY)
    environment = {
        "MPI4PY_MPIABI": "mpich",
        # Debian builds MPICH on UCX, which would find and use shared memory.
        "UCX_TLS": "tcp,self",
        "UCX_NET_DEVICES": "eth0",
        "MPIR_CVAR_POLLS_BEFORE_YIELD": "1",
    }
    libraries = {
        launch: mpi_launch.Library(
            "mpich", _mpirun, LIBRARY, {**environment, **further}, {"libmpi.so.12": installed}
        )
        for launch, further in LAUNCHES.items()
    }
    return mpi.opened(libraries, hosts, _candidates)


def _mpirun(hosts: Sequence[str]) -> list[str]:
    placed = ["-hosts", ",".join(hosts), "-ppn", "1", "-bind-to", "none"]
    return [MPIRUN, *placed, "-iface", "eth0", "-launcher", "rsh", "-launcher-exec", str(mpi_launch.ENTER)]


def _candidates(case: str, hosts: int) -> dict[str, Candidate]:
    return {
        f"{name}, {launch}" if launch == EAGER else name: Candidate(launch, settings)
        for launch in LAUNCHES
        for name, settings in _settings(case, hosts).items()
    }


def _settings(case: str, hosts: int) -> dict[str, Settings]:
    call, algorithms = WHOLE[case]
    chooser = f"MPIR_CVAR_{call}_INTRA_ALGORITHM"
    found: dict[str, Settings] = {"as it comes": {}}
    for name, number in algorithms.items():
        found[name] = {chooser: number}
    non_blocking = {chooser: NON_BLOCKING[case]}
    if case == "gather":
        tree = {"MPIR_CVAR_IGATHER_INTRA_ALGORITHM": GATHER_TREE, "MPIR_CVAR_IGATHER_TREE_KVAL": hosts}
        found["one level"] = non_blocking | tree
        return found
    ring = non_blocking | {f"MPIR_CVAR_I{call}_INTRA_ALGORITHM": RING[case]}
    found["ring"] = ring
    # The ring of an allreduce has exactly as many pieces as there are hosts.
    for kib in SEGMENTS_KIB if case != "allreduce" else ():
        found[f"ring, {kib} KiB"] = ring | {f"MPIR_CVAR_I{call}_RING_CHUNK_SIZE": kib << 10}
    return found
