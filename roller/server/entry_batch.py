"""The batch of an entry file as clients are told of it."""

from __future__ import annotations

from typing import Any

from roller.server.batch_literal import batch_data
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
            return {"error": str(error), "line": 1, "candidates": []}
        if text != self._text:
            self._text, self._data = text, batch_data(text)
        return dict(self._data)
