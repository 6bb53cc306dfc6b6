"""Prints the bytes that a Ray cluster's stores have spilled to disk: ``python -m lab.ray_stores HEAD``."""

from __future__ import annotations

import sys

from ray._private.internal_api import get_memory_info_reply, get_state_from_address


def main(head: str) -> None:
    stores = get_memory_info_reply(get_state_from_address(head)).store_stats
    print(stores.spilled_bytes_total + stores.object_store_bytes_fallback)


if __name__ == "__main__":
    main(sys.argv[1])
