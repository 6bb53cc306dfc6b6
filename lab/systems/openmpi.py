"""OpenMPI over TCP between the hosts. Its ranks yield the processor while they wait."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager

from lab.hosts import Hosts
from lab.systems import System, mpi, mpi_launch
from lab.systems.mpi_tuning import Candidate

MPIRUN = "mpirun.openmpi"

#: The only launch, as all tuned settings can be changed while the ranks run.
LAUNCH = "all"

#: Sizes of the segments of pipelines, in KiB. With smaller ones, packets and calls cost too much. With larger
#: ones, the last host waits too long for its first byte.
SEGMENTS_KIB = (16, 32, 64, 128)

#: Numbers of the algorithms, as `ompi_info --param coll tuned --level 9` lists them.
SEGMENTED = {
    "broadcast": ("bcast", {"pipeline": 3, "split binary tree": 4}),
    "reduce": ("reduce", {"pipeline": 3}),
    "allreduce": ("allreduce", {"segmented ring": 5}),
    "gather": ("gather", {"linear with synchronization": 3}),
}
WHOLE = {
    "broadcast": ("bcast", {"scatter_allgather": 8, "scatter_allgather_ring": 9}),
    "reduce": ("reduce", {"rabenseifner": 7}),
    "allreduce": ("allreduce", {"ring": 4}),
    "gather": ("gather", {"linear": 1, "binomial": 2}),
}


def missing() -> str:
    return mpi_launch.missing(MPIRUN)


def opened(hosts: Hosts, store: str) -> AbstractContextManager[Sequence[System]]:
    library = mpi_launch.Library("openmpi", _mpirun, "libmpi.so.40", {"MPI4PY_MPIABI": "openmpi"})
    return mpi.opened({LAUNCH: library}, hosts, _candidates)


def _mpirun(hosts: Sequence[str]) -> list[str]:
    options = {
        "plm_rsh_agent": str(mpi_launch.ENTER),
        "pml": "ob1",
        "btl": "tcp,self",
        "btl_tcp_if_include": "eth0",
        "oob_tcp_if_include": "eth0",
        "mpi_yield_when_idle": "1",
        # So that an algorithm can be chosen later. Until then the library's own rules apply.
        "coll_tuned_use_dynamic_rules": "1",
    }
    chosen = [word for name, value in options.items() for word in ("--mca", name, value)]
    exported = ["-x", "MPI4PY_MPIABI", "-x", "LD_LIBRARY_PATH", "-x", "PYTHONPATH", "-x", mpi_launch.MARK]
    placed = ["--host", ",".join(hosts), "--map-by", "node", "--bind-to", "none"]
    return [MPIRUN, "--allow-run-as-root", *placed, *chosen, *exported]


def _candidates(case: str, hosts: int) -> dict[str, Candidate]:
    found = {"as it comes": Candidate(LAUNCH)}
    call, algorithms = WHOLE[case]
    for name, number in algorithms.items():
        found[name] = Candidate(LAUNCH, {f"coll_tuned_{call}_algorithm": number})
    call, algorithms = SEGMENTED[case]
    for name, number in algorithms.items():
        for kib in SEGMENTS_KIB:
            settings = {
                f"coll_tuned_{call}_algorithm": number,
                f"coll_tuned_{call}_algorithm_segmentsize": kib << 10,
            }
            found[f"{name}, {kib} KiB"] = Candidate(LAUNCH, settings)
    return found
