"""The daemons, which are started, killed, paused, and started again at the same address.

A daemon that ends by itself fails the run.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
import time
from enum import Enum
from pathlib import Path

import hoplite

from lab.chaos.members import Events
from lab.daemons import PORT, READY, binary
from lab.hosts import Host

#: Store of each node: twice the bytes that all operations of a round may move together (see ``generator``).
#: Every object fits into every node, gaps included, so no call waits for space. Other tests cover stores that
#: are full of objects that clients hold.
STORE = "2GiB"

#: Time that a leaving daemon has to hand over the objects that only it holds, and longest time to its end
#: after that.
DRAIN_SECONDS = 3.0
STOP_SECONDS = 10.0

#: Longest time until a daemon listens. Two cores may be starting all of them.
START_SECONDS = 20.0

#: Time-out of a daemon's status.
STATUS_SECONDS = 5.0


class Life(Enum):
    STARTING = "starting"
    UP = "up"
    PAUSED = "paused"
    STOPPING = "stopping"
    DOWN = "down"


class Node:
    """One host's daemon over all its restarts. Its socket and address stay the same."""

    def __init__(self, host: Host, folder: Path, addresses: list[str], events: Events) -> None:
        self.host, self.index = host, host.index
        self.socket = folder / f"{host.index}.sock"
        self.log = folder / f"node-{host.index}.log"
        self.address = f"{host.address}:{PORT}"
        self.life = Life.DOWN
        self.since = time.monotonic()
        self._addresses, self._events = addresses, events
        self._process: subprocess.Popen[str] | None = None

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def start(self) -> None:
        """Starts the daemon. An event reports that it listens.

        Must be called on the main thread, as the daemon ends with the thread that started it.
        """
        command = [binary(), "--listen", f"0.0.0.0:{PORT}", "--socket", str(self.socket)]
        command += ["--store-size", STORE, "--die-with-parent", "--drain-ms", f"{DRAIN_SECONDS * 1e3:.0f}"]
        command += ["--seed", ",".join(self._addresses)]
        with self.log.open("a") as log:
            log.write(f"--- started at {time.monotonic():.3f}\n")
            log.flush()
            self._process = subprocess.Popen(
                self.host.command(command), stdout=subprocess.PIPE, stderr=log, text=True
            )
        self._become(Life.STARTING)
        threading.Thread(target=self._listen, args=(self._process,), daemon=True).start()

    def is_ready(self, process: subprocess.Popen[str]) -> bool:
        """Handles the event of the first line. False if it is from an earlier process."""
        if process is not self._process or self.life is not Life.STARTING:
            return False
        self._become(Life.UP)
        return True

    def kill(self) -> None:
        assert self._process is not None
        self._become(Life.DOWN)
        self._process.kill()
        self._process.wait()

    def leave(self) -> None:
        """Sends SIGTERM. ``problem`` finds out whether the daemon ends."""
        self._become(Life.STOPPING)
        self._signal(signal.SIGTERM)

    def stop(self) -> None:
        """As ``leave``, and sends a second signal, so that the daemon ends without handing over."""
        self.leave()
        self._signal(signal.SIGINT)

    def pause(self) -> None:
        self._become(Life.PAUSED)
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._become(Life.UP)
        self._signal(signal.SIGCONT)

    def problem(self) -> str | None:
        """The problem of the process, if any: it died by itself, did not start, or did not end."""
        if self._process is None or self.life is Life.DOWN:
            return None
        status, age = self._process.poll(), time.monotonic() - self.since
        if self.life is Life.STOPPING:
            if status is None:
                return f"has not ended {age:.1f} s after SIGTERM" if age > STOP_SECONDS else None
            self._become(Life.DOWN)
            return f"ended with status {status} on SIGTERM, not 0" if status else None
        if status is not None:
            return f"ended by itself with status {status} while {self.life.value}"
        if self.life is Life.STARTING and age > START_SECONDS:
            return f"does not listen {age:.1f} s after its start"
        return None

    def status(self) -> hoplite.Status:
        with hoplite.connect(str(self.socket), timeout=STATUS_SECONDS) as client:
            return client.status(timeout=STATUS_SECONDS)

    def private_bytes(self) -> int:
        """The daemon's resident memory besides the store."""
        for line in Path(f"/proc/{self.pid}/status").read_text().splitlines():
            if line.startswith("RssAnon:"):
                return int(line.split()[1]) * 1024
        raise RuntimeError("the kernel does not tell RssAnon")

    def files(self) -> list[str]:
        """The daemon's open files, sockets included."""
        links = []
        for file in Path(f"/proc/{self.pid}/fd").iterdir():
            with contextlib.suppress(FileNotFoundError):  # closed since
                links.append(os.readlink(file))
        return links

    def sockets(self) -> str:
        """The daemon's TCP connections and their states."""
        return str(self.host.run(["ss", "-tan"], capture_output=True, text=True).stdout)

    def panics(self) -> list[str]:
        """Panics in the log that did not end the daemon."""
        return [line for line in self.log.read_text(errors="replace").splitlines() if "panicked" in line]

    def log_bytes(self) -> int:
        return self.log.stat().st_size

    def close(self) -> None:
        """Ends the daemon in any case."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def _signal(self, number: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    def _become(self, life: Life) -> None:
        self.life, self.since = life, time.monotonic()

    def _listen(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        with process.stdout as lines:
            for line in lines:
                if READY.match(line):
                    self._events.put(("ready", self, process))
