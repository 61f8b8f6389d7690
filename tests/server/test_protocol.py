"""Messages of the page: every one that is wrong is refused in words."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from roller.server.check_client_messages import ProtocolError, options_of_message, parse_message
from roller.server.profile_request import ProfileRequest, StepOptions
from tests.offenders import every

_OPTIONS: dict[str, Any] = {
    "devices": [["a100", 1]], "batch": None, "amp": "fp32", "checkpoint": False, "changes": []
}  # fmt: skip
_RIGHT: tuple[dict[str, Any], ...] = (
    {"type": "hello", "version": 1}, {"type": "profile"}, {"type": "live", "on": False},
    {"type": "options", "options": _OPTIONS}, {"type": "options", "options": {**_OPTIONS, "batch": 10**9}},
    {"type": "against", "what": "head"}, {"type": "open", "file": "a.py"},
    {"type": "save", "file": "a.py", "text": "", "base": "x"},
)  # fmt: skip
_WRONG: tuple[Any, ...] = (
    "", "{", "[]", "null", "7", '"hello"', "{}", '{"type": 7}', '{"type": null}', '{"type": ["hello"]}',
    b"\xff\xfe", "[" * 100_000, '{"type": "hello", "version": 1' , '{"type": "nope"}', '{"type": ""}',
    *(json.dumps({k: v for k, v in right.items() if k != missing}) for right in _RIGHT for missing in right),
    *(
        json.dumps(wrong)
        for wrong in (
            {"type": "hello", "version": "1"}, {"type": "hello", "version": True}, {"type": "hello", "version": 1.0},
            {"type": "live", "on": 1}, {"type": "live", "on": "yes"}, {"type": "against", "what": "HEAD~1"},
            {"type": "against", "what": ["last"]}, {"type": "open", "file": 7}, {"type": "open", "file": None},
            {"type": "save", "file": "a.py", "text": 1, "base": "x"}, {"type": "options", "options": []},
            *(
                {"type": "options", "options": {**_OPTIONS, **one}}
                for one in (
                    {"batch": 0}, {"batch": -1}, {"batch": 1.5}, {"batch": True}, {"batch": "8"}, {"batch": 10**9 + 1},
                    {"amp": "fp8"}, {"amp": None}, {"amp": []}, {"amp": {}}, {"checkpoint": 1}, {"checkpoint": None},
                    {"devices": []}, {"devices": "a100"}, {"devices": [["a100"]]}, {"devices": [["a100", 0]]},
                    {"devices": [["a100", True]]}, {"devices": [[7, 1]]}, {"devices": [["a100", 1]] * 33},
                    {"devices": [["a100", 5000]]}, {"changes": "x"}, {"changes": [1]}, {"changes": ["x"] * 33},
                    {"more": 1},
                )
            ),
            {"type": "options", "options": {k: v for k, v in _OPTIONS.items() if k != "amp"}},
        )
    ),
)  # fmt: skip


@every("message", _RIGHT)
def test_what_is_right_is_taken(message: dict[str, Any]) -> None:
    assert parse_message(json.dumps({**message, "id": 3, "more": 1})) == {**message, "id": 3}


@every("data", tuple(_WRONG))
def test_what_is_wrong_is_refused(data: str | bytes) -> None:
    with pytest.raises(ProtocolError, match="expected") as refused:
        parse_message(data)
    assert len(str(refused.value)) < 500


_ANY = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda part: st.lists(part, max_size=3) | st.dictionaries(st.sampled_from([*_OPTIONS, "x"]), part, max_size=5),
    max_leaves=8,
)


@given(kind=st.sampled_from([one["type"] for one in _RIGHT]), values=st.lists(_ANY, min_size=5, max_size=5))
def test_no_message_raises_anything_else(kind: str, values: list[Any]) -> None:
    names = ("version", "on", "options", "what", "file")
    try:
        found = parse_message(json.dumps({"type": kind, **dict(zip(names, values, strict=True))}))
    except ProtocolError:
        return
    if kind == "options":
        StepOptions.from_data(found["options"])


@every("name", ("/etc/passwd", "../a100", "a100.yaml", "A100", "", "a10o"))
def test_only_names_of_devices_are_taken(name: str) -> None:
    with pytest.raises(ProtocolError, match="expected a name"):
        options_of_message({**_OPTIONS, "devices": [[name, 1]]}, {"a100", "v100"})


def test_options_and_requests_survive_json() -> None:
    options = StepOptions((("a100", 1), ("v100", 4)), 8, "bf16", True, ("FusedOptimizer()",))
    assert StepOptions.from_data(json.loads(json.dumps(options.to_data()))) == options
    request = ProfileRequest(3, "/a/b.py", "/a", options, ("profile",), {"x": 1}, {"b.py:1": "b.py:2"}, ("--epochs",))
    again = ProfileRequest.from_data(json.loads(json.dumps(request.to_data())))
    assert again.to_data() == json.loads(json.dumps(request.to_data())) | {
        "options": options.to_data(), "wanted": ["profile"], "arguments": ["--epochs"]
    }  # fmt: skip
