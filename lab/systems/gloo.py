"""Gloo through PyTorch's ``torch.distributed`` on CPU tensors: a process of a fixed group on every host.

Its collectives are built in. The group must be whole, and all of it makes each call.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager

from lab.hosts import Hosts
from lab.systems import CASES, ROUND_TRIP, System, peers
from lab.systems.ranks import Ranks
from lab.worker import Process

PORT = 7070

SETTINGS = {
    # The interface to bind to. Gloo would find no address by the host's name, and would warn of that.
    "GLOO_SOCKET_IFNAME": "eth0",
    "TORCH_CPP_LOG_LEVEL": "ERROR",
    # All hosts share the cores.
    "OMP_NUM_THREADS": "1",
}


def missing() -> str:
    return peers.missing("torch")


@contextmanager
def opened(hosts: Hosts, store: str) -> Iterator[Sequence[System]]:
    """Gloo. ``store`` is for Hoplite only. Gloo moves data of its callers' arrays."""
    with ExitStack() as stack:
        ranks: list[Process] = []
        for host in hosts:
            rank = Process(peers.python("lab.systems.gloo_rank"), host, peers.START_SECONDS, SETTINGS)
            stack.callback(rank.close)
            ranks.append(rank)
        for index, rank in enumerate(ranks):
            rank.send("join", address=hosts[0].address, port=PORT, rank=index, ranks=len(ranks))
        for rank in ranks:
            rank.receive()
        yield [Ranks("gloo", (*CASES, ROUND_TRIP), ranks, hosts.memory)]
