"""Tests of the lab without hosts and peers: joining results, the page, taking turns, relaunching ranks."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("matplotlib")

from lab import bench_applications, bench_scale, interleave, memory, page, report, results, soak, systems
from lab import scale as operations
from lab.applications import Application, ProgramFailed
from lab.bench_degree import shape
from lab.bench_ray_failure import CRASH, RETURN, cell, told
from lab.network import Network
from lab.plots import (
    applications,
    arrivals,
    collective,
    degree,
    objects,
    roundtrip,
    scale,
    scaling,
    unlimited,
)
from lab.systems import mpi, mpi_launch, peers
from lab.worker import WorkerFailed

MIB = 1 << 20


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the reports."""
    monkeypatch.setattr(report, "RESULTS", tmp_path)
    return tmp_path


class Fake:
    """A system with fixed times that may fail from a run on."""

    cases = frozenset(systems.CASES)

    def __init__(self, name: str, seconds: float, fails_at: int = 1000) -> None:
        self.name, self._seconds, self._left = name, seconds, fails_at

    def run(self, case: str, size: int, name: str, interval: float | None = None) -> float:
        self._left -= 1
        if self._left < 0:
            raise WorkerFailed(f"{self.name} has not answered")
        return self._seconds

    def close(self) -> None: ...


def measured(running: list[systems.System], size: int = MIB, **facts: Any) -> report.Report:
    """A report of one cell with a limit of 2 s."""
    kept = report.Report("collective", "a title", ("hosts", "case", "size", *interleave.COLUMNS))
    cell = interleave.Cell(
        label=f"broadcast {size}",
        columns=("4", "broadcast", report.size_text(size)),
        facts={"case": "broadcast", "size": size, "hosts": 4, "rate_mbit": 500.0, **facts},
        run=lambda system, name: system.run("broadcast", size, name),
        limit=lambda: 2.0,
        target=1.03,
    )
    interleave.measure(cell, running, runs=2, warm_up=1, report=kept)
    return kept


def test_sizes_are_read_as_they_are_written() -> None:
    for size in (1, 1000, 1 << 10, 32 << 10, 3 << 19, 256 << 20, 1 << 30):
        assert report.size_of(report.size_text(size).replace(" ", "")) == size
    with pytest.raises(ValueError, match="no unit"):
        report.size_of("32")


def test_a_failed_peer_is_left_out(folder: Path) -> None:
    running: list[systems.System] = [Fake("hoplite", 2.5), Fake("ray", 5.0, fails_at=2), Fake("dask", 10.0)]
    measured(running)
    assert [system.name for system in running] == ["hoplite", "dask"]
    (case,) = results.joined("collective", folder)
    assert case.summary["systems"]["hoplite"]["ratio"] == 1.25
    assert case.summary["systems"]["dask"]["times_hoplite"] == 4
    assert "ray" not in case.summary["systems"]


class FakeModule:
    """A module with one system, or one that fails to start."""

    def __init__(self, name: str, fails: bool = False) -> None:
        self._name, self._fails = name, fails

    @contextmanager
    def opened(self, hosts: object, store: str) -> Iterator[Sequence[systems.System]]:
        if self._fails:
            raise peers.PeerFailed(f"{self._name} is still starting")
        yield [Fake(self._name, 1.0)]


def test_a_peer_that_fails_to_start_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    modules = {
        "hoplite": FakeModule("hoplite"),
        "ray": FakeModule("ray", fails=True),
        "dask": FakeModule("dask"),
    }
    monkeypatch.setattr(interleave, "hosts_like_all", lambda *_: nullcontext())
    monkeypatch.setattr(systems, "module", modules.__getitem__)
    with interleave.opened(list(modules), 16, Network(500.0), "1GiB") as (_, running):
        assert [system.name for system in running] == ["hoplite", "dask"]


def test_hoplite_is_never_left_out(folder: Path) -> None:
    with pytest.raises(WorkerFailed):
        measured([Fake("hoplite", 2.5, fails_at=1)])


