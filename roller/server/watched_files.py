"""States and texts of the files that a profile depends on."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from typing import TypeVar

from roller.server.project_files import Project, ProjectError, file_mtime_size_inode

_State = tuple[int, int, int]
_T = TypeVar("_T")
#: State that differs from that of every existing file.
_CHANGED: _State = (0, -1, 0)
#: Number of files from which on checks run in a different thread.
_MANY = 64


class WatchedFiles:
    """The entry file and the project files that its profiles have loaded."""

    def __init__(self, project: Project) -> None:
        self._project = project
        self._states: dict[str, _State] = {str(project.entry): file_mtime_size_inode(project.entry)}
        #: Path -> project-relative name of every loaded file; ``None`` outside the project.
        self._names: dict[str, str | None] = {str(project.entry): project.entry_name}

    def changed(self) -> bool:
        """Return whether files have changed since the last call."""
        now = {path: file_mtime_size_inode(path) for path in self._states}
        is_changed, self._states = now != self._states, now
        return is_changed

    async def probably_changed(self) -> bool:
        """Return whether :meth:`changed` would return true; check large numbers of files in a different thread."""
        states = self._states
        if len(states) < _MANY:
            return _any_file_changed(states)
        return await asyncio.get_running_loop().run_in_executor(None, _any_file_changed, dict(states))

    async def add(self, files: Sequence[str], since_ns: int) -> None:
        """Watch files that a profile has loaded; a file modified after ``since_ns`` counts as changed."""
        new = [path for path in files if isinstance(path, str) and path not in self._names]
        if not new:
            return
        names = await _run_off_loop_if_many(len(new), lambda: {path: self._project.name_of(path) for path in new})
        for path, name in names.items():
            self._names[path] = name
            if name is not None:
                state = file_mtime_size_inode(path)
                self._states[path] = state if state[0] < since_ns else _CHANGED

    async def texts(self) -> dict[str, str]:
        """Return the texts of the project's loaded files by name, without those that cannot be read."""
        names = [name for name in self._names.values() if name is not None]
        return await _run_off_loop_if_many(len(names), lambda: _read_texts(self._project, names))


def _any_file_changed(states: dict[str, _State]) -> bool:
    return any(file_mtime_size_inode(path) != state for path, state in states.items())


def _read_texts(project: Project, names: Sequence[str]) -> dict[str, str]:
    found = {}
    for name in names:
        with contextlib.suppress(ProjectError):
            found[name] = project.read(name).text
    return found


async def _run_off_loop_if_many(count: int, work: Callable[[], _T]) -> _T:
    if count < _MANY:
        return work()
    return await asyncio.get_running_loop().run_in_executor(None, work)
