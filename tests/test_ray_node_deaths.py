"""A process finds the values that died with a node and that it can rebuild."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from ray_cluster import IGNORED

ray = pytest.importorskip("ray")
node_deaths = pytest.importorskip("hoplite.ray.recovery.node_deaths")

from hoplite.errors import NodeUnreachable, ObjectDeleted, TimedOut  # noqa: E402
from hoplite.ids import ObjectId  # noqa: E402
from hoplite.ray.nodes.guards import id_of_hex  # noqa: E402
from hoplite.ray.recovery.loss_reports import Loss  # noqa: E402
from hoplite.ray.recovery.origins import Origin  # noqa: E402

pytestmark = IGNORED

MANY = 1000


class Node:
    """A stand-in for this process's node: its members and the holders of objects."""

    def __init__(self) -> None:
        self.members = ("here", "there")
        self.found: dict[ObjectId, bool | Exception] = {}
        self.asked = 0
        self.seconds = 0.0
        """The time of the process's clock."""
        self.status_takes = 0.0
        """Seconds that a status takes. They grow with the number of members."""
        self.status_asked = 0
        self.owner = "here"
        """The node that has all copies."""

    def status(self, timeout: float) -> Any:
        self.status_asked += 1
        self.seconds += self.status_takes
        return SimpleNamespace(members=self.members)

    def locations(self, id: ObjectId, timeout: float) -> Any:
        self.asked += 1
        found = self.found[id]
        if isinstance(found, Exception):
            raise found
        return SimpleNamespace(copies=[SimpleNamespace(complete=found, node=self.owner)])


@pytest.fixture
def node(monkeypatch: pytest.MonkeyPatch) -> Node:
    node = Node()
    way = SimpleNamespace(client=node)
    monkeypatch.setattr(node_deaths.connection, "call", lambda use, *_: use(way))
    monkeypatch.setattr(node_deaths, "time", SimpleNamespace(monotonic=lambda: node.seconds))
    return node


def values(monkeypatch: pytest.MonkeyPatch, *names: str) -> list[Loss]:
    """The values that this process's tasks have made."""
    found = [Loss(Origin("task", part, "|u1(1,)"), name) for part, name in enumerate(names)]
    monkeypatch.setattr(node_deaths.lineage, "known", lambda task: task)
    monkeypatch.setattr(node_deaths.lineage, "needed_for", set)
    monkeypatch.setattr(node_deaths, "_values", lambda: iter(found))
    return found


def look(looks: Any, most: int = MANY) -> list[Loss]:
    found: list[Loss] = looks.lost_values(most, [])
    return found


def all_told(node: Node, looks: Any, most: int = MANY) -> list[Loss]:
    """The values that several looks report."""
    told = []
    for _ in range(5):
        told += look(looks, most)
        node.seconds += node_deaths.RETRY_PAUSE
    return told


