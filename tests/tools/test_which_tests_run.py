"""Options of pytest that decide which tests run, tried on small suites in processes of their own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.tools.whole_graph import ROOT
from tools.testing import last_green, time_limit
from tools.testing.affected_files import AffectedFiles
from tools.testing.shards import Shard, dealt, weights_of
from tools.testing.time_limit import not_run_lines

#: Tests of a minute each, by the file that is the clock.
CONFTEST = """
import pathlib, pytest
import tools.testing.time_limit as limit

CLOCK = pathlib.Path(__file__).with_name("clock")
limit.clock = lambda: len(CLOCK.read_text()) * 60.0 if CLOCK.exists() else 0.0

@pytest.fixture(autouse=True)
def minute():
    yield
    with CLOCK.open("a") as file:
        file.write("x")
"""
#: Plugins of pytest that have no part in what is tested; that of asyncio warns of settings that a bare folder lacks.
OTHERS = ("cacheprovider", "randomly", "asyncio")
PLUGINS = [word for name in ("time_limit", "shards") for word in ("-p", f"tools.testing.{name}")]


def run(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-q", *(f"-pno:{name}" for name in OTHERS), *PLUGINS, *words],
        cwd=folder, text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, timeout=120,
    )  # fmt: skip


@pytest.fixture
def suite(tmp_path):
    """Return a folder of two files with three tests each, one of them in cases."""
    (tmp_path / "conftest.py").write_text(CONFTEST)
    for name in "ab":
        (tmp_path / f"test_{name}.py").write_text(
            "import pytest\n\ndef test_one(): pass\n\n@pytest.mark.parametrize('n', [1, 2])\ndef test_two(n): pass\n"
        )
    return tmp_path


def test_after_the_limit_a_test_is_reported_instead_of_run(monkeypatch):
    seconds, reports = iter([59.0, 60.0]), []
    monkeypatch.setattr(time_limit, "clock", lambda: next(seconds))
    limit = time_limit.TimeLimit(deadline_s=60.0, minutes=1)
    hooks = SimpleNamespace(pytest_runtest_logreport=lambda report: reports.append(report))
    items = [SimpleNamespace(nodeid=f"a.py::{n}", location=("a.py", 1, n), ihook=hooks) for n in ("one", "two")]
    assert [limit.pytest_runtest_protocol(item) for item in items] == [None, True]
    assert [limit.pytest_report_teststatus(r) for r in reports] == [("not run", "n", "NOT RUN")]
    limit.pytest_runtest_logreport(reports[0])
    assert list(limit.not_run) == ["a.py::two"] and limit.ran_too_few
    limit.pytest_runtest_logreport(SimpleNamespace(nodeid="a.py::one", outcome="passed"))
    assert not limit.ran_too_few, "one of two is half"


def test_a_slow_machine_goes_on_until_half_of_the_tests_have_run(monkeypatch):
    seconds = iter([10.0, 61.0, 62.0, 63.0])
    monkeypatch.setattr(time_limit, "clock", lambda: next(seconds))
    limit = time_limit.TimeLimit(deadline_s=60.0, minutes=1, more_minutes=1, workers=2)
    limit.pytest_collection_finish(SimpleNamespace(items=range(8)))  # a half of 8 in two processes: 2 in each
    hooks = SimpleNamespace(pytest_runtest_logreport=lambda report: None)
    items = [SimpleNamespace(nodeid=f"a.py::{n}", location=("a.py", 1, n), ihook=hooks) for n in "abc"]
    assert [limit.pytest_runtest_protocol(item) for item in items] == [None, None, True]
    never = time_limit.TimeLimit(deadline_s=0.0, minutes=0, more_minutes=1)
    never.pytest_collection_finish(SimpleNamespace(items=range(8)))
    assert never.pytest_runtest_protocol(items[0]) is True, "a minute more is over at 63 s"


@pytest.mark.slow
def test_no_test_begins_after_the_limit(suite):
    done = run(suite, "--minutes", "4")
    assert done.returncode == 0, done.stdout
    assert "not run: 2 of 6 tests after 4 minutes" in done.stdout
    assert "test_b.py: 2: test_two[1], test_two[2]" in done.stdout
    assert "4 passed, 2 not run" in done.stdout


@pytest.mark.slow
def test_a_session_that_ran_fewer_than_half_of_its_tests_fails(suite):
    done = run(suite, "--minutes", "2")
    assert done.returncode == 1
    assert "FAILED: 2 of 6 tests ran, fewer than half." in done.stdout


@pytest.mark.slow
def test_the_limit_holds_in_the_workers(suite):
    done = run(suite, "--minutes", "3", "-n", "2")
    passed = 6 - int(done.stdout.partition("not run: ")[2].partition(" ")[0])
    # Each of two processes may have begun a test when the clock passed the limit.
    assert passed in (3, 4) and done.returncode == 0, done.stdout
    assert f"{passed} passed, {6 - passed} not run" in done.stdout


def test_what_did_not_run_is_listed_by_file():
    many = [f"a.py::t[{n}]" for n in range(20)] + ["a.py::u", "b.py::v"]
    assert not_run_lines(many) == ["a.py: 21: t (20), u", "b.py: 1: v"]


def test_every_file_is_in_one_shard_and_shards_are_alike():
    weights = weights_of()
    files = [p.relative_to(ROOT).as_posix() for p in (ROOT / "tests").rglob("test_*.py")]
    shards = [Shard(f"{k}/4", weights) for k in (1, 2, 3, 4)]
    assert all(sum(s.holds(f) for s in shards) == 1 for f in files)
    totals = [sum(n for f, n in weights.items() if s.holds(f)) for s in shards]
    assert max(totals) <= 1.05 * min(totals)
    assert dealt({"a": 3, "b": 2, "c": 2}, 2) in ({"a": 0, "b": 1, "c": 1}, {"a": 0, "b": 1, "c": 1})
    for wrong in ("5/4", "0/4", "4", "a/b"):
        with pytest.raises(ValueError, match="expected K/N"):
            Shard(wrong, weights)


@pytest.mark.slow
def test_shards_together_run_every_test_once(suite):
    ran = [run(suite, "--shard", f"{k}/2", "-vv", *(["-n", "2"] if k == 1 else [])).stdout for k in (1, 2)]
    names = [w for text in ran for line in text.splitlines() if "PASSED" in line for w in line.split() if "::" in w]
    assert sorted(names) == [f"test_{f}.py::{t}" for f in "ab" for t in ("test_one", "test_two[1]", "test_two[2]")]
    assert run(suite, "--shard", "3/2").stderr.startswith("ERROR: --shard: expected K/N")


@pytest.fixture
def checkout(tmp_path):
    """Return a repository of one commit, and what runs git in it."""

    def git(*words):
        command = ["git", "-c", "user.name=n", "-c", "user.email=e@e", *words]
        return subprocess.run(command, cwd=tmp_path, check=True, capture_output=True, text=True).stdout.strip()

    git("init", "-b", "main")
    (tmp_path / "tests").mkdir()
    (tmp_path / "a.py").write_text("a")
    git("add", ".")
    git("commit", "-m", "one")
    return tmp_path, git


def test_all_shards_of_one_commit_make_it_the_base(checkout):
    root, git = checkout
    with pytest.raises(last_green.NoGreenRun, match="Run `make slow` once"):
        last_green.commit(root)
    head = git("rev-parse", "HEAD")
    assert "shards 2 of 2 passed" in last_green.record(root, (2, 2), "2026-01-01")
    git("add", ".")
    git("commit", "-m", "the note of a shard changes no other file")
    assert "all slow tests passed" in last_green.record(root, (1, 2), "2026-01-02")
    assert last_green.commit(root) == git("rev-parse", "HEAD") != head
    assert json.loads((root / last_green.FILE).read_text())["green"]["shards"] == 2


def test_shards_of_different_files_do_not_add_up(checkout):
    root, git = checkout
    last_green.record(root, (1, 2), "2026-01-01")
    (root / "a.py").write_text("b")
    assert "not written" in last_green.record(root, (2, 2), "2026-01-01")
    git("commit", "-am", "two")
    assert "shards 2 of 2 passed" in last_green.record(root, (2, 2), "2026-01-01")
    with pytest.raises(last_green.NoGreenRun):
        last_green.commit(root)


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '{"green": null}', '{"green": {"commit": "HEAD"}}'])
def test_a_damaged_note_is_none_and_is_written_anew(checkout, text):
    root, git = checkout
    (root / last_green.FILE).write_text(text)
    with pytest.raises(last_green.NoGreenRun, match="missing or names no commit"):
        last_green.commit(root)
    assert "all slow tests passed" in last_green.record(root, (1, 1), "2026-01-01")
    assert last_green.commit(root) == git("rev-parse", "HEAD")


def test_a_base_that_git_does_not_know_is_an_error_in_words(checkout):
    root, _ = checkout
    (root / last_green.FILE).write_text(json.dumps({"green": {"commit": "0" * 40}}))
    with pytest.raises(last_green.NoGreenRun, match="git does not know here"):
        last_green.commit(root)


OPTIONS = dict.fromkeys(
    ("deselect", "ignore", "ignore_glob", "lf", "stepwise", "collectonly", "setuponly", "setupplan", "override_ini",
     "affected_by", "minutes")
)  # fmt: skip
OPTIONS |= {"markexpr": last_green.MARKS, "keyword": ""}


def options(source="TESTPATHS", **changed):
    kinds = SimpleNamespace(TESTPATHS="TESTPATHS")
    return SimpleNamespace(option=SimpleNamespace(**{**OPTIONS, **changed}), args_source=source, ArgsSource=kinds)


def test_a_run_that_leaves_tests_out_is_no_base(monkeypatch):
    monkeypatch.setattr(last_green.importlib.util, "find_spec", lambda name: name)
    monkeypatch.setattr(last_green.shutil, "which", lambda name: name)
    assert last_green.why_incomplete(options()) == ""
    assert last_green.why_incomplete(options(override_ini=["strict_markers=true"])) == "", "of our own addopts"
    for changed, named in (
        ({"keyword": "a"}, "-k"), ({"deselect": ["a"]}, "--deselect"), ({"ignore": ["a"]}, "--ignore"),
        ({"lf": True}, "--lf"), ({"override_ini": ["strict_markers=true", "testpaths=a"]}, "-o"),
        ({"affected_by": "a"}, "--affected-by"), ({"minutes": 0.0}, "--minutes"),
        ({"collectonly": True}, "--collect-only"), ({"source": "ARGS"}, "paths"),
        ({"source": "INVOCATION_DIR"}, "paths"),
    ):  # fmt: skip
        assert last_green.why_incomplete(options(**changed)) == f"{named} left tests out"
    assert "got 'slow'" in last_green.why_incomplete(options(markexpr="slow"))
    monkeypatch.setattr(last_green.importlib.util, "find_spec", lambda name: None if name == "torch" else name)
    assert last_green.why_incomplete(options()) == "tests skip without torch"


def test_files_of_one_distance_are_ordered_by_the_turn():
    paths = [ROOT / "tests" / f"{name}.py" for name in "abcdefgh"]
    found = set()
    for turn in "pqr":
        files = AffectedFiles({f"tests/{p.name}": 1 for p in paths}, "the base", turn)
        items = [SimpleNamespace(path=p) for p in paths]
        files.pytest_collection_modifyitems(SimpleNamespace(rootpath=ROOT), items)
        assert {i.path for i in items} == set(paths)
        found.add(tuple(i.path.name for i in items))
    assert len(found) == 3


def test_files_of_quick_tests_are_likelier_to_come_first():
    paths = [ROOT / "tests" / f"{n}.py" for n in range(200)]
    seconds = {f"tests/{p.name}": 0.1 if n < 100 else 10.0 for n, p in enumerate(paths)}
    files = AffectedFiles(dict.fromkeys(seconds, 1), "the base", "a commit", seconds)
    items = [SimpleNamespace(path=p) for p in paths]
    files.pytest_collection_modifyitems(SimpleNamespace(rootpath=ROOT), items)
    early = sum(seconds[f"tests/{i.path.name}"] < 1 for i in items[:100])
    assert 85 < early < 100, "most of the quick ones, and some of the slow ones"


def test_files_that_are_not_affected_are_left_out_and_the_nearest_come_first():
    files = AffectedFiles({"tests/b.py": 0, "tests/a.py": 3}, "the base", "a commit")
    config = SimpleNamespace(rootpath=ROOT)
    paths = [ROOT / "tests" / name for name in ("a.py", "b.py", "c.py", "")]
    assert [files.pytest_ignore_collect(path, config) for path in paths] == [None, None, True, None]
    items = [SimpleNamespace(path=path, name=name) for path in paths[:2] for name in "xy"]
    files.pytest_collection_modifyitems(config, items)
    assert [(i.path.name, i.name) for i in items] == [("b.py", "x"), ("b.py", "y"), ("a.py", "x"), ("a.py", "y")]


@pytest.mark.parametrize(("status", "left"), [(5, 0), (1, 1), (0, 0)])
def test_a_change_that_reaches_no_test_passes(status, left):
    session = SimpleNamespace(exitstatus=status)
    AffectedFiles({}, "the base", "a commit").pytest_sessionfinish(session)
    assert session.exitstatus == left


@pytest.mark.slow
@pytest.mark.parametrize("workers", ["0", "2"])
def test_only_affected_files_are_imported_nearest_first(suite, workers):
    (suite / "test_c.py").write_text("raise AssertionError('imported')")
    with (suite / "conftest.py").open("a") as file:
        file.write(
            "\nimport tools.testing.affected_files as files\n\ndef selected(revision, root):\n"
            "    with (root / 'asked').open('a') as file:\n        file.write(revision)\n"
            "    return {'test_b.py': 1, 'test_a.py': 2}, 'the base (1 files)', 'turn'\n\nfiles._selected = selected\n"
        )
    plugins = ("-p", "tools.testing.last_green", "-p", "tools.testing.affected_files")
    done = run(suite, *plugins, "--affected-by", "some", "-vv", "-n", workers)
    assert done.returncode == 0 and "6 passed" in done.stdout, done.stdout
    assert "affected by the change since the base (1 files): 2 test files, nearest first" in done.stdout
    assert (suite / "asked").read_text() == "some", "the controller asks once, workers are told"
    first = next(line for line in done.stdout.splitlines() if "::" in line)
    assert "test_b.py" in first


@pytest.mark.slow
def test_an_unknown_base_is_an_error_in_words():
    words = [sys.executable, "-m", "pytest", "-q", "--affected-by", "nonsense", "tests/test_gc_pause.py"]
    done = subprocess.run(words, cwd=ROOT, text=True, capture_output=True, timeout=120)
    assert done.returncode == 4 and "--affected-by nonsense: git knows no commit 'nonsense'" in done.stderr
