"""Finds the Unix socket of a node from the address that the user gives."""

from __future__ import annotations

import os
import socket

from hoplite import _hoplite
from hoplite.errors import BadArgument, NodeUnreachable

__all__ = ["DEFAULT_PORT", "NodeLike", "default_socket", "socket_of"]

DEFAULT_PORT = _hoplite.DEFAULT_PORT
"""The default port of a node."""

PORT_MAX = 65_535

NodeLike = str | int | os.PathLike[str] | None
"""The address of a node; `connect` explains the forms."""


def default_socket(port: int) -> str:
    """The default socket path of the node on `port`.

    This is `$XDG_RUNTIME_DIR/hoplite-<uid>/<port>.sock`. /tmp replaces a variable that is not set.
    """
    return str(_hoplite.default_socket(port))


def socket_of(node: NodeLike) -> str:
    """The socket path of `node`. Raises `BadArgument`, and `NodeUnreachable` for a node on another host."""
    if node is None:
        return os.environ.get("HOPLITE_SOCKET") or default_socket(DEFAULT_PORT)
    if isinstance(node, int):
        return default_socket(_port(str(node), node))
    path = os.fspath(node)
    if not path:
        raise BadArgument("an empty string names no node; give a socket path, a port or host:port")
    if "/" in path:
        return path
    if path.isdigit():
        return default_socket(_port(path, path))
    host, colon, port = path.rpartition(":")
    if not colon:
        raise BadArgument(f"{path!r} is neither a socket path (with a '/'), nor a port, nor host:port")
    if host and not _is_of_this_host(host.strip("[]")):
        raise NodeUnreachable(
            f"{path} is on another host, and a client talks only to a node on its own host (they share"
            f" memory): start one here with `hoplite node --seed {path}` and connect to that"
        )
    return default_socket(_port(port, path))


def _port(text: str, whole: object) -> int:
    if not text.isdigit() or not 0 < int(text) <= PORT_MAX:
        raise BadArgument(f"{text!r} in {whole!r} is no port; ports are 1 to {PORT_MAX}")
    return int(text)


def _is_of_this_host(host: str) -> bool:
    """Whether a name or IP address belongs to this host. Only the host's own addresses can be bound."""
    try:
        found = socket.getaddrinfo(host, 0, type=socket.SOCK_DGRAM)
    except OSError as error:
        raise NodeUnreachable(f"the host name {host!r} cannot be resolved: {error}") from error
    for family, kind, protocol, _, address in found:
        try:
            with socket.socket(family, kind, protocol) as probe:
                probe.bind(address)
                return True
        except OSError:
            continue
    return False
