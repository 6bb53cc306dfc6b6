"""The daemons: started, killed, paused, and started again at the same address, all on purpose.

A daemon that ends unasked fails the run.
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

#: Shared memory of each node: twice what all operations of a round may move together (see ``generator``), so
#: that every object fits into every node, gaps included, and nothing but time makes a call wait. Of a
#: store full of what clients hold pinned, a call waits for those clients; that is tested elsewhere.
STORE = "2GiB"

#: What a daemon gets to hand over what only it holds, and the longest it may then take to end.
DRAIN_SECONDS = 3.0
STOP_SECONDS = 10.0

#: Longest a daemon may take to listen; two cores may be starting all of them.
START_SECONDS = 20.0

#: Longest a daemon may take to say what it holds.
STATUS_SECONDS = 5.0


class Life(Enum):
    STARTING = "starting"
    UP = "up"
    PAUSED = "paused"
    STOPPING = "stopping"
    DOWN = "down"


class Node:
    """One host's daemon through all its lives; its socket and address stay the same."""

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
        """Starts it; an event tells when it listens. On the main thread: it ends with its starter."""
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
        """Takes the event of its first line in; false if that process is history."""
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
        """SIGTERM; ``problem`` sees when it has obeyed, or that it does not."""
        self._become(Life.STOPPING)
        self._signal(signal.SIGTERM)

    def stop(self) -> None:
        """As ``leave``, and a second signal: it must not hand over anything, just end."""
        self.leave()
        self._signal(signal.SIGINT)

    def pause(self) -> None:
        self._become(Life.PAUSED)
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._become(Life.UP)
        self._signal(signal.SIGCONT)

    def problem(self) -> str | None:
        """What is wrong with the process as such: it died by itself, or does not start, or not end."""
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
        """Its resident memory besides the store."""
        for line in Path(f"/proc/{self.pid}/status").read_text().splitlines():
            if line.startswith("RssAnon:"):
                return int(line.split()[1]) * 1024
        raise RuntimeError("the kernel does not tell RssAnon")

    def files(self) -> list[str]:
        """Its open files, sockets included."""
        links = []
        for file in Path(f"/proc/{self.pid}/fd").iterdir():
            with contextlib.suppress(FileNotFoundError):  # closed since
                links.append(os.readlink(file))
        return links

    def sockets(self) -> str:
        """Its TCP connections, and their states."""
        return str(self.host.run(["ss", "-tan"], capture_output=True, text=True).stdout)

    def panics(self) -> list[str]:
        """What its log says of a bug in it that did not end it."""
        return [line for line in self.log.read_text(errors="replace").splitlines() if "panicked" in line]

    def log_bytes(self) -> int:
        return self.log.stat().st_size

    def close(self) -> None:
        """Ends it for certain, whatever it is at."""
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
