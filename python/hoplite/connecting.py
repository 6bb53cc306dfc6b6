"""Opens connections to a node."""

from __future__ import annotations

from hoplite import _hoplite
from hoplite.errors import NodeUnreachable

__all__ = ["ATTEMPT_TIMEOUT", "RETRY_INTERVAL", "open_connection"]

RETRY_INTERVAL = 0.05
"""Seconds between two tries of `Client.reconnect`."""

ATTEMPT_TIMEOUT = 5.0
"""Seconds that one try of `Client.reconnect` may take. A node that is still starting gets another try."""


def open_connection(
    socket: str, timeout: float | None, stop: _hoplite.Stop | None = None
) -> _hoplite.Connection:
    """A connection to the node that listens at `socket`. Setting `stop` makes this raise soon."""
    try:
        return _hoplite.Connection(socket, timeout, stop)
    except NodeUnreachable as error:
        raise NodeUnreachable(f"{error} (is a node running here? `hoplite node` starts one)") from None
