"""Source text of the lines named in a profile."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path

from roller.core.files import read_text
from roller.insight.trace.project_folder import project_of


def line_texts(file: Path) -> Callable[[str], str]:
    """Return a function that maps ``"file:line"`` to the text of that line, or ``""`` if there is none."""
    # names come from profiles, which are untrusted: only Python files of the project are read
    project = project_of(file.resolve().parent)

    @cache
    def lines_of(name: str) -> list[str]:
        path = (project / name).resolve()
        if path.suffix != ".py" or not path.is_relative_to(project) or not path.is_file():
            return []
        try:
            return read_text(path).splitlines()
        except (OSError, ValueError):
            return []

    def text_of(place: str) -> str:
        name, _, number = place.rpartition(":")
        lines, at = lines_of(name), int(number)
        return lines[at - 1].strip() if 0 < at <= len(lines) else ""

    return text_of
