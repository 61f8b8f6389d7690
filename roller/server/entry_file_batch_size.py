"""Batch size of an entry file, as data for clients."""

from __future__ import annotations

from typing import Any

from roller.server.batch_literal import batch_literal_data
from roller.server.project_files import Project, ProjectError


class EntryBatchSize:
    """Locates the batch size in an entry file; each text is parsed only once."""

    def __init__(self, project: Project) -> None:
        self._project = project
        self._text: str | None = None
        self._data: dict[str, Any] = {}

    def to_data(self) -> dict[str, Any]:
        """Return the literal batch size, or the reason why there is none with the candidates."""
        try:
            text = self._project.read(self._project.entry_name).text
        except ProjectError as error:
            return {"error": str(error), "line": 1, "candidates": []}
        if text != self._text:
            self._text, self._data = text, batch_literal_data(text)
        return dict(self._data)
