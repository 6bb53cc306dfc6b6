"""The lab's MPI peers really run over its hosts. Skipped if they are not installed."""

from __future__ import annotations

import pytest

from lab import systems
from lab.hosts import Hosts, HostsUnavailable, require

try:
    require()
except HostsUnavailable as reason:
    pytest.skip(str(reason), allow_module_level=True)


@pytest.mark.parametrize("name", ["openmpi", "mpich"])
def test_every_case_gives_the_right_content_over_the_links(name: str) -> None:
    module = systems.module(name)
    if lacking := module.missing():
        pytest.skip(lacking)
    with Hosts(3) as hosts, module.opened(hosts, "64MiB") as opened:
        as_it_comes = opened[0]
        for case in systems.CASES:
            # This raises for wrong bytes, and for bytes that did not cross a link.
            assert as_it_comes.run(case, 1 << 18, case) > 0
