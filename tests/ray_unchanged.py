"""Programs and tests written for Ray, as if they called `hoplite.ray.init` wherever Ray is initialised.

As a plugin of pytest (``-p ray_unchanged``) it does that to Ray's own tests.
"""

from __future__ import annotations

from typing import Any

import hoplite
import hoplite.ray as hoplite_ray
import pytest
import ray

THRESHOLD = 256
"""Bytes: even what documentation calls an array is to go through Hoplite."""

STATUS_TIMEOUT = 10.0
"""Seconds for a node, on a machine that is busy, to say what it holds."""

COUNT = "objects through Hoplite:"

_init, _shutdown = ray.init, ray.shutdown


class Session:
    """Ray's `init` and `shutdown` with Hoplite's around them."""

    objects = 0
    """Which went through Hoplite, in all."""

    def start(self) -> None:
        """From here on, in this process."""
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
                # This node remembers for ten minutes what has been deleted.
                status = hoplite_ray.client().status(timeout=STATUS_TIMEOUT)
                self.objects += status.entries + status.tombstones
            except (hoplite.HopliteError, ray.exceptions.RayError):
                # A test has ended the cluster before.
                pass
            hoplite_ray.shutdown()
        _shutdown(*args, **options)


session = Session()


def pytest_configure() -> None:
    session.start()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    terminalreporter.write_line(f"{COUNT} {session.objects}")
