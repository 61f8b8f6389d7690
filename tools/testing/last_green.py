"""The last commit at which all slow tests passed: ``tests/last_slow_green.json``, which ``make slow`` writes.

A run of one shard is noted under ``in_progress``; when all shards of one commit have passed, it becomes ``green``.
"""

from __future__ import annotations

import datetime
import importlib.util
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tools.affected.changes import git
from tools.testing.workers import is_worker

FILE = "tests/last_slow_green.json"
#: The marks of all slow tests, as `make slow` has them.
MARKS = "slow and not exhaustive"


class NoGreenRun(Exception):
    """There is no commit at which all slow tests are known to have passed."""


def commit(root: Path) -> str:
    """Return the last commit at which all slow tests passed.

    Raises
    ------
    NoGreenRun
        Where the file is missing, names none, or names one that git does not know.
    """
    found = _read(root).get("green", {}).get("commit")
    if found is None:
        raise NoGreenRun(f"{FILE} is missing or names no commit. Run `make slow` once, or pass SINCE=COMMIT.")
    known = subprocess.run(["git", "cat-file", "-e", f"{found}^{{commit}}"], cwd=root, capture_output=True, check=False)
    if known.returncode:
        raise NoGreenRun(f"{FILE} names {found}, which git does not know here. Fetch it, or pass SINCE=COMMIT.")
    return str(found)


def record(root: Path, shard: tuple[int, int], today: str) -> str:
    """Note that a shard of the slow tests passed at the present commit; return what to tell the person.

    Nothing is noted where the working tree differs from the commit: the run says nothing about any commit then.
    """
    if not _state(root)[0]:
        return f"{FILE}: not written, as git knows no commit here."
    if _status(root):
        return f"{FILE}: not written, as the working tree has changes that are not committed."
    head, (number, count) = git(root, "rev-parse", "HEAD").strip(), shard
    known = _read(root)
    before = known.pop("in_progress", {})
    same = before.get("of") == count and _same_files(before.get("commit", ""), root)
    others = before.get("done") if same else None
    done = sorted({number, *(n for n in range(1, count + 1) if isinstance(others, list) and n in others)})
    if done == list(range(1, count + 1)):
        known["green"] = {"commit": head, "date": today, "shards": count}
        said = f"{FILE}: all slow tests passed at {head[:12]}. Commit it."
    else:
        known["in_progress"] = {"commit": head, "date": today, "of": count, "done": done}
        said = f"{FILE}: shards {', '.join(map(str, done))} of {count} passed at {head[:12]}."
    (root / FILE).write_text(json.dumps(known, indent=2) + "\n", encoding="utf-8")
    return said


def _read(root: Path) -> dict[str, Any]:
    """Return what the file says; nothing where it is damaged, since a run writes it anew."""
    path = root / FILE
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    parts = {k: v for k, v in found.items() if isinstance(v, dict)} if isinstance(found, dict) else {}
    return {k: v for k, v in parts.items() if re.fullmatch("[0-9a-f]{40}", str(v.get("commit")))}


def _status(root: Path) -> str:
    """Return changes of the working tree, but for the file itself."""
    return git(root, "status", "--porcelain", "--untracked-files=all", "--", ".", f":!{FILE}").strip()


def _same_files(other: str, root: Path) -> bool:
    """Return whether a commit has the files of the present one, but for the file itself."""
    words = ["git", "diff", "--quiet", other, "HEAD", "--", ".", f":!{FILE}"]
    return bool(other) and subprocess.run(words, cwd=root, capture_output=True, check=False).returncode == 0


#: What pytest 9 makes of `--strict-markers` in pyproject.toml, as if `-o` had been given.
_OF_ADDOPTS = {"strict_markers=true"}
#: Commit and changes of the working tree when the tests began: hours later they may be others.
_BEGAN = pytest.StashKey[tuple[str, str]]()


def _state(root: Path) -> tuple[str, str]:
    try:
        return git(root, "rev-parse", "HEAD"), _status(root)
    except (OSError, subprocess.CalledProcessError):
        return "", ""


def pytest_configure(config: pytest.Config) -> None:
    """Note which commit the tests of this run are of."""
    if config.getoption("--record-slow-green") and not is_worker(config):
        config.stash[_BEGAN] = _state(config.rootpath)


def why_incomplete(config: pytest.Config) -> str:
    """Return why a run says nothing about all slow tests; an empty string where it says all.

    HIP's compiler is not asked for: few machines have it.
    """
    option = config.option
    changed = {*(option.override_ini or ())} - _OF_ADDOPTS
    if option.markexpr != MARKS:
        return f"expected -m '{MARKS}', got '{option.markexpr}'"
    narrowed = [
        name for name, value in (
            ("-k", option.keyword), ("--deselect", option.deselect), ("--ignore", option.ignore),
            ("--ignore-glob", option.ignore_glob), ("--lf", getattr(option, "lf", False)),
            ("--stepwise", getattr(option, "stepwise", False)), ("--collect-only", option.collectonly),
            ("--setup-only", option.setuponly), ("--setup-plan", option.setupplan),
            ("-o", changed), ("--affected-by", option.affected_by),
            ("--minutes", option.minutes is not None),
            ("paths", config.args_source is not config.ArgsSource.TESTPATHS),
        ) if value
    ]  # fmt: skip
    if narrowed:
        return f"{', '.join(narrowed)} left tests out"
    lacking = [name for name in ("tvm", "onnx", "torch") if importlib.util.find_spec(name) is None]
    lacking += [] if shutil.which("g++") else ["g++"]
    return f"tests skip without {', '.join(lacking)}" if lacking else ""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add ``--record-slow-green``."""
    parser.addoption("--record-slow-green", action="store_true", help=f"note in {FILE} that all slow tests passed")


@pytest.hookimpl(trylast=True)
def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, exitstatus: int, config: pytest.Config
) -> None:  # fmt: skip
    """Note a run in which every test ran and none failed."""
    if not config.getoption("--record-slow-green") or is_worker(config) or exitstatus != pytest.ExitCode.OK:
        return
    reason = why_incomplete(config)
    if not reason and _state(config.rootpath) != config.stash.get(_BEGAN, None):
        reason = "commits or files changed while the tests ran"
    if reason:
        terminalreporter.line(f"{FILE}: not written: {reason}.")
        return
    number, _, count = (config.getoption("--shard", None) or "1/1").partition("/")
    today = datetime.datetime.now(datetime.timezone.utc).date().isoformat()
    terminalreporter.line(record(config.rootpath, (int(number), int(count)), today))