def test_of_each_case_only_the_newest_run_is_kept(folder: Path) -> None:
    for seconds, size in ((9.0, MIB), (2.0, MIB), (4.0, 32 * MIB)):
        measured([Fake("hoplite", seconds)], size).finish()
    found = {
        case.summary["size"]: case.summary["systems"]["hoplite"]
        for case in results.joined("collective", folder)
    }
    assert {size: one["seconds"] for size, one in found.items()} == {MIB: 2.0, 32 * MIB: 4.0}
    assert len(results.documents("collective", folder)) == 2


def test_a_benchmark_that_breaks_off_keeps_its_cases_so_far(folder: Path) -> None:
    measured([Fake("hoplite", 9.0)])
    broken_off = report.Report("collective", "title", ["case"])
    for name in ("one", "two"):
        broken_off.add(["row"], case=name, runs=[], summary={})
    assert len(results.joined("collective", folder)) == 3


def test_the_page_has_blanks_for_missing_results(folder: Path) -> None:
    measured([Fake("hoplite", 2.0), Fake("gloo", 3.0)])
    cases = results.joined("collective", folder)
    text = page.text(page.SECTIONS[0], cases, ["collectives"])
    assert "![Collectives](figures/collectives.svg)" in text
    assert "| hosts | case | size | link | limit | hoplite | x limit | must reach | gloo, x limit |" in text
    assert (
        "| 4 | broadcast | 1 MiB | 500 Mbit/s | 2000.0 ms | 2000.0 ms | 1.000 | <= 1.03 x limit | 1.50 |"
        in text
    )
    without = results.Case(
        cases[0].rows[:1], {**cases[0].summary, "systems": {"hoplite": {}}}, [], cases[0].document
    )
    assert "| 1.000 | <= 1.03 x limit |  |" in page.text(page.SECTIONS[0], [cases[0], without], [])


def test_every_figure_of_several_systems_is_drawn(folder: Path) -> None:
    facts = {"interval_seconds": 0.1, "last_arrival_seconds": 0.3}
    trees = [Fake(name, 2.0) for name in ("hoplite", "chain", "binary", "star")]
    for size in (32 << 10, MIB):
        measured([*trees, Fake("gloo", 3.0)], size, **facts)
    cases = results.joined("collective", folder)
    for case in cases:
        case.summary["systems"]["hoplite"]["chosen"] = "chain"
    drawn = [*collective.draw(cases, folder), *roundtrip.draw(cases, folder), *degree.draw(cases, folder)]
    drawn += [*arrivals.draw(cases[:1], folder), *unlimited.draw(cases, folder)]
    named = ["collectives", "collectives-small", "roundtrip", "degree", "arrivals", "unlimited"]
    assert drawn == named
    for name in drawn:
        assert (folder / f"{name}.svg").stat().st_size > 0


def test_the_figure_of_rates_has_a_row_for_each_number_of_clients(tmp_path: Path) -> None:
    def case(call: str, clients: int) -> results.Case:
        facts = {"call": call, "size": 1 << 10, "clients": clients}
        return results.Case([], {**facts, "per_second": {"hoplite": 2e4, "memcpy": 1e3}}, [], {})

    assert objects.draw([case("put", 1), case("get", 1), case("put", 8)], tmp_path) == ["objects"]
    text = (tmp_path / "objects.svg").read_text()
    for label in ("put 1 KiB", "get 1 KiB", "clients: 1", "clients: 8", "20.00"):
        assert f"<!-- {label}" in text or f"{label} -->" in text, label


class FakeCluster:
    """A cluster whose rounds on Ray alone take four times as long as Hoplite's. One of its programs fails."""

    processes = ()

    def seconds_of(self, application: Application, system: str, workers: int, rounds: int) -> list[float]:
        if system == "ray" and application.program == "impala":
            raise ProgramFailed("a worker was killed")
        return [4.0 if system == "ray" else 1.0] * rounds


class FakeGroup:
    name = "gloo"

    def train(self, size: int, compute: float, rounds: int) -> list[float]:
        return [1.25] * rounds


