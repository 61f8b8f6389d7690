"""Positions in a document in the client's units, and lines that edits have moved."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from lsprotocol import types

from roller.insight.step_profile.earlier_revision_and_moved_lines import moved_line_numbers, split_source_lines

Encoding = types.PositionEncodingKind | str


def length_in_units(text: str, encoding: Encoding) -> int:
    """Return the length of a text in the client's units: UTF-8 bytes, UTF-16 code units, or characters.

    Examples
    --------
    >>> [length_in_units("aπ🙂", encoding) for encoding in ("utf-8", "utf-16", "utf-32")]
    [7, 4, 3]
    """
    if encoding == types.PositionEncodingKind.Utf8:
        return len(text.encode("utf-8", "surrogatepass"))
    if encoding == types.PositionEncodingKind.Utf32:
        return len(text)
    return len(text.encode("utf-16-le", "surrogatepass")) // 2


def position_at(text: str, offset: int, encoding: Encoding) -> types.Position:
    r"""Return the position of the character at ``offset``, in the client's units.

    Examples
    --------
    >>> position_at("a\r\n🙂b", 4, "utf-16")
    1:2
    """
    before = split_source_lines(text[:offset])
    return types.Position(len(before) - 1, length_in_units(before[-1], encoding))


def range_of_line(lines: list[str], line: int, encoding: Encoding) -> types.Range:
    """Return the range of a line (numbered from 1) without its indentation."""
    text = lines[line - 1] if 0 < line <= len(lines) else ""
    indent = len(text) - len(text.lstrip())
    return types.Range(
        types.Position(max(0, line - 1), length_in_units(text[:indent], encoding)),
        types.Position(max(0, line - 1), length_in_units(text, encoding)),
    )


@dataclass(frozen=True)
class LineInDocument:
    """Current line number (from 1) of a profiled line, and whether the line's text has changed."""

    line: int
    is_changed: bool = False


def map_lines(old: str, new: str) -> Mapping[int, LineInDocument]:
    r"""Map line numbers of an earlier text to line numbers of the current text; deleted lines are missing.

    Examples
    --------
    >>> map_lines("a\nb\nc", "a\n\nB\nc\nd")[3]
    LineInDocument(line=4, is_changed=False)
    """
    lines = split_source_lines(old), split_source_lines(new)
    if lines[0] == lines[1]:
        return {n: LineInDocument(n) for n in range(1, len(lines[0]) + 1)}
    return {
        before: LineInDocument(after, lines[0][before - 1] != lines[1][after - 1])
        for before, after in moved_line_numbers(*lines)
    }
