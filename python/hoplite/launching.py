"""Starts nodes that end with this process, even if it is killed."""

from __future__ import annotations

import os
import select
import subprocess
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from hoplite.daemon import find_daemon
from hoplite.errors import HopliteError, NodeUnreachable
from hoplite.timeouts import Deadline

__all__ = ["KILL_TIMEOUT", "START_TIMEOUT", "Launcher"]

START_TIMEOUT = 30.0
"""Seconds a node may take to print its address. A loaded machine needs a few."""

KILL_TIMEOUT = 10.0
"""Seconds the kernel may take to end a process on SIGKILL, and to stop one on SIGSTOP."""

STDERR_TAIL_BYTES = 4096
"""How many bytes of a failed node's log go into the error."""


class Launcher:
    """Starts `hoplited`. Raises `NodeUnreachable` if it is not found."""

    def __init__(self) -> None:
        self._daemon = find_daemon()
        # One thread starts all nodes: the kernel ends them when the thread that started them ends
        # (PR_SET_PDEATHSIG), not when the process does.
        self._starter = ThreadPoolExecutor(1, thread_name_prefix="hoplite-launcher")

    def start(
        self,
        listen: str,
        socket: str,
        *,
        store_size: str | None,
        seeds: Sequence[str],
        log: Path,
        timeout: float | None = START_TIMEOUT,
        args: Sequence[str] = (),
    ) -> tuple[subprocess.Popen[bytes], str]:
        """Start a node that listens at `listen` ("host:port"; port 0: any) and serves clients at `socket`.

        Waits up to `timeout` seconds (None: for ever) until the node prints its address. Returns its
        process and that address, "host:port". The node gets `args` and appends its standard error to
        `log`. Raises `NodeUnreachable` with the end of the log if the node does not start.
        """
        command = [self._daemon, "--listen", listen, "--socket", socket, "--die-with-parent"]
        if store_size is not None:
            command += ["--store-size", store_size]
        for seed in seeds:
            command += ["--seed", seed]
        command += args
        # Settings of the user's own nodes must not apply to these.
        clean = {k: v for k, v in os.environ.items() if not k.startswith("HOPLITE_")}
        with log.open("ab") as stderr:
            starting = self._starter.submit(
                subprocess.Popen[bytes],
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=stderr,
                env=clean,
                # A process group of its own: Ctrl-C at the terminal must reach this program only.
                process_group=0,
            )
            process = starting.result()
        try:
            return process, self._listening(process, log, timeout)
        except BaseException:
            process.kill()
            process.wait(KILL_TIMEOUT)
            raise

    def close(self) -> None:
        """Ends the thread, which also ends the nodes that still run."""
        self._starter.shutdown()

    def _listening(self, process: subprocess.Popen[bytes], log: Path, timeout: float | None) -> str:
        """Read the node's first line, and return the address in it."""
        assert process.stdout is not None
        deadline = Deadline(timeout)
        line = b""
        with process.stdout as stdout:
            while not line.endswith(b"\n"):
                if not select.select([stdout], [], [], deadline.left())[0]:
                    raise self._start_error(log, f"said nothing within {timeout} s")
                piece = os.read(stdout.fileno(), 4096)
                if not piece:
                    status = process.wait(KILL_TIMEOUT)
                    raise self._start_error(log, f"ended with status {status} instead of starting")
                line += piece
        address = _address_in(line.decode(errors="replace"))
        if address is None:
            raise self._start_error(log, f"said {line!r}, which names no address")
        return address

    def _start_error(self, log: Path, what: str) -> HopliteError:
        tail = log.read_bytes()[-STDERR_TAIL_BYTES:].decode(errors="replace")
        return NodeUnreachable(f"the new node ({self._daemon}) {what}; its log {log} ends:\n{tail}")


def _address_in(line: str) -> str | None:
    for word in line.split():
        host, colon, port = word.rstrip(",;").rpartition(":")
        if colon and host and port.isdigit():
            return f"{host}:{port}"
    return None
