"""``--affected-by REVISION``: collect only the test files that the change since a commit can reach, nearest first.

Other files are not even imported. The controller of pytest-xdist builds the graph once; workers receive the files.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from pathlib import Path

import pytest

from tools.testing import last_green
from tools.testing.workers import shared

_KEY = "roller_affected_files"
#: Written by `make slow-list`: mean CPU seconds of the tests of each file, and those of a file that is new.
SECONDS, _UNKNOWN_S = "tests/file_seconds.json", 0.3
#: Stands for the commit at which all slow tests last passed.
LAST_SLOW_GREEN = "last-slow-green"


class AffectedFiles:
    """Collects some files, in the order of their distance from the change.

    Parameters
    ----------
    distances
        Distance of each file, relative to the root.
    base
        Commit that the change starts from, with what to say about it.
    turn
        Orders files of one distance: with another one, a limit of time leaves out other files.
    seconds
        Mean CPU seconds of the tests of a file: a file whose tests take half as long is twice as likely to come first.
    """

    def __init__(
        self, distances: Mapping[str, int], base: str, turn: str, seconds: Mapping[str, float] | None = None
    ) -> None:
        self._distances, self._base, self._turn, self._seconds = dict(distances), base, turn, dict(seconds or {})

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: object) -> None:
        """Give a worker the files."""
        node.workerinput[_KEY] = (self._distances, self._base, self._turn)  # type: ignore[attr-defined]

    def pytest_report_header(self) -> str:
        """Say how many files are selected, and against which commit."""
        return f"affected by the change since {self._base}: {len(self._distances)} test files, nearest first"

    def pytest_ignore_collect(self, collection_path: Path, config: pytest.Config) -> bool | None:
        """Leave out files that the change cannot reach."""
        if collection_path.suffix != ".py" or not collection_path.is_relative_to(config.rootpath):
            return None
        return None if collection_path.relative_to(config.rootpath).as_posix() in self._distances else True

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        """Put the tests of the nearest files first."""

        def order(item: pytest.Item) -> tuple[int, float, str]:
            path = item.path.relative_to(config.rootpath).as_posix()
            return self._distances.get(path, 0), _rank(path, self._turn, self._seconds.get(path, _UNKNOWN_S)), path

        items.sort(key=order)

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Let a change that reaches no test of the wanted marks pass."""
        if session.exitstatus == pytest.ExitCode.NO_TESTS_COLLECTED:
            session.exitstatus = pytest.ExitCode.OK


def _rank(path: str, turn: str, seconds: float) -> float:
    """Return a draw from an exponential distribution whose mean is ``seconds``, the same in every process."""
    drawn = int.from_bytes(hashlib.sha256(f"{turn} {path}".encode()).digest()[:8], "big")
    return -math.log((drawn + 1) / 2**64) * seconds


def _seconds(root: Path) -> dict[str, float]:
    path = root / SECONDS
    found: dict[str, float] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    return found


def _selected(revision: str, root: Path) -> tuple[dict[str, int], str, str]:
    from tools.affected.changes import SelectionError, changed_since, commit_of, is_ancestor
    from tools.affected.selection import affected

    try:
        commit = last_green.commit(root) if revision == LAST_SLOW_GREEN else revision
        changed = changed_since(commit, root)
        distances = {s.path: s.distance for s in affected(changed, root)}
    except (SelectionError, last_green.NoGreenRun) as error:
        raise pytest.UsageError(f"--affected-by {revision}: {error}") from None
    beside = "" if is_ancestor(commit, root) else ", which is no ancestor of HEAD: its files are compared"
    return distances, f"{commit[:12]}{beside} ({len(changed)} files)", commit_of("HEAD", root)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add ``--affected-by``."""
    parser.addoption(
        "--affected-by", metavar="REVISION",
        help=f"run only what the change since a commit can reach; {LAST_SLOW_GREEN}: that of {last_green.FILE}",
    )  # fmt: skip


def pytest_configure(config: pytest.Config) -> None:
    """Select the files in the process that starts first; workers are given them."""
    revision = config.getoption("--affected-by")
    if revision:
        distances, base, turn = shared(config, _KEY, lambda: _selected(revision, config.rootpath))
        config.pluginmanager.register(AffectedFiles(distances, base, turn, _seconds(config.rootpath)), "affected-files")