def test_applications_beside_ray_alone_and_groups(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interleave, "hosts_like_all", lambda *_: nullcontext())
    monkeypatch.setattr(interleave, "goodput", lambda _: 51e6)
    monkeypatch.setattr(bench_applications, "cluster", lambda *_: nullcontext(FakeCluster()))
    monkeypatch.setattr(
        bench_applications, "groups", lambda names, *_: nullcontext([FakeGroup()] if names else [])
    )
    # No program runs, so no memory has to settle.
    monkeypatch.setattr("lab.applications.settle", lambda: None)
    ticks = iter((busy, busy) for busy in range(100))
    monkeypatch.setattr(bench_applications, "busy_and_idle", lambda: next(ticks))
    monkeypatch.setattr(bench_applications, "joined", lambda name: results.joined(name, folder))
    words = ["applications", "--only", "sync-resnet50", "impala", "--runs", "2", "--figures", str(folder)]
    monkeypatch.setattr("sys.argv", words)
    bench_applications.main()
    trained, played = results.joined("applications", folder)
    assert trained.summary["seconds"] == {"hoplite": 1.0, "gloo": 1.25, "ray": 4.0}
    assert {system: len(runs) for system, runs in trained.runs.items()} == {"hoplite": 2, "gloo": 2, "ray": 1}
    assert [row[4:] for row in trained.rows] == [
        ["1.00 s", "0.50", "4.00", "as fast as each"],
        ["1.25 s", "0.62", "3.20", ""],
        ["4.00 s", "2.00", "1.00", ""],
    ]
    assert [row[3:] for row in played.rows] == [["hoplite", "1.00 s", "0.80", "", ">= 1.9"]]
    assert (folder / "applications.svg").stat().st_size > 0


def test_the_figure_of_applications_has_all_measured_systems(tmp_path: Path) -> None:
    def case(name: str, workers: int, **seconds: float) -> results.Case:
        facts = {"name": name, "title": name, "workers": workers, "rate_mbit": 500.0}
        systems_run = {system: [[taken]] for system, taken in seconds.items()}
        return results.Case([], {**facts, "seconds": seconds}, systems_run, {})

    cases = [case("served", 8, hoplite=1.0, ray=4.0), case("served", 16, hoplite=1.0, ray=8.0)]
    assert applications.draw(cases, tmp_path) == ["applications"]
    text = (tmp_path / "applications.svg").read_text()
    assert "8.0 x" in text
    assert "Gloo" not in text
    applications.draw([*cases, case("trained", 8, hoplite=1.0, ray=9.0, gloo=1.25)], tmp_path)
    text = (tmp_path / "applications.svg").read_text()
    for label in ("4.0 x", "8.0 x", "9.0 x", "Gloo", "trained"):
        assert f"<!-- {label} -->" in text, label


def test_the_scaling_figure_has_the_newest_run_only(tmp_path: Path) -> None:
    def case(nodes: int, when: str) -> results.Case:
        facts = {"case": "reduce", "nodes": nodes, "simulated_seconds": 2.0, "limit_seconds": 1.0}
        return results.Case([], {**facts, "lab_seconds": None}, [], {"when": when, "title": f"of {when}"})

    new = case(2, "2026-01-02")
    assert scaling.draw([case(64, "2026-01-01"), new], tmp_path) == ["scaling"]
    both = (tmp_path / "scaling.svg").read_text()
    scaling.draw([new], tmp_path)
    assert (tmp_path / "scaling.svg").read_text() == both


