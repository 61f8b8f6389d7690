"""Finds lines of a project in messages and fault handler output."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from roller.errors import shown
from roller.server.project_files import Project

_PLACE = re.compile(r"(?:File \"([^\"\n]+)\", line (\d+)|([^\s:\"']+\.py):(\d+))")


def first_project_line_in(text: str, project: Project) -> list[dict[str, Any]]:
    """Return the first project line that a message names, as a list of at most one problem."""
    found = []
    for match in _PLACE.finditer(text):
        path, line = match[1] or match[3], match[2] or match[4]
        name = project.name_of(project.folder / path)
        if name is not None:
            found.append({"file": name, "line": int(line), "text": text})
    return found[:1]


def innermost_project_line(lines: Sequence[str], project: Project) -> str:
    """Return the innermost project line in a fault handler's output as ``"file:line"``; ``""`` if there is none."""
    for line in lines:
        for found in first_project_line_in(line, project):
            return f"{shown(found['file'])[1:-1]}:{found['line']}"
    return ""
