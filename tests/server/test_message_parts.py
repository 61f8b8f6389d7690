"""Long messages in parts: whole again at the other end, whatever was broken off before."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from roller.server.split_long_messages import MessageJoiner, split_message

_ROW = {"seconds": {"forward": [0.1, 0.2, 0.3]}, "name": "π"}
_VALUE = st.recursive(
    st.none() | st.integers() | st.text(max_size=3),
    lambda inner: st.dictionaries(st.text(max_size=3), inner, max_size=3) | st.lists(inner, max_size=3),
    max_leaves=5,
)
_LONG = st.builds(lambda row, count: [row] * count, _VALUE, st.integers(1900, 2100))
_DATA = st.dictionaries(st.text(max_size=3), _VALUE | _LONG | st.dictionaries(st.text(max_size=3), _LONG, max_size=2))


def _joined(joiner: MessageJoiner, messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    found = [joiner.take(json.loads(json.dumps(one))) for one in messages]
    return [one for one in found if one is not None]


@settings(max_examples=5)
@given(data=_DATA)
def test_messages_are_whole_again(data: Any) -> None:
    message = {"id": 1, "stage": "profile", "data": data}
    assert _joined(MessageJoiner(), [*split_message(message)]) == [message]


def test_no_part_is_long() -> None:
    message = {"data": {"nodes": [_ROW] * 20_000, "few": [1, 2]}}
    parts = [*split_message(message)]
    assert len(parts) > 50
    assert max(len(json.dumps(part)) for part in parts) < 1 << 16
    assert parts[-1] == {"data": {"nodes": [], "few": [1, 2]}, "parts": len(parts) - 1}


def test_what_was_broken_off_is_forgotten() -> None:
    long, short = {"rows": [*range(9000)]}, {"id": 2}
    begun = [*split_message(long)][:2]
    joiner = MessageJoiner()
    assert _joined(joiner, [*begun, *split_message(short)]) == [short]
    assert _joined(joiner, [*begun, *split_message(long)]) == [long]


@pytest.mark.parametrize(
    "messages",
    [
        [{"part": 1, "path": ["rows"], "rows": []}],
        [{"rows": [], "parts": 1}],
        [{"part": 0, "path": ["none"], "rows": []}, {"rows": [], "parts": 1}],
        [{"part": 0, "path": ["id"], "rows": []}, {"id": 1, "parts": 1}],
        [{"part": 0, "path": [["id"]], "rows": []}, {"id": 1, "parts": 1}],
    ],
)
def test_parts_without_a_place_are_refused(messages: list[dict[str, Any]]) -> None:
    with pytest.raises(ValueError, match="a part"):
        _joined(MessageJoiner(), messages)
