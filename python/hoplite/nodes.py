"""A node's answers about itself and its copies."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Gauge", "Link", "Location", "Locations", "Status"]


@dataclass(frozen=True, slots=True)
class Location:
    """Where a copy of an object is, and how far."""

    node: str
    """The address the node announces, "host:port"."""
    complete: bool
    """All bytes are there. An incomplete copy is being written or received, and is already read from."""
    pinned: bool
    """Stays until deleted. Copies that came by `get` are not pinned: they go when room is needed."""


@dataclass(frozen=True, slots=True)
class Locations:
    """The answer of `Client.locations`."""

    size: int | None
    """Bytes of the object; None if nobody has announced it yet."""
    copies: tuple[Location, ...]
    """Every known copy."""


@dataclass(frozen=True, slots=True)
class Link:
    """Measurements of the way to a peer."""

    peer: str
    latency: float | None
    """Seconds one way; None until measured."""
    bandwidth: float | None
    """Bytes per second; None until measured."""


@dataclass(frozen=True, slots=True)
class Gauge:
    """A bounded queue, table or number of connections of a node."""

    name: str
    value: int
    """How full it is."""
    limit: int
    met: int
    """How often something was refused, dropped or ended early for that limit, since the node started."""


@dataclass(frozen=True, slots=True)
class Status:
    """A node's account of itself."""

    node: str
    """The address it announces."""
    members: tuple[str, ...]
    """Every node it believes alive, itself included."""
    store_bytes: int
    """Size of its store."""
    used_bytes: int
    """Bytes of the store taken by copies (rounded up to 64 bytes, with 64 bytes more for each)."""
    copies: int
    """Copies held here, incomplete ones included."""
    entries: int
    """Objects whose directory entry lives here."""
    tombstones: int
    """Deleted ids remembered here."""
    transfers: int
    """Transfers running, in and out."""
    reductions: int
    """Reductions this node takes part in."""
    clients: int
    """Connected clients, this one included."""
    sent_bytes: int
    """To other nodes since it started."""
    received_bytes: int
    """From other nodes since it started."""
    folded_bytes: int
    """Bytes of reduction input folded since it started."""
    evicted_copies: int
    """Copies dropped to make room since it started."""
    links: tuple[Link, ...]
    """The measured ways to other nodes."""
    gauges: tuple[Gauge, ...]
    """Every bounded queue and table, with its limit."""
