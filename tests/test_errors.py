"""Each kind of error has a class of its own, which also derives from Python's fitting class."""

import hoplite
import pytest
from hoplite import errors
from hoplite.ids import ObjectId
from hoplite.naming import with_names

KINDS = [getattr(errors, kind) for kind in errors.__all__]


@pytest.mark.parametrize("kind", KINDS)
def test_every_error_is_a_hoplite_error_with_its_message(kind: type[hoplite.HopliteError]) -> None:
    assert issubclass(kind, hoplite.HopliteError)
    assert getattr(hoplite, kind.__name__) is kind
    error = kind("what happened")
    error.args = ("what happened to 'x'",)
    assert str(error) == "what happened to 'x'"


@pytest.mark.parametrize(
    ("kind", "builtin"),
    [
        (hoplite.TimedOut, TimeoutError),
        (hoplite.StoreFull, MemoryError),
        (hoplite.Mismatch, ValueError),
        (hoplite.BadArgument, ValueError),
        (hoplite.NodeUnreachable, ConnectionError),
    ],
)
def test_errors_are_caught_as_pythons_own(kind: type[Exception], builtin: type[Exception]) -> None:
    assert issubclass(kind, builtin)


def test_retryable_errors() -> None:
    retryable = {kind for kind in KINDS if kind.is_retryable}
    assert retryable == {
        hoplite.TimedOut,
        hoplite.ObjectLost,
        hoplite.LimitReached,
        hoplite.StoreFull,
        hoplite.NodeUnreachable,
    }


def test_messages_call_objects_by_their_names() -> None:
    a, b = ObjectId.from_name("weights 7"), ObjectId.random()
    message = with_names(f"get {a.hex()}: no answer; {a.hex()[:8]} and {b.hex()}", [a, b])
    short = a.hex()[:8]
    assert message == f"get 'weights 7' ({short}): no answer; 'weights 7' ({short}) and {b.hex()}"


def test_a_timeout_names_object_node_and_time(client: hoplite.Client) -> None:
    with pytest.raises(hoplite.TimedOut) as caught:
        client.get("never put", timeout=0.05)
    assert "'never put'" in str(caught.value)
    assert client.node in str(caught.value)
