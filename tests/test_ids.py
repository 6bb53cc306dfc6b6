"""ObjectId: equality, order, hex, pickling and its errors."""

import pickle

import hoplite
import pytest
from hoplite import ObjectId


def test_a_name_always_makes_the_same_id() -> None:
    # BLAKE3 of "gradient" by the reference implementation. Clients in other languages must agree.
    assert ObjectId.from_name("") == ObjectId.from_hex("af1349b9f5f9a1a6a0404dea36dcc949")
    assert ObjectId.from_name("a") == ObjectId.from_name("a")
    assert ObjectId.from_name("a") != ObjectId.from_name("b")


def test_random_ids_differ() -> None:
    assert len({ObjectId.random() for _ in range(1000)}) == 1000


def test_equality_and_hash_look_at_the_bytes_alone() -> None:
    named = ObjectId.from_name("x")
    bare = ObjectId(bytes(named))
    assert named == bare
    assert hash(named) == hash(bare)
    assert {named: 1}[bare] == 1
    assert named != "x"


def test_hex_there_and_back() -> None:
    id = ObjectId.random()
    assert len(id.hex()) == 32
    assert ObjectId.from_hex(id.hex()) == id


def test_ids_are_ordered_by_their_bytes() -> None:
    ids = sorted(ObjectId.random() for _ in range(10))
    assert [bytes(id) for id in ids] == sorted(bytes(id) for id in ids)


def test_pickling_keeps_the_name() -> None:
    id = pickle.loads(pickle.dumps(ObjectId.from_name("weights 7")))
    assert id == ObjectId.from_name("weights 7")
    assert id.name == "weights 7"


def test_repr_says_how_to_make_it() -> None:
    for id in (ObjectId.from_name("a'b"), ObjectId.random()):
        assert eval(repr(id), {"ObjectId": ObjectId}) == id
    assert str(ObjectId.from_name("a")) == "a"


@pytest.mark.parametrize("raw", [b"", b"short", bytes(17), "0" * 16, None])
def test_only_16_bytes_are_an_id(raw: object) -> None:
    with pytest.raises(ValueError, match="16 bytes"):
        ObjectId(raw)  # type: ignore[arg-type]


def test_only_ids_and_names_name_objects(client: hoplite.Client) -> None:
    with pytest.raises(TypeError, match="int"):
        client.get(7)  # type: ignore[arg-type]
