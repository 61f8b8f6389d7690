"""The folder of a user's project, which the files of stacks are relative to."""

from __future__ import annotations

from pathlib import Path

#: A folder that holds one of these is a project.
_PROJECT_FILES = ("pyproject.toml", "setup.py", "setup.cfg", ".git")


def project_of(path: Path) -> Path:
    """Return the nearest folder of a project that contains a folder; the folder itself where there is none."""
    folder = path.resolve()
    for one in (folder, *folder.parents):
        if any((one / name).exists() for name in _PROJECT_FILES):
            return one
    return folder


def path_in_project(path: Path) -> str:
    """Return the path of a file as stacks name it: relative to its project."""
    whole = path.resolve()
    return whole.relative_to(project_of(whole.parent)).as_posix()
