"""A minute of chaos: real nodes killed, paused and cut off, and everything right in the end."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("numpy")

from lab.chaos.contents import Folded, Leaf, WrongContent, check
from lab.chaos.draw import Drawer
from lab.hosts import HostsUnavailable, require

ROOT = Path(__file__).resolve().parent.parent

#: The run itself, its start and its end; pytest's own limit would not show what the run says.
LIMIT_SECONDS = 240


@pytest.mark.timeout(LIMIT_SECONDS + 30)
def test_a_minute_of_chaos_ends_well() -> None:
    try:
        require()
    except HostsUnavailable as reason:
        pytest.skip(str(reason))
    command = [sys.executable, "-m", "lab.chaos", "--minutes", "1", "--seed", "1"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=LIMIT_SECONDS)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    assert "clean: seed 1" in done.stdout


def test_a_seed_and_a_round_make_one_plan() -> None:
    plan = str(Drawer(7, 3, 6, 20.0).round())
    assert plan == str(Drawer(7, 3, 6, 20.0).round())
    assert plan != str(Drawer(7, 4, 6, 20.0).round())
    assert plan != str(Drawer(8, 3, 6, 20.0).round())


def test_a_result_tells_which_sources_went_in_and_any_wrong_element_is_seen() -> None:
    sources = tuple(Leaf(f"source {bit}", 1000, "float32", bit) for bit in range(4))
    content = Folded("sum", 2, sources)
    total = sources[0].array() + sources[3].array()
    assert check(content, total) == 0b1001
    total[999] += 1
    with pytest.raises(WrongContent, match="1 of 1000 elements are wrong, from 999"):
        check(content, total)
    with pytest.raises(WrongContent, match="3 parts went in, not 2"):
        check(content, sources[0].array() + sources[1].array() + sources[2].array())
    with pytest.raises(WrongContent):
        check(sources[0], sources[1].array())


def test_a_chain_is_right_only_if_each_of_its_parts_is() -> None:
    sources = tuple(Leaf(f"chained {bit}", 10, "int64", bit) for bit in range(5))
    inner = Folded("sum", 2, sources[:3])
    chain = Folded("sum", 2, (inner, *sources[3:]))
    arrays = [source.array() for source in sources]
    assert check(chain, arrays[0] + arrays[2] + arrays[4]) == 0b10101
    with pytest.raises(WrongContent, match="1 parts went in, not 2"):
        check(chain, arrays[0] + arrays[4])
