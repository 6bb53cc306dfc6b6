"""The command `hoplite`: `hoplite node` runs a node, `hoplite status` shows one."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from hoplite.client import connect
from hoplite.daemon import find_daemon
from hoplite.errors import HopliteError
from hoplite.nodes import Status

__all__ = ["main"]

UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit status."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    try:
        if given[:1] == ["node"]:
            # The daemon parses its own options, --help included.
            daemon = find_daemon()
            os.execv(daemon, [daemon, *given[1:]])
        options = _parser().parse_args(given)
        with connect(options.address, timeout=options.timeout, default_timeout=options.timeout) as client:
            print(_shown(client.status()))
    except HopliteError as error:
        print(f"hoplite: {error}", file=sys.stderr)
        return 1
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="hoplite", description="Run and inspect Hoplite nodes.")
    commands = parser.add_subparsers(dest="command", required=True, metavar="command")
    commands.add_parser("node", help="run a node in the foreground (hoplite node --help lists its options)")
    status = commands.add_parser("status", help="show what a node on this host says of itself")
    status.add_argument(
        "address",
        nargs="?",
        help="socket path, port or host:port (default: $HOPLITE_SOCKET, else port 7420)",
    )
    status.add_argument(
        "--timeout", type=float, default=5.0, help="seconds to wait for an answer (default 5)"
    )
    return parser


def _shown(status: Status) -> str:
    rows = [
        ("node", status.node),
        ("members", f"{len(status.members)}: {', '.join(status.members)}"),
        ("store", f"{_size(status.used_bytes)} of {_size(status.store_bytes)} used, {status.copies} copies"),
        ("directory", f"{status.entries} entries, {status.tombstones} tombstones"),
        (
            "running",
            f"{status.transfers} transfers, {status.reductions} reductions, {status.clients} clients",
        ),
        ("sent", _size(status.sent_bytes)),
        ("received", _size(status.received_bytes)),
        ("folded", _size(status.folded_bytes)),
        ("evicted", f"{status.evicted_copies} copies"),
    ]
    for link in status.links:
        latency = "latency unknown" if link.latency is None else f"{link.latency * 1e6:.0f} us one way"
        rate = "rate unknown" if link.bandwidth is None else f"{_size(link.bandwidth)}/s"
        rows.append((f"to {link.peer}", f"{latency}, {rate}"))
    for gauge in status.gauges:
        # Most gauges are empty. Show those that are in use or were full at some time.
        if gauge.value or gauge.met:
            met = f", met {gauge.met} times" if gauge.met else ""
            rows.append((gauge.name, f"{gauge.value} of {gauge.limit}{met}"))
    # The names of links may be longer than the other names.
    width = max(len(name) for name, _ in rows) + 2
    return "\n".join(f"{name:<{width}}{value}" for name, value in rows)


def _size(count: float) -> str:
    for unit in UNITS:
        if count < 1024 or unit == UNITS[-1]:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    raise AssertionError("the last unit fits everything")


if __name__ == "__main__":
    sys.exit(main())
