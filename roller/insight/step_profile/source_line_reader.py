"""Reads the source text of the lines named in a profile."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path

from roller.insight.trace.project_folder import find_project_folder
from roller_runtime.core.files import read_text


def source_line_reader(file: Path) -> Callable[[str], str]:
    """Return a function that maps ``"file:line"`` to the text of that line, or ``""`` if there is none."""
    # names come from profiles, which are untrusted: only Python files of the project are read
    project = find_project_folder(file.resolve().parent)

    @cache
    def read_lines(name: str) -> list[str]:
        path = (project / name).resolve()
        if path.suffix != ".py" or not path.is_relative_to(project) or not path.is_file():
            return []
        try:
            return read_text(path).splitlines()
        except (OSError, ValueError):
            return []

    def read_line(place: str) -> str:
        name, _, number = place.rpartition(":")
        lines, at = read_lines(name), int(number)
        return lines[at - 1].strip() if 0 < at <= len(lines) else ""

    return read_line
