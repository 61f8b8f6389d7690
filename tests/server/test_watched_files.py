"""The files that a session watches: changes are seen, however many there are, and files of others are not read."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest

from roller.server.project_files import Project
from roller.server.watched_files import WatchedFiles
from tests.server.entries import NET


@pytest.mark.parametrize("count", [2, 100], ids=["few", "many"])
def test_changes_and_texts(tmp_path: Path, count: int) -> None:
    folder = tmp_path / "project"
    folder.mkdir()
    for name in ("pyproject.toml", *(f"part{n}.py" for n in range(count))):
        (folder / name).write_text(f"NAME = {name!r}\n")
    (folder / "train.py").write_text(NET)
    (tmp_path / "other.py").write_text("SECRET = 1\n")

    async def act() -> None:
        watched = WatchedFiles(Project(folder / "train.py"))
        parts = [str(folder / f"part{n}.py") for n in range(count)]
        await watched.add([*parts, str(tmp_path / "other.py"), 7, "\0"], time.time_ns() + 1)  # type: ignore[list-item]
        assert await watched.texts() == {
            "train.py": NET, **{f"part{n}.py": f"NAME = 'part{n}.py'\n" for n in range(count)}
        }  # fmt: skip
        assert not await watched.probably_changed()
        assert not watched.changed()
        (folder / "part1.py").write_text("NAME = 'another'\n")
        assert await watched.probably_changed()
        assert watched.changed()
        assert not await watched.probably_changed()
        (folder / "part0.py").unlink()
        assert watched.changed()
        assert "part0.py" not in await watched.texts()

    asyncio.run(act())


def test_a_file_that_changed_while_the_profile_ran_counts_as_changed(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(NET)
    began_ns = time.time_ns() - 10**9
    (tmp_path / "part.py").write_text("X = 1\n")

    async def act() -> None:
        watched = WatchedFiles(Project(tmp_path / "train.py"))
        await watched.add([str(tmp_path / "part.py")], began_ns)
        assert await watched.probably_changed()
        assert watched.changed()
        assert not watched.changed()

    asyncio.run(act())
