"""The literal of a batch: where it is, and its replacement there and back."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from roller.server.batch_literal import BatchLiteral, NoBatchLiteral, find_batch_literal

_TEXT = st.text("abπß🙂\u2028\x0c\x1d é'", max_size=8)
_END = st.sampled_from(["\n", "\r\n", "\r"])


def replaced_in(found: BatchLiteral, source: str, batch: int) -> str:
    return f"{source[: found.start]}{batch}{source[found.end :]}"


@given(before=_TEXT, name=_TEXT, comment=_TEXT, end=_END, blank=st.integers(0, 3), batch=st.integers(1, 10**12))
def test_any_text_around_the_literal_stays_as_it_is(
    before: str, name: str, comment: str, end: str, blank: int, batch: int
) -> None:
    lines = [f"X = {before!r}", f"TEXT = '''{before.replace(chr(39), '')}'''", *[""] * blank]
    head = end.join([*lines, f"def input_provider(name={name!r}, *, batch_size="])
    tail = f"):  # {comment.replace(chr(12), '')}{end}    return batch_size{end}"
    found = find_batch_literal(f"{head}16{tail}")
    assert isinstance(found, BatchLiteral)
    assert (found.start, found.end, found.value) == (len(head), len(head) + 2, 16)
    changed = replaced_in(found, f"{head}16{tail}", batch)
    assert changed == f"{head}{batch}{tail}"
    again = find_batch_literal(changed)
    assert isinstance(again, BatchLiteral)
    assert replaced_in(again, changed, 16) == f"{head}16{tail}"


@pytest.mark.parametrize(
    ("source", "line", "value", "name"),
    [
        ("def input_provider(batch_size=16): ...", 1, 16, ""),
        ("def input_provider(batch_size: int = 16, /): ...", 1, 16, ""),
        ("def input_provider(a, b=2, *, c, batch_size=1_024): ...", 1, 1024, ""),
        ("def input_provider(\n    a=1,\n    batch_size=(\n        0x20\n    ),\n): ...", 4, 32, ""),
        ("async def input_provider(batch_size=4): ...", 1, 4, ""),
        ("def deepview_input_provider(batch_size=4): ...", 1, 4, ""),
        ("SIZE: int = 8\ndef input_provider(batch_size=SIZE): ...", 1, 8, "SIZE"),
        ("A = B = 8\ndef input_provider(batch_size=B): ...", 1, 8, "B"),
        ("def input_provider(batch_size=1): ...\n\ndef input_provider(batch_size=2): ...", 3, 2, ""),
    ],
)
def test_where_it_is(source: str, line: int, value: int, name: str) -> None:
    found = find_batch_literal(source)
    assert isinstance(found, BatchLiteral)
    assert (found.line, found.value, found.name) == (line, value, name)
    replaced = find_batch_literal(replaced_in(found, source, 77))
    assert isinstance(replaced, BatchLiteral)
    assert replaced.value == 77


@pytest.mark.parametrize(
    ("source", "line", "words", "candidates"),
    [
        ("SIZE = 8\ndef other(): ...", 1, "expected a function input_provider", ["SIZE"]),
        ("\ndef input_provider(batch_size): ...", 2, "expected a default of batch_size, got none", []),
        ("N = 3\ndef input_provider(\n    batch_size=N * 2): ...", 3, "got N * 2", ["N"]),
        ("N = 3\nN = 4\ndef input_provider(batch_size=N): ...", 3, "got N", []),
        ("def input_provider(batch_size=0): ...", 1, "got 0", []),
        ("def input_provider(batch_size=-1): ...", 1, "got -1", []),
        ("def input_provider(batch_size=True): ...", 1, "got True", []),
        ("def input_provider(batch_size=16.0): ...", 1, "got 16.0", []),
        ("if True:\n    N = 3\ndef input_provider(batch_size=N): ...", 3, "got N", []),
        ("x = 1\ndef input_provider(:", 2, "expected Python", []),
        ("\0", 1, "expected Python", []),
        ("(" * 10_000, 1, "expected Python", []),
    ],
)
def test_why_there_is_none(source: str, line: int, words: str, candidates: list[str]) -> None:
    found = find_batch_literal(source)
    assert isinstance(found, NoBatchLiteral)
    assert found.line == line
    assert words in found.text
    assert [one.name for one in found.candidates] == candidates


def test_a_byte_order_mark_is_a_character_of_the_source() -> None:
    source = "\ufeffSIZE = 8\ndef input_provider(batch_size=16): ..."
    found = find_batch_literal(source)
    assert isinstance(found, BatchLiteral)
    assert source[found.start : found.end] == "16"
    other = find_batch_literal("\ufeffSIZE = 8\n")
    assert [(one.start, one.end) for one in other.candidates] == [(8, 9)]  # type: ignore[union-attr]
