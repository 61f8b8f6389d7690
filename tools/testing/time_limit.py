"""``--minutes M``: no test begins later than M minutes after the session's start; the others are reported as not run.

A session that ran fewer than half of the selected tests fails. ``--more-minutes M`` lets a slow machine go on so much
longer, until it has run half of them.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterable

import pytest

from tools.testing.workers import is_worker, shared

#: Seconds since the epoch, the same in all processes; tests replace it.
clock = time.time
_OUTCOME = "not run"
_KEY = "roller_deadline_s"
#: Names that a file's line shows.
_NAMES_SHOWN = 8


def not_run_lines(names: Iterable[str]) -> list[str]:
    """Return one line per file: how many of its tests did not run, and which.

    Examples
    --------
    >>> not_run_lines(["a.py::t[1]", "a.py::t[2]", "b.py::u"])
    ['a.py: 2: t[1], t[2]', 'b.py: 1: u']
    """
    by_file: dict[str, list[str]] = defaultdict(list)
    for name in names:
        path, _, test = name.partition("::")
        by_file[path].append(test)
    return [f"{path}: {len(tests)}: {_shortened(tests)}" for path, tests in by_file.items()]


def _shortened(tests: list[str]) -> str:
    """Return names of tests: each with the number of its cases where there are many."""
    if len(tests) <= _NAMES_SHOWN:
        return ", ".join(tests)
    cases: dict[str, int] = defaultdict(int)
    for test in tests:
        cases[test.partition("[")[0]] += 1
    return ", ".join(f"{name} ({count})" if count > 1 else name for name, count in cases.items())


class TimeLimit:
    """Lets no test begin after a deadline, in whichever process it would, and reports those that did not run."""

    def __init__(self, deadline_s: float, minutes: float, *, more_minutes: float = 0.0, workers: int = 1) -> None:
        self._deadline_s, self._minutes = deadline_s, minutes
        self._latest_s, self._workers = deadline_s + more_minutes * 60, workers
        self._begun = self._least = 0
        self.not_run: dict[str, None] = {}
        self.run: set[str] = set()

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: object) -> None:
        """Give a worker the deadline."""
        node.workerinput[_KEY] = self._deadline_s  # type: ignore[attr-defined]

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Count the tests of which this process has to run its share of a half."""
        self._least = -(-len(session.items) // (2 * self._workers))

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> bool | None:
        """Report a test as not run instead of running it."""
        now = clock()
        if now < self._deadline_s or (self._begun < self._least and now < self._latest_s):
            self._begun += 1
            return None
        report = pytest.TestReport(
            item.nodeid, item.location, keywords={}, outcome=_OUTCOME, longrepr=None, when="call",  # type: ignore[arg-type]
        )  # fmt: skip
        item.ihook.pytest_runtest_logreport(report=report)
        return True

    @pytest.hookimpl(tryfirst=True)
    def pytest_report_teststatus(self, report: pytest.TestReport) -> tuple[str, str, str] | None:
        """Count a test that did not run as such."""
        return (_OUTCOME, "n", "NOT RUN") if report.outcome == _OUTCOME else None

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note which tests ran and which did not, in whatever process."""
        if report.outcome == _OUTCOME:
            self.not_run[report.nodeid] = None
        else:
            self.run.add(report.nodeid)

    @property
    def ran_too_few(self) -> bool:
        """Whether fewer than half of the tests ran."""
        return len(self.run) < len(self.not_run)

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Fail where too few tests ran."""
        if not is_worker(session.config) and self.ran_too_few and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """List the tests that did not run."""
        if not self.not_run:
            return
        every = len(self.run) + len(self.not_run)
        terminalreporter.section(f"not run: {len(self.not_run)} of {every} tests after {self._minutes:g} minutes")
        for line in not_run_lines(self.not_run):
            terminalreporter.line(line)
        if self.ran_too_few:
            terminalreporter.line(
                f"FAILED: {len(self.run)} of {every} tests ran, fewer than half. Allow more minutes, or select less.",
                red=True,
            )


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add ``--minutes``."""
    parser.addoption("--minutes", type=float, metavar="M", help="begin no test later than M minutes after the start")
    parser.addoption(
        "--more-minutes", type=float, metavar="M", default=0.0, help="go on so much longer until half of the tests ran"
    )


def pytest_configure(config: pytest.Config) -> None:
    """Set the deadline in the process that starts first; workers are given it."""
    minutes = config.getoption("--minutes")
    if minutes is not None:
        deadline_s = shared(config, _KEY, lambda: clock() + minutes * 60)
        workers = config.workerinput["workercount"] if is_worker(config) else 1  # type: ignore[attr-defined]
        limit = TimeLimit(deadline_s, minutes, more_minutes=config.getoption("--more-minutes"), workers=workers)
        config.pluginmanager.register(limit, "time-limit")
