"""Files that the pages name are there: a page that outlives a move sends its reader nowhere."""

from __future__ import annotations

import re
from functools import cache
from pathlib import PurePosixPath

from tests.docs.pages import PAGES, ROOT, name_of
from tests.offenders import every

#: Pages that speak of the past.
_PAST = {"CHANGELOG.md"}
#: A Python file, or a folder of the package, in code marks: ``roller/x/{a,b}*.py::name``.
_NAMED = re.compile(r"`([\w./*{},-]+\.py|(?:roller|roller_runtime|templates)/[\w./*{},-]+/)(?:::[\w.]+)?`")


@cache
def _files() -> tuple[PurePosixPath, ...]:
    folders = ("roller", "roller_runtime", "runtime", "tests", "benchmarks", "docs", "examples", "microbench", "tools")
    found = [p for f in folders for p in (ROOT / f).rglob("*") if p.suffix == ".py" or p.is_dir()]
    return tuple(PurePosixPath(p.relative_to(ROOT).as_posix()) for p in (*found, *ROOT.glob("*.py")))


def _spelled_out(path: str) -> list[str]:
    """``a/{b,c}.py`` as ``a/b.py`` and ``a/c.py``.

    >>> _spelled_out("a/{b,c}.py")
    ['a/b.py', 'a/c.py']
    """
    braces = re.search(r"\{([^{}]*)\}", path)
    if braces is None:
        return [path]
    before, after = path[: braces.start()], path[braces.end() :]
    return [p for word in braces[1].split(",") for p in _spelled_out(before + word + after)]


@cache
def _files_by_name() -> dict[str, list[PurePosixPath]]:
    found: dict[str, list[PurePosixPath]] = {}
    for file in _files():
        found.setdefault(file.name, []).append(file)
    return found


@cache
def _is_there(path: str) -> bool:
    path = path.rstrip("/")
    name = PurePosixPath(path).name
    among = _files() if "*" in name else _files_by_name().get(name, ())
    return any(f.match(path) for f in among)


def missing(text: str) -> list[str]:
    """Return the paths a text names that nothing in the tree ends in."""
    named = [p for m in _NAMED.finditer(text) for p in _spelled_out(m[1])]
    return [p for p in named if not _is_there(p)]


@every("page", [p for p in PAGES if p.name not in _PAST], ids=name_of)
def test_files_that_pages_name_are_there(page):
    assert missing(page.read_text(encoding="utf-8")) == []


def test_a_file_that_is_gone_is_seen():
    gone = "roller/templates/gpu/{tiled,matricks}/emit*.py"
    assert missing(f"`{gone}` `pipeline.py` `templates/gpu/`") == ["roller/templates/gpu/matricks/emit*.py"]
