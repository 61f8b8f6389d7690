"""The folder of a user's project, to which file paths in stacks are relative."""

from __future__ import annotations

from pathlib import Path

#: A folder that contains one of these is a project.
_PROJECT_FILES = ("pyproject.toml", "setup.py", "setup.cfg", ".git")


def find_project_folder(path: Path) -> Path:
    """Return the nearest project folder that is or contains the given folder; the given folder if there is none."""
    folder = path.resolve()
    for one in (folder, *folder.parents):
        if any((one / name).exists() for name in _PROJECT_FILES):
            return one
    return folder


def import_root_and_module(path: Path, least: int = 0) -> tuple[Path, str]:
    """Return the folder from which a file is imported, and its module name with at least ``least`` packages."""
    folder, names = path.absolute().parent, [path.stem]
    while (folder / "__init__.py").is_file() or len(names) <= least:
        names.insert(0, folder.name)
        folder = folder.parent
    return folder, ".".join(names)


def path_in_project(path: Path) -> str:
    """Return the path of a file relative to its project, as stacks name it."""
    whole = path.resolve()
    return whole.relative_to(find_project_folder(whole.parent)).as_posix()