def test_a_value_lost_with_a_node_is_reported_once(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    gone, there, deleted = values(monkeypatch, "gone", "there", "deleted")
    node.found = {
        id_of_hex(gone.guard): False,
        id_of_hex(there.guard): True,
        id_of_hex(deleted.guard): ObjectDeleted("it was"),
    }
    looks = node_deaths.NodeDeaths()
    assert all_told(node, looks) == []
    assert node.asked == 0, "nobody has died"
    node.members = ("here",)
    assert look(looks) == [], "those who have it may be telling each other"
    assert all_told(node, looks) == [gone]


def test_a_value_found_again_is_not_lost(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    (value,) = values(monkeypatch, "value")
    looks = node_deaths.NodeDeaths()
    look(looks)
    node.members, node.found = ("here",), {id_of_hex(value.guard): False}
    look(looks)
    node.found = {id_of_hex(value.guard): True}
    assert all_told(node, looks) == []


def test_a_needed_value_is_reported_sooner(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    other, value = values(monkeypatch, "other", "value")
    wanted = value._replace(origin=value.origin._replace(task="wanted"))
    monkeypatch.setattr(node_deaths, "_values", lambda: iter([other, wanted]))
    monkeypatch.setattr(node_deaths.lineage, "needed_for", lambda tasks: {*tasks, "wanted"})
    looks = node_deaths.NodeDeaths()
    look(looks)
    node.members, node.found = ("here",), {id_of_hex(other.guard): False, id_of_hex(wanted.guard): False}
    look(looks)
    assert look(looks) == []
    node.seconds += node_deaths.WANTED_PAUSE
    assert look(looks) == [wanted]
    node.seconds += node_deaths.PAUSE
    assert look(looks) == [other]


def test_a_death_counts_as_recent_for_some_seconds(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    values(monkeypatch)
    looks = node_deaths.NodeDeaths()
    assert not looks.node_died_recently()
    node.members = ("here",)
    assert looks.node_died_recently()
    node.seconds += node_deaths.RECENT_SECONDS
    assert not looks.node_died_recently()


def test_a_timed_out_lookup_is_repeated(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    (value,) = values(monkeypatch, "value")
    looks = node_deaths.NodeDeaths()
    look(looks)
    node.members, node.found = ("here",), {id_of_hex(value.guard): TimedOut("not yet")}
    assert all_told(node, looks) == []
    node.found = {id_of_hex(value.guard): False}
    assert all_told(node, looks) == [value]


def test_a_timed_out_lookup_delays_no_other(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second, third = values(monkeypatch, "first", "second", "third")
    looks = node_deaths.NodeDeaths()
    look(looks)
    node.members, node.found = ("here",), {id_of_hex(loss.guard): False for loss in (first, second, third)}
    look(looks)
    node.seconds += node_deaths.RETRY_PAUSE
    node.found[id_of_hex(second.guard)] = TimedOut("not yet")
    assert look(looks) == [first, third]
    node.found[id_of_hex(second.guard)] = False
    assert all_told(node, looks) == [second]


def test_a_copy_on_a_dead_node_does_not_count(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    (value,) = values(monkeypatch, "value")
    looks = node_deaths.NodeDeaths()
    look(looks)
    node.members, node.owner, node.found = ("here",), "there", {id_of_hex(value.guard): True}
    assert all_told(node, looks) == [value]


def test_a_failed_look_remembers_the_death(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    looks = node_deaths.NodeDeaths()
    look(looks)
    node.members = ("here",)

    def fails() -> None:
        raise ValueError("of Ray's")

    monkeypatch.setattr(node_deaths, "_values", fails)
    with pytest.raises(ValueError, match="of Ray's"):
        look(looks)
    (value,) = values(monkeypatch, "value")
    node.found = {id_of_hex(value.guard): False}
    assert all_told(node, looks) == [value]


def test_the_number_of_reported_values_is_limited(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    lost = values(monkeypatch, *map(str, range(10)))
    looks = node_deaths.NodeDeaths()
    look(looks)
    node.members, node.found = ("here",), {id_of_hex(loss.guard): False for loss in lost}
    assert all_told(node, looks, most=0) == []
    assert look(looks, 3) == lost[:3]
    assert all_told(node, looks) == lost[3:]


def test_the_values_of_a_restarted_own_node_are_lost(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    (value,) = values(monkeypatch, "value")
    looks = node_deaths.NodeDeaths()
    look(looks)
    node.found = {id_of_hex(value.guard): False}
    another = SimpleNamespace(client=node)

    def unreachable(use: Callable[[Any], Any], *_: object) -> Any:
        raise NodeUnreachable("it is being started anew")

    monkeypatch.setattr(node_deaths.connection, "call", unreachable)
    assert look(looks) == []
    monkeypatch.setattr(node_deaths.connection, "call", lambda use, *_: use(another))
    assert all_told(node, looks) == [value]


class Unknown:
    """A class that must not be unpickled."""

    made = 0

    def __init__(self, value: object) -> None:
        self.value = value

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self).make, (self.value,)

    @classmethod
    def make(cls, value: object) -> Unknown:
        cls.made += 1
        return cls(value)


def test_handles_are_found_without_unpickling_values(monkeypatch: pytest.MonkeyPatch) -> None:
    from hoplite.ray.values import handle_unpickler
    from hoplite.ray.values.forms import Form
    from hoplite.ray.values.handles import Handle
    from hoplite.ray.values.packing import unpacked
    from ray._private.serialization import _object_ref_deserializer
    from ray.cloudpickle import dumps

    class Reference:
        """A reference as Ray pickles it."""

        def __init__(self, byte: int) -> None:
            self.binary = bytes([byte]) * 28

        def __reduce__(self) -> tuple[Any, ...]:
            return _object_ref_deserializer, (self.binary, "", b"", b"", None)

    class Packed:
        def __init__(self, stream: bytes) -> None:
            self.stream = stream

        def __reduce__(self) -> tuple[Any, ...]:
            return unpacked, (self.stream,)

    @dataclasses.dataclass
    class Record:
        """A class that is pickled with its code, as classes of scripts are."""

        values: list[Handle]

    origin = Origin("task", 3, "|u1(9,)")
    value = {
        "deep": [Unknown({Handle(Reference(1), Form.TENSOR, origin): 1})],
        "packed": Packed(dumps([Handle(Reference(2), Form.ARRAY, None)])),
        "by value": Record([Handle(Reference(3), Form.ARRAY, None)]),
        "small": np.zeros(3),
        "broken": Packed(b"no pickle"),
    }
    # Ray's own functions need buffers that only Ray makes.
    monkeypatch.setattr(handle_unpickler, "split_buffer", lambda data: (b"", data))
    monkeypatch.setattr(handle_unpickler, "unpack_pickle5_buffers", lambda data: (data, []))
    data = dumps(value)
    assert handle_unpickler.handles_in(data) == [("01" * 28, origin), ("02" * 28, None), ("03" * 28, None)]
    assert Unknown.made == 0


def test_a_slow_status_is_requested_less_often(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    values(monkeypatch)
    node.status_takes = 0.002
    looks = node_deaths.NodeDeaths()
    for _ in range(8):
        looks.node_died_recently()
        node.seconds += 0.25
    assert node.status_asked == 1
    node.seconds += 0.25
    looks.node_died_recently()
    assert node.status_asked == 2
