"""Files that are not Python: who reads them, which changes select every test, and which select none."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Iterable
from pathlib import PurePosixPath

#: A change here can change any test: all are selected.
SELECTS_ALL = re.compile(
    r"(tests/)?conftest\.py|pyproject\.toml|Makefile|\.ci/.*|tests/(builds|collecting|slow_tests)\.py|tools/testing/\w+\.py"
)
#: A change here selects only :data:`ALWAYS`.
SELECTS_NONE = re.compile(
    r"LICENSE|\.gitignore|tests/(slow_tests\.txt|file_seconds\.json|last_slow_green\.json)|CHANGELOG\.md"
    r"|docs/results/.*|benchmarks/results/.*"
)
#: Quick tests that inspect the whole repository.
ALWAYS = (
    "tests/test_architecture.py", "tests/test_files.py", "tests/docs/test_numbers.py", "tests/docs/test_links.py",
    "tests/docs/test_paths.py", "tests/test_release.py",
)  # fmt: skip
#: Folders whose files are found by walking: folder -> the file that walks it. Elsewhere a reader names the file, or is
#: a test or benchmark that looks around its own folder.
WALKED = {
    "hardware_specs/": "roller/hardware/loader.py",
    "roller/emulator/cxx/": "roller/emulator/build_library.py",
    "microbench/": "roller/probing/registry.py",
    "docs/": "tests/docs/pages.py",
    "README.md": "tests/docs/pages.py",
    "CONTRIBUTING.md": "tests/docs/pages.py",
    "benchmarks/README.md": "tests/docs/pages.py",
}

#: The test that runs the blocks of code of all pages.
RUNS_PAGES = "tests/docs/test_blocks.py"

_LOOKS_AROUND = re.compile(r"\b(__file__|glob|rglob|iterdir)\b")
_QUOTED_PATH = re.compile(r"[\"'/]((?:[\w-][\w.-]*/)*[\w.-]*[\w-]\.[A-Za-z]\w*)[\"']")


class DataFiles:
    """Finds which data files, and which scripts outside the import graph, a source text reads.

    Parameters
    ----------
    paths
        All files of the repository that no import reaches.

    Examples
    --------
    >>> files = DataFiles(["roller/runtime/session/thread_pool.h", "tests/goldens/a.json", "microbench/cpu/add.c"])
    >>> sorted(files.read_by("roller/runtime/session/native_runner_build.py", '_HERE / "thread_pool.h"'))
    ['roller/runtime/session/thread_pool.h']
    >>> sorted(files.read_by("tests/goldens/test_a.py", "Path(__file__).parent.rglob('*')"))
    ['tests/goldens/a.json']
    """

    def __init__(self, paths: Iterable[str]) -> None:
        self._named: dict[str, list[str]] = defaultdict(list)
        self._walked: dict[str, set[str]] = defaultdict(set)
        self._inside: dict[str, set[str]] = defaultdict(set)
        for path in paths:
            self._named[PurePosixPath(path).name].append(path)
            for folder in PurePosixPath(path).parents:
                self._inside[str(folder)].add(path)
            for place, walker in WALKED.items():
                if path.startswith(place):
                    self._walked[walker].add(path)

    def read_by(self, path: str, text: str) -> set[str]:
        """Return the files that a source file names or walks."""
        found = set(self._walked.get(path, ()))
        for name in set(_QUOTED_PATH.findall(text)):
            found.update(p for p in self._named.get(name.rpartition("/")[2], ()) if f"/{p}".endswith(f"/{name}"))
        if path.startswith(("tests/", "benchmarks/")) and _LOOKS_AROUND.search(text):
            found |= self._inside.get(str(PurePosixPath(path).parent), set())
        return found


def selects_all(changed: Iterable[str], known: Collection[str]) -> str:
    """Return the first changed file that selects every test: by its name, or as no rule knows it; else nothing."""
    for path in changed:
        if SELECTS_ALL.fullmatch(path) or (path not in known and not SELECTS_NONE.fullmatch(path)):
            return path
    return ""
