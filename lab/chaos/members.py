"""The client processes on the side of the main loop: their pipes and their deaths."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from lab.hosts import Host
from lab.results import ROOT

#: Events in order: ("answer", member, outcome), ("gone", member, None) or ("ready", node, line).
Events = SimpleQueue[tuple[str, Any, Any]]


class Member:
    """One client process. Its answers and its end arrive as events."""

    def __init__(self, host: Host, slot: int, socket: Path, log: Path, events: Events) -> None:
        self.host, self.slot = host.index, slot
        self.log = log
        self.was_killed = False
        #: Time since which it takes calls. Earlier calls wait in its pipe.
        self.ready_at: float | None = None
        self._process = self._start(host, socket, log)
        self._events = events
        threading.Thread(target=self._listen, daemon=True).start()

    @property
    def pid(self) -> int:
        return self._process.pid

    def __str__(self) -> str:
        return f"client {self.slot} of host {self.host} (pid {self.pid})"

    @staticmethod
    def _start(host: Host, socket: Path, log: Path) -> subprocess.Popen[str]:
        with log.open("a") as errors:
            return subprocess.Popen(
                host.command([sys.executable, "-m", "lab.chaos.client", str(socket)]),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                cwd=ROOT,
            )

    def send(self, call: dict[str, Any]) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(call) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            # It has just been killed, and the event of its end is under way.
            pass

    def kill(self) -> None:
        """Kills the process with SIGKILL. The event of its end answers its calls."""
        self.was_killed = True
        self._process.kill()

    def dump(self) -> None:
        """Makes it write the stacks of all its threads to its log."""
        self._process.send_signal(signal.SIGUSR1)

    def close(self) -> None:
        """Ends the process, even in the middle of a call."""
        self.was_killed = True
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            with contextlib.suppress(BrokenPipeError):
                pipe.close()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.endswith("\n"):  # else it was killed in the middle of saying it
                said = json.loads(line)
                if "hello" in said:
                    self.ready_at = time.monotonic()
                else:
                    self._events.put(("answer", self, said))
        self._events.put(("gone", self, None))
