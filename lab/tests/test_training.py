"""Training by the lab's peers with fixed groups. Skipped if they are not installed."""

from __future__ import annotations

import pytest

from lab import systems
from lab.hosts import Hosts, HostsUnavailable, require
from lab.systems.training import Trains

try:
    require()
except HostsUnavailable as reason:
    pytest.skip(str(reason), allow_module_level=True)

BYTES = 1 << 20


@pytest.mark.parametrize("name", ["openmpi", "gloo"])
def test_all_ranks_step_by_the_mean_over_the_links(name: str) -> None:
    module = systems.module(name)
    if lacking := module.missing():
        pytest.skip(lacking)
    with Hosts(3) as hosts, module.opened(hosts, "64MiB") as opened:
        (trainer,) = (system for system in opened if isinstance(system, Trains))
        before = [host.link_bytes()["down"] for host in hosts]
        # This raises if the parameters are wrong.
        seconds = trainer.train(BYTES, 0.01, 3)
        received = [host.link_bytes()["down"] - count for host, count in zip(hosts, before, strict=True)]
    assert len(seconds) == 3
    assert all(second > 0.01 for second in seconds)
    assert min(received) > 3 * BYTES
