"""One rank of an MPI program: does collectives on commands over a Unix socket.

``python -m lab.systems.mpi_rank SOCKET LIBRARY``, started by mpirun. LIBRARY is the MPI library that mpi4py
loads. Standard input cannot carry the commands, as mpirun forwards it to rank 0 alone. Between calls a rank
waits for the socket, because waiting inside MPI would spin.
"""

from __future__ import annotations

import ctypes
import socket
import sys
import time
from typing import Any

import mpi4py
import numpy as np

from lab.memory import mapped
from lab.systems.training import rank_trains
from lab.worker import checksum, pattern, serve

#: Only one thread makes calls, so MPI's locks would only cost time.
mpi4py.rc.thread_level = "single"

from mpi4py import MPI  # noqa: E402  (what is set before decides how it starts)

#: The value in receive buffers before a run. Patterns and their sums are never negative.
UNTOUCHED = -1.0


class Calls:
    """The commands of a rank. All ranks get the same commands. Rank 0 is the root."""

    def __init__(self, library: str) -> None:
        self._comm = MPI.COMM_WORLD
        self._variables = Variables(library)
        self._source = self._result = np.empty(0, np.float32)

    def use(self, settings: dict[str, int]) -> dict[str, Any]:
        """Sets the library's variables. All others have their values from the start."""
        self._variables.set(settings)
        # OpenMPI reads the variables when a communicator is made, MPICH at every call.
        before, self._comm = self._comm, MPI.COMM_WORLD.Dup()
        if before != MPI.COMM_WORLD:
            before.Free()
        return {}

    def prepare(self, case: str, size: int, seed: int, memory: dict[str, str]) -> dict[str, Any]:
        """Makes the source, and a buffer for the result with its pages allocated."""
        is_root = self._comm.rank == 0
        if case == "broadcast" and not is_root:
            self._source = np.empty(0, np.float32)
        else:
            self._source = pattern(size, seed, mapped(memory["source"], size))
        pieces = {"broadcast": not is_root, "gather": is_root * self._comm.size, "reduce": is_root}
        wanted = size * int(pieces.get(case, 1))
        self._result = mapped(memory["result"], wanted) if wanted else np.empty(0, np.float32)
        self._result.fill(UNTOUCHED)
        return {}

    def broadcast(self) -> dict[str, Any]:
        self._comm.Bcast(self._source if self._comm.rank == 0 else self._result)
        return {"ended": time.monotonic()}

    def gather(self) -> dict[str, Any]:
        self._comm.Gather(self._source, self._result)
        return {"ended": time.monotonic()}

    def reduce(self) -> dict[str, Any]:
        self._comm.Reduce(self._source, self._result, MPI.SUM)
        return {"ended": time.monotonic()}

    def allreduce(self) -> dict[str, Any]:
        self._comm.Allreduce(self._source, self._result, MPI.SUM)
        return {"ended": time.monotonic()}

    def round_trip(self, trips: int) -> dict[str, Any]:
        """Rank 0 sends its source to rank 1 and waits until it comes back, ``trips`` times."""
        for _ in range(trips):
            if self._comm.rank == 0:
                self._comm.Send(self._source, 1)
                self._comm.Recv(self._result, 1)
            else:
                self._comm.Recv(self._result, 0)
                self._comm.Send(self._result, 0)
        return {"ended": time.monotonic()}

    def train(self, size: int, compute: float, rounds: int) -> dict[str, Any]:
        parameters, gradient = np.zeros(size // 4, np.float32), np.zeros(size // 4, np.float32)

        def step() -> None:
            self._comm.Allreduce(MPI.IN_PLACE, gradient, MPI.SUM)
            np.multiply(gradient, 1 / self._comm.size, out=gradient)
            np.subtract(parameters, gradient, out=parameters)

        return rank_trains(parameters, gradient, compute, rounds, step)

    def check(self, pieces: int) -> dict[str, Any]:
        """The checksums of the result's pieces."""
        return {"checksums": [checksum(piece) for piece in np.split(self._result, pieces)]}


class Variables:
    """The library's control variables, through MPI's tool interface, which mpi4py does not offer."""

    def __init__(self, library: str) -> None:
        self._library = ctypes.CDLL(library)
        self._handles: dict[str, ctypes.c_void_p] = {}
        self._first: dict[str, int] = {}
        self._call("init_thread", 0, ctypes.byref(ctypes.c_int()))

    def set(self, settings: dict[str, int]) -> None:
        for name in settings:
            if name not in self._handles:
                self._handles[name] = self._handle(name)
                self._first[name] = self._read(name)
        for name, value in (self._first | settings).items():
            self._call("cvar_write", self._handles[name], ctypes.byref(ctypes.c_int(value)))
            if self._read(name) != value:
                raise RuntimeError(f"{name} is {self._read(name)} after {value} was written to it")

    def _handle(self, name: str) -> ctypes.c_void_p:
        index, count, handle = ctypes.c_int(), ctypes.c_int(), ctypes.c_void_p()
        self._call("cvar_get_index", name.encode(), ctypes.byref(index))
        self._call("cvar_handle_alloc", index, None, ctypes.byref(handle), ctypes.byref(count))
        return handle

    def _read(self, name: str) -> int:
        value = ctypes.c_int()
        self._call("cvar_read", self._handles[name], ctypes.byref(value))
        return value.value

    def _call(self, function: str, *arguments: Any) -> None:
        if code := getattr(self._library, f"MPI_T_{function}")(*arguments):
            raise RuntimeError(f"MPI_T_{function}: error {code}")


def main(path: str, library: str) -> None:
    calls = Calls(library)
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(path)
        with connection.makefile("r") as lines, connection.makefile("w") as answers:
            serve(calls, lines, answers, rank=MPI.COMM_WORLD.rank)


if __name__ == "__main__":
    main(*sys.argv[1:])
