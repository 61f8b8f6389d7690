"""The batch of an entry file as clients are told of it."""

from __future__ import annotations

from typing import Any

from roller.server.batch_literal import BatchLiteral, find_batch_literal
from roller.server.project import Project, ProjectError


class EntryBatch:
    """Says where an entry file has its batch; a text is parsed once.

    Parameters
    ----------
    project
        The project of the entry file.
    """

    def __init__(self, project: Project) -> None:
        self._project = project
        self._text: str | None = None
        self._data: dict[str, Any] = {}

    def to_data(self) -> dict[str, Any]:
        """Return where the entry file has its batch, or why it has none and what may be meant."""
        try:
            text = self._project.read(self._project.entry_name).text
        except ProjectError as error:
            return {"error": str(error), "candidates": []}
        if text != self._text:
            self._text, self._data = text, _data_of(text)
        return dict(self._data)


def _data_of(text: str) -> dict[str, Any]:
    found = find_batch_literal(text)
    if isinstance(found, BatchLiteral):
        return _literal_data(found, text)
    candidates = [_literal_data(one, text) for one in found.candidates]
    return {"error": found.text, "line": found.line, "candidates": candidates}


def _literal_data(literal: BatchLiteral, text: str) -> dict[str, Any]:
    """Return a literal with its place in units of UTF-16, as JavaScript counts."""
    start = len(text[: literal.start].encode("utf-16-le")) // 2
    span = (start, start + literal.end - literal.start)
    return {"value": literal.value, "line": literal.line, "span": span, "name": literal.name}
