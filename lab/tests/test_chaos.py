"""A minute of chaos: real nodes are killed, paused and cut off. In the end everything must be right."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("numpy")

from lab.chaos.contents import Folded, Leaf, WrongContent, check
from lab.chaos.faults import History
from lab.chaos.generator import Generator
from lab.chaos.judge import Attempt, Judge, Known
from lab.chaos.plan import Operation, Thing
from lab.hosts import HostsUnavailable, require

ROOT = Path(__file__).resolve().parents[2]

#: Time-out of the run with its start and end. With pytest's own limit, the output of the run would be lost.
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
    plan = str(Generator(7, 3, 6, 20.0).round())
    assert plan == str(Generator(7, 3, 6, 20.0).round())
    assert plan != str(Generator(7, 4, 6, 20.0).round())
    assert plan != str(Generator(8, 3, 6, 20.0).round())


def test_every_wrong_element_of_a_result_is_found() -> None:
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


class Court:
    """A judge, an object that host 1 made a while ago, and a reader on host 2."""

    def __init__(self) -> None:
        self.history = History()
        self.judge = Judge(self.history, hosts=5)
        self.began = time.monotonic()
        self.known = Known(Thing("thing", Leaf("thing", 1000), (1,)))
        self.known.homes, self.known.first_begun = {1}, self.began
        self.known.made_at = self.known.last_made = self.began

    def verdict(self, *, call: str = "view", seconds: float = 1.0, **outcome: Any) -> str | None:
        """The judge's verdict on a call of host 2 that starts now and takes ``seconds``."""
        operation = Operation(1, 0.0, call, 2, 0, ("thing",), 60.0)
        attempt = Attempt(1, operation, 2, ("thing",), self.began)
        now = time.monotonic()
        told = {"began": now, "ended": now + seconds, "connected": now, "message": "", **outcome}
        return self.judge.problem(attempt, told, [self.known])


ERRORS = (
    "ObjectLost",
    "ObjectDeleted",
    "NodeUnreachable",
    "ObjectExists",
    "StoreFull",
    "Aborted",
    "Mismatch",
)


@pytest.mark.parametrize("error", [*ERRORS, "InternalError", "WrongContent", "BadArgument"])
def test_without_a_fault_no_error_is_excused(error: str) -> None:
    assert "no fault explains this" in str(Court().verdict(error=error))


def test_a_call_may_time_out_only_where_something_was_in_its_way() -> None:
    court = Court()
    assert court.verdict(error="TimedOut", seconds=0.1) is None
    assert court.verdict(error="TimedOut", seconds=30) is not None
    court.known.made_at = None
    assert court.verdict(error="TimedOut", seconds=30) is None
    court.known.made_at = court.began
    court.history.begin("slow-link", [5])
    assert court.verdict(error="TimedOut", seconds=30) is None


def test_an_object_may_be_lost_only_with_its_host() -> None:
    court = Court()
    court.history.begin("kill-daemon", [3])
    court.history.begin("slow-link", [1])
    assert court.verdict(error="ObjectLost") is not None
    court.history.begin("kill-daemon", [1])
    assert court.verdict(error="ObjectLost") is None


def test_a_leaving_daemon_loses_nothing() -> None:
    court = Court()
    leaving = court.history.begin("leave-daemon", [1])
    assert court.verdict(error="ObjectLost") is not None
    leaving.ran_out = True
    assert court.verdict(error="ObjectLost") is None


def test_only_the_own_daemons_death_makes_a_node_unreachable() -> None:
    court = Court()
    court.history.begin("kill-daemon", [1])
    assert court.verdict(error="NodeUnreachable") is not None
    court.history.begin("kill-daemon", [2])
    assert court.verdict(error="NodeUnreachable") is None
    assert court.verdict(error="NodeUnreachable", seconds=30) is not None


def look_after_deletion(court: Court, **outcome: Any) -> str | None:
    operation = Operation(1, 0.0, "view", 2, 0, ("thing",), 60.0)
    look = Attempt(1, operation, 2, ("thing",), time.monotonic(), must_be_deleted=True)
    now = time.monotonic()
    return court.judge.problem(look, {"began": now, "ended": now, "message": "", **outcome}, [court.known])


def delete(court: Court) -> None:
    court.judge.deletes["thing"] = time.monotonic()
    operation = Operation(2, 0.0, "delete", 1, 0, ("thing",), 60.0)
    court.judge.note_deletion(Attempt(1, operation, 1, ("thing",), time.monotonic()))


def test_a_deleted_object_does_not_come_back() -> None:
    court = Court()
    delete(court)
    assert court.verdict(error="ObjectDeleted") is None
    assert look_after_deletion(court, error="ObjectDeleted") is None
    assert look_after_deletion(court, error="TimedOut") is not None
    court.history.begin("kill-daemon", [4])
    assert look_after_deletion(court, error="TimedOut") is not None
    court.history.begin("kill-daemon", [1])
    assert look_after_deletion(court, error="TimedOut") is None
    assert "is there again" in str(look_after_deletion(court))
    court.known.last_made = time.monotonic()
    assert look_after_deletion(court) is None


def test_a_deletion_lasts_while_a_node_that_knows_it_lives() -> None:
    court = Court()
    court.history.begin("split", [0, 1])
    delete(court)
    court.history.begin("kill-daemon", [1])
    court.history.begin("kill-daemon", [2])
    assert "is there again" in str(look_after_deletion(court))
    court.history.begin("kill-daemon", [0])
    assert look_after_deletion(court) is None


def test_the_later_of_a_put_and_a_deletion_survives_a_partition() -> None:
    court = Court()
    court.history.begin("split", [0, 1])
    delete(court)
    assert "is there again" in str(look_after_deletion(court))
    court.known.last_made = time.monotonic()
    assert look_after_deletion(court) is None


def test_all_readers_of_a_result_see_its_reported_sources() -> None:
    sources = tuple(Leaf(f"source {bit}", 10, "int32", bit) for bit in range(3))
    court = Court()
    court.known = Known(Thing("thing", Folded("sum", 2, sources), (1,)))
    ids = ("thing.0", "a", "b", "c")
    reduce = Attempt(1, Operation(1, 0.0, "reduce", 1, 0, ids, 60.0), 1, ids, court.began)
    read = Attempt(1, Operation(2, 0.0, "view", 2, 0, ("thing",), 60.0), 2, ("thing.0",), court.began)
    problem = court.judge.problem
    assert "2 sources were to go in" in str(problem(reduce, {"sources": ["a"]}, [court.known]))
    assert problem(reduce, {"sources": ["c", "a"]}, [court.known]) is None
    assert problem(read, {"mask": 0b101}, [court.known]) is None
    assert problem(read, {"mask": 0b110}, [court.known]) is not None
