"""Puts the names of objects into messages, as nodes know objects only by their ids of 16 bytes."""

from __future__ import annotations

import re
from collections.abc import Iterable

from hoplite import _hoplite
from hoplite.errors import HopliteError
from hoplite.ids import ObjectId, ObjectIdLike

SHORT_HEX_DIGITS = 2 * _hoplite.SHORT_ID_BYTES
"""Hexadecimal digits of an abbreviated id in a node's messages."""

_HEX = re.compile(rf"\b(?:[0-9a-f]{{{2 * ObjectId.LENGTH}}}|[0-9a-f]{{{SHORT_HEX_DIGITS}}})\b")


def name_objects(error: HopliteError, ids: Iterable[ObjectIdLike]) -> None:
    """Add the names of `ids` to the message of `error`, and to its `object_id`."""
    known = [ObjectId.of(id) for id in ids]
    error.args = (with_names(str(error), known),)
    error.object_id = next((id for id in known if id == error.object_id), error.object_id)


def with_names(message: str, ids: Iterable[ObjectId]) -> str:
    """`message`, with each named id of `ids` replaced by its name and its abbreviated hexadecimal form."""
    names = {id.hex(): id.name for id in ids if id.name is not None}
    short = {hex[:SHORT_HEX_DIGITS]: name for hex, name in names.items()}

    def name(match: re.Match[str]) -> str:
        found = names.get(match[0]) or short.get(match[0])
        return match[0] if found is None else f"{found!r} ({match[0][:SHORT_HEX_DIGITS]})"

    return _HEX.sub(name, message)
