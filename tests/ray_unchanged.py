"""Lets programs and tests written for Ray call `hoplite.ray.init` wherever they initialise Ray.

As a plugin of pytest (``-p ray_unchanged``) it does so for Ray's own tests.
"""

from __future__ import annotations

from typing import Any

import hoplite
import hoplite.ray as hoplite_ray
import pytest
import ray

THRESHOLD = 256
"""Threshold in bytes. It is so low that even the small arrays of examples go through Hoplite."""

STATUS_TIMEOUT = 10.0
"""Time-out in seconds of a node's status on a busy machine."""

COUNT = "objects through Hoplite:"

_init, _shutdown = ray.init, ray.shutdown


class Session:
    """Ray's `init` and `shutdown` with Hoplite's around them."""

    objects = 0
    """Number of objects that went through Hoplite."""

    def start(self) -> None:
        """Wrap Ray's functions in this process from now on."""
        ray.init, ray.shutdown = self._init, self._shutdown

    def _init(self, *args: Any, **options: Any) -> Any:
        if ray.is_initialized() or options.get("local_mode"):
            return _init(*args, **options)
        options["runtime_env"] = hoplite_ray.runtime_env(options.get("runtime_env"), threshold=THRESHOLD)
        context = _init(*args, **options)
        hoplite_ray.init(transparent=True, threshold=THRESHOLD)
        return context

    def _shutdown(self, *args: Any, **options: Any) -> None:
        if ray.is_initialized():
            try:
                # The node remembers deleted ids for ten minutes.
                status = hoplite_ray.client().status(timeout=STATUS_TIMEOUT)
                self.objects += status.entries + status.tombstones
            except (hoplite.HopliteError, ray.exceptions.RayError):
                # A test has already stopped the cluster.
                pass
            hoplite_ray.shutdown()
        _shutdown(*args, **options)


session = Session()


def pytest_configure() -> None:
    session.start()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    terminalreporter.write_line(f"{COUNT} {session.objects}")