def test_operations_leave_their_cluster_whole(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(operations, "SETTLE_SECONDS", 0.0)
    monkeypatch.setattr(operations, "WATCH_SECONDS", 0.5)
    with operations.cluster(3, "64MiB") as on:
        for operation in (operations.put, operations.get, operations.delete, operations.join):
            assert 0 < operation(on) < 30, operation
        for collective_ in (operations.broadcast, operations.reduce):
            assert 0 < collective_(on, 64 << 10) < 30, collective_
        died = operations.death(on)
        assert 0 < died.usual <= died.worst < 30
        names, rate = operations.fill(on, 300)
        assert (len(names), rate > 0) == (300, True)
        assert operations.get_some(on, names) > 0
        assert operations.clear(on, names) > 0
        on.nodes.wait_members(3)


def test_a_round_trip_is_slow_beside_the_slowest_before_the_death() -> None:
    before = [(at / 10, 0.01) for at in range(100)]
    after = [(10.1, 0.05), (10.5, 0.03), (10.6, 0.01), (10.7, 0.02)]
    found = operations.judged([*before, *after], died=10.0)
    assert (found.normal, found.worst, found.usual) == (0.5, 0.05, 0.01)
    assert operations.judged([*before, (10.1, 0.01)], died=10.0).normal == 0


def soaked(*private: int, tombstones: int = 0) -> list[dict[str, Any]]:
    """Samples of one node, ten seconds apart, with so many new tombstones between two."""
    return [
        {"seconds": 10.0 * at, "nodes": {"0": {"private": one, "arena": 0, "tombstones": tombstones * at}}}
        for at, one in enumerate(private)
    ]


def test_memory_grows_if_it_rises_in_the_second_half() -> None:
    risen = [0, 10 * MIB, *[20 * MIB] * 8]
    assert abs(soak.growth(soaked(*risen), "0")) < 1
    assert soak.growth(soaked(*(at * MIB for at in range(11))), "0") == pytest.approx(5 * MIB)
    assert soak.growth([], "0") == 0
    buried = [at * 10 * soak.TOMBSTONE_BYTES for at in range(11)]
    assert abs(soak.growth(soaked(*buried, tombstones=10), "0")) < 1


def test_a_soak_calls_and_loses_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(soak, "SAMPLE_SECONDS", 0.2)
    monkeypatch.setattr(soak, "UP_SECONDS", 0.5)
    monkeypatch.setattr(soak, "AWAY_SECONDS", 0.2)
    # The initial growth of a cluster is not a leak.
    monkeypatch.setattr(soak, "GROWTH_BYTES_MAX", 1 << 30)
    found = soak.run(4.0)
    assert found.trouble == []
    assert found.calls > 0
    assert found.faults > 0
    assert set(found.growth) == {"0", "1", "2"}


def test_the_figures_of_scale_have_all_measured_sizes(tmp_path: Path) -> None:
    def case(operation: str, against: str, many: int, how: str, **more: Any) -> results.Case:
        facts = {"operation": operation, "against": against, "nodes": many, "objects": many, "how": how}
        return results.Case([], {**facts, "seconds": 0.01, "worst_seconds": None, **more}, [], {})

    turn = {"turn_seconds": 0.002, "worst_seconds": 0.1}
    cases = [case("put", "nodes", 4, "real"), case("death", "nodes", 256, "simulated", **turn)]
    assert scale.draw(cases, tmp_path) == ["scale-nodes"]
    for label in ("put", "death", "longest round trip"):
        assert f"<!-- {label} -->" in (tmp_path / "scale-nodes.svg").read_text(), label
    facts = {"against": "time", "growth_bytes": {"0": 1.0}, "calls": 9, "faults": 2}
    over_time = results.Case([], facts, soaked(MIB, MIB), {})
    drawn = scale.draw([*cases, case("fill", "objects", 1000, "real"), over_time], tmp_path)
    assert drawn == ["scale-nodes", "scale-objects", "scale-soak"]


def test_times_have_a_fitting_unit() -> None:
    told = [bench_scale.time_text(seconds) for seconds in (2.5, 0.0123, 4.5e-5, 0.0)]
    assert told == ["2.5 s", "12.3 ms", "45 us", "0 us"]


def test_hosts_come_an_interval_apart_and_a_broadcasts_sender_is_there_before() -> None:
    assert systems.delays("reduce", 3, 0.5) == [0.0, 0.5, 1.0]
    assert systems.delays("broadcast", 4, 0.5) == [0.0, 0.0, 0.5, 1.0]
    assert systems.delays("allreduce", 3, None) == [0.0, 0.0, 0.0]


def test_edges_of_traffic_give_the_shape_of_a_tree() -> None:
    assert shape({(0, 1), (1, 2), (2, 3)}) == "chain"
    assert shape({(0, 1), (2, 1), (1, 3), (4, 3)}) == "binary"
    assert shape({(0, 1), (2, 1), (3, 1), (4, 1)}) == "star"


def test_the_next_turn_waits_until_memory_holds_still(monkeypatch: pytest.MonkeyPatch) -> None:
    looks = 0

    def free() -> int:
        """Free memory that is given back in twenty readings and then settles."""
        nonlocal looks
        looks += 1
        return (64 << 20) * (looks % 2) if looks < 20 else 0

    monkeypatch.setattr(memory, "_free_bytes", free)
    monkeypatch.setattr(memory, "LOOK_SECONDS", 0.001)
    monkeypatch.setattr(memory, "STILL_SECONDS", 0.05)
    memory.settle()
    assert looks > 20
    monkeypatch.setattr(memory, "_free_bytes", lambda: time.monotonic_ns() << 20)
    monkeypatch.setattr(memory, "SETTLE_SECONDS_MAX", 0.1)
    memory.settle()


class FakeHosts(list[Any]):
    class memory:
        of: Any = staticmethod(lambda host: {})


class FakeRank:
    """A rank that never answers, or gives the wanted answer."""

    def __init__(self, hangs: bool) -> None:
        self._hangs = hangs

    def send(self, call: str, **arguments: Any) -> None: ...

    def receive(self, timeout: float) -> dict[str, Any]:
        if self._hangs:
            raise WorkerFailed("a rank has not answered")
        return {"ended": 0.0}


def test_hanging_ranks_are_launched_again(monkeypatch: pytest.MonkeyPatch) -> None:
    launches: list[str] = []

    @contextmanager
    def launched(library: mpi_launch.Library, hosts: object) -> Iterator[Sequence[FakeRank]]:
        launches.append("begun")
        # The first launch hangs when it is tried, the second in a run.
        ranks = [FakeRank(hangs=len(launches) == 1) for _ in range(3)]
        try:
            yield ranks
        finally:
            launches.append("ended")

    monkeypatch.setattr(mpi, "launched", launched)
    monkeypatch.setattr(mpi.Ranks, "_require_traffic", lambda *_: None)
    monkeypatch.setattr(mpi.Ranks, "_check", lambda *_: None)
    library = mpi_launch.Library("a library", lambda hosts: [], "", {})
    hosts: Any = FakeHosts([type("Host", (), {"link_bytes": lambda self: {}})()])
    with mpi.Ranks(library, hosts) as ranks:
        assert launches == ["begun", "ended", "begun"]
        for rank in ranks._ranks:
            rank._hangs = True  # type: ignore[attr-defined]
        ranks.run("broadcast", 1024, {})
        assert launches == ["begun", "ended", "begun", "ended", "begun"]
    assert launches[-1] == "ended"


def test_the_summary_of_rounds_with_a_failed_host() -> None:
    away = {CRASH: 5.0, CRASH + 5: 1.0, CRASH + 6: 4.0, CRASH + 10: 1.0, CRASH + 11: 1.0}
    seconds = {CRASH - 2: 2.0, **away, RETURN: 2.0, RETURN + 2: 4.0, RETURN + 6: 2.0}
    back = RETURN + 2
    rounds = [
        {"began": began, "seconds": took, "took_part": ["other", *(["victim"] if began >= back else [])]}
        for began, took in seconds.items()
    ]
    assert told(rounds, "victim") == {
        "before": 2.0,
        "slowest_away": 5.0,
        "normal_after": 5.0,
        "away": 1.0,
        "slowest_back": 4.0,
        "part_after": 6.0,
        "end": 2.0,
    }
    # A host may fail just before the end of a round, which is then as fast as usual.
    later = {CRASH - 1: 2.0, CRASH + 1: 5.0, CRASH + 6: 1.0, RETURN: 2.0}
    rounds_later = [{"began": CRASH - 5, "seconds": 2.0, "took_part": []}]
    rounds_later += [{"began": at, "seconds": took, "took_part": []} for at, took in later.items()]
    assert told(rounds_later, "victim")["normal_after"] == 6.0
    never = told(rounds[:7], "victim")
    assert never["part_after"] is None
    assert never["end"] is None
    assert cell([2.0]) == "2.00 s"
    assert cell([3.0, None, 1.0]) == "3.00 s (1.00 s-never)"
    assert cell([None, 1.0]) == "never (1.00 s-never)"
