"""The tests that take too long for ``make test``: a list that a run writes, and the mark it gives them.

A test is as slow as the CPU seconds it takes, its own and those of the processes it waits for: what else the
machine does is not in them. The cheapest case of a test may take longer than others before it is on the list, so that
``make test`` has one of every test. A test or case on the list is marked ``slow``, beside those that are marked in
the source. ``make slow-list`` runs everything and writes the list.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

LIST = Path(__file__).with_name("slow_tests.txt")
#: Mean CPU seconds of the tests of each file, by which tests that may not all run are ordered.
SECONDS = Path(__file__).with_name("file_seconds.json")
#: CPU seconds above which a case is on the list, and the cheapest case of a test.
LIMIT_S, CHEAPEST_LIMIT_S = 0.1, 0.3
_PROPERTY = "processor_s"


def listed(path: Path = LIST) -> frozenset[str]:
    """Return the names on the list: of tests, all cases of them, or of cases (``file::test[case]``)."""
    return frozenset(line for line in path.read_text().splitlines() if line and not line.startswith("#"))


def is_listed(nodeid: str, names: frozenset[str]) -> bool:
    """Whether a test is on the list, or all cases of it are."""
    return nodeid in names or nodeid.partition("[")[0] in names


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: Sequence[pytest.Item]) -> None:
    """Mark the tests of the list but for those that always run."""
    names = listed()
    for item in items:
        if is_listed(item.nodeid, names) and item.get_closest_marker("always") is None:
            item.add_marker("slow")


def processor_s() -> float:
    """Return the CPU seconds of this process and of the ended ones it started."""
    return sum(os.times()[:4])


class Recorder:
    """Notes what every test takes, in whatever process it runs, and writes the list at the end."""

    def __init__(self, path: Path) -> None:
        self._path, self._started_s, self._taken = path, 0.0, dict[str, float]()

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logstart(self) -> None:
        """Look at the clock of processors."""
        self._started_s = processor_s()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, call: pytest.CallInfo[Any]) -> Iterator[None]:
        """Send with the last report of a test what it took."""
        report = yield
        if call.when == "teardown":
            report.user_properties.append((_PROPERTY, processor_s() - self._started_s))
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Take it from the report, which may be another process's."""
        self._taken.update((report.nodeid, s) for name, s in report.user_properties if name == _PROPERTY)

    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        """Write the list, in the process that has all reports, unless the run was cut off."""
        if not hasattr(session.config, "workerinput") and exitstatus in (0, 1):
            before = listed(self._path) if self._path.exists() else frozenset[str]()
            self._path.write_text(text_of(self._taken, before))
            known = json.loads(SECONDS.read_text()) if SECONDS.exists() else {}
            every = {**known, **means(self._taken)}  # files that did not run keep their seconds
            present = {n: every[n] for n in sorted(every) if (SECONDS.parents[1] / n).exists()}
            SECONDS.write_text(json.dumps(present, indent=0) + "\n")


def means(taken: dict[str, float]) -> dict[str, float]:
    """Return the mean CPU seconds of the tests of each file.

    Examples
    --------
    >>> means({"a.py::t": 0.5, "a.py::u[1]": 1.0, "b.py::v": 0.004})
    {'a.py': 0.75, 'b.py': 0.01}
    """
    by_file: dict[str, list[float]] = {}
    for name, seconds in sorted(taken.items()):
        by_file.setdefault(name.partition("::")[0], []).append(seconds)
    return {path: max(round(sum(found) / len(found), 2), 0.01) for path, found in by_file.items()}


def text_of(taken: dict[str, float], before: frozenset[str] = frozenset()) -> str:
    """Return the list of tests that took so many seconds each; of what did not run, what was on it before stays.

    Examples
    --------
    >>> took = {"a::t[1]": 2.0, "a::t[2]": 3.0, "a::u[1]": 2.0, "a::u[2]": 0.2, "a::w": 0.2}
    >>> text_of(took, frozenset(["a::u[2]", "b::v"])).splitlines()[2:]
    ['a::t', 'a::u[1]', 'b::v']
    """
    cheapest: dict[str, float] = {}
    for name, seconds in taken.items():
        test = name.partition("[")[0]
        cheapest[test] = min(seconds, cheapest.get(test, seconds))
    slow = {
        name
        for name, seconds in taken.items()
        if seconds > (CHEAPEST_LIMIT_S if seconds == cheapest[name.partition("[")[0]] else LIMIT_S)
    }
    whole = {n.partition("[")[0] for n in slow} - {n.partition("[")[0] for n in taken if n not in slow}
    names = {n.partition("[")[0] if n.partition("[")[0] in whole else n for n in slow}
    names |= before - taken.keys() - {n.partition("[")[0] for n in taken}
    head = (
        f"# Cases of more than {LIMIT_S} s of processors, the cheapest of a test of more than {CHEAPEST_LIMIT_S}: "
        "`make slow-list` writes this file."
    )
    return "\n".join([head, "", *sorted(names)]) + "\n"
