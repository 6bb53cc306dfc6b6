"""The results of `Client.status` and `Client.locations`."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Gauge", "Link", "Location", "Locations", "Status"]


@dataclass(frozen=True, slots=True)
class Location:
    """One copy of an object: its node and its state."""

    node: str
    """The address the node announces, "host:port"."""
    complete: bool
    """Whether all bytes are there. An incomplete copy is being written or received, and can already be
    read."""
    pinned: bool
    """Whether the copy stays until the object is deleted. Copies made by `get` are not pinned: they are
    evicted when room is needed."""


@dataclass(frozen=True, slots=True)
class Locations:
    """The result of `Client.locations`."""

    size: int | None
    """Bytes of the object; None if no node has announced it yet."""
    copies: tuple[Location, ...]
    """Every known copy."""


@dataclass(frozen=True, slots=True)
class Link:
    """Measurements of the link to a peer."""

    peer: str
    """The address of the peer."""
    latency: float | None
    """Seconds one way; None until measured."""
    bandwidth: float | None
    """Bytes per second; None until measured."""


@dataclass(frozen=True, slots=True)
class Gauge:
    """A bounded queue, table or number of connections of a node."""

    name: str
    value: int
    """The current fill."""
    limit: int
    """The largest fill."""
    met: int
    """How often the node refused, dropped or ended something early because of the limit, since it started."""


@dataclass(frozen=True, slots=True)
class Status:
    """A node's report on itself."""

    node: str
    """The address the node announces."""
    members: tuple[str, ...]
    """Every node that it believes alive, itself included."""
    store_bytes: int
    """Size of its store."""
    used_bytes: int
    """Bytes of the store that copies take. Each copy is rounded up to 64 bytes, and takes 64 bytes more."""
    copies: int
    """Copies held here, incomplete ones included."""
    entries: int
    """Objects whose directory entry is on this node."""
    tombstones: int
    """Records of deleted ids on this node."""
    transfers: int
    """Transfers running, in and out."""
    reductions: int
    """Reductions this node takes part in."""
    clients: int
    """Connected clients, this one included."""
    sent_bytes: int
    """Bytes sent to other nodes since the node started."""
    received_bytes: int
    """Bytes received from other nodes since the node started."""
    folded_bytes: int
    """Bytes of reduction input folded since the node started."""
    evicted_copies: int
    """Copies evicted to make room since the node started."""
    links: tuple[Link, ...]
    """The measured links to other nodes."""
    gauges: tuple[Gauge, ...]
    """Every bounded queue and table, with its limit."""
