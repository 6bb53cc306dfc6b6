"""`python -m examples.demo [--file PATH]`, or `make demo [FILE=PATH]`."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from rich.console import Console

from examples.demo import broadcast, machine, reduction, training
from examples.demo.stage import NODES, built

STORE_BYTES_MIN = 512 << 20
"""Room for acts 2 and 3."""


def main() -> int:
    """Perform all acts; the exit status is 0 if every one held what it promised."""
    parser = argparse.ArgumentParser(prog="python -m examples.demo", description="Hoplite in three acts.")
    parser.add_argument("--file", type=Path, help="what to broadcast (default: a generated 256 MiB array)")
    options = parser.parse_args()
    if options.file is not None and not options.file.is_file():
        parser.error(f"{options.file} is no file")

    console = Console()
    rate = machine.copy_rate()
    console.print(f"This machine's cores together copy {rate / 2**30:.1f} GiB/s of memory (memcpy).")
    # The file and its headroom, and never less than what the other acts need.
    store = max(STORE_BYTES_MIN, broadcast.size_of(options.file) * 9 // 8 + (64 << 20))
    console.print(f"Starting {NODES} nodes with a store of {store >> 20} MiB each ...")
    with built(console, store, rate) as stage:
        broadcast.perform(stage, options.file)
        reduction.perform(stage)
        training.perform(stage)
        left = sum(client.status().copies for client in stage.clients)
        console.rule(f"Done: everything verified, {left} copies left in the stores")
    return 0


if __name__ == "__main__":
    sys.exit(main())
