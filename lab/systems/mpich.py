"""MPICH, over TCP between the hosts and giving up the processor while it waits."""

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

#: Only when it starts, UCX can be told to send without asking the receiver first, whatever the size. A
#: message of 32 KiB and more waits for the receiver's answer otherwise, and rings come to a halt.
EAGER = "eager"
LAUNCHES: dict[str, dict[str, str]] = {"as it comes": {}, EAGER: {"UCX_RNDV_THRESH": "inf"}}

#: Segments that rings are cut into, KiB.
SEGMENTS_KIB = (4, 8, 16, 32, 64, 128)

#: Numbers of the values of `MPIR_CVAR_<CALL>_INTRA_ALGORITHM`, in the order in which the library's
#: description of the variable lists them. "nb" is the way to the algorithms of the non-blocking call.
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
    # Debian's library has another name than the one that every MPICH promises, and mpi4py looks for.
    installed = Path("/usr/lib", sysconfig.get_config_var("MULTIARCH") or "", LIBRARY)
    environment = {
        "MPI4PY_MPIABI": "mpich",
        # Debian builds it on UCX, which would find shared memory by itself.
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
    # The ring of an allreduce is cut into as many pieces as there are hosts, and no further.
    for kib in SEGMENTS_KIB if case != "allreduce" else ():
        found[f"ring, {kib} KiB"] = ring | {f"MPIR_CVAR_I{call}_RING_CHUNK_SIZE": kib << 10}
    return found
