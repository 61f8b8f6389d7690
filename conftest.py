"""No test, and no doctest, ever touches the user's cache of kernels: each has an empty folder of its own.

Nor does any see a probed profile of this machine: what one machine measured is no ground for a test. And none depends
on whether the machine is quiet: times are taken as they are, and tests of the clock bring their own.
"""

from __future__ import annotations

import importlib.util
import itertools
import logging
import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import collecting, slow_tests
from tests.builds import builds_folder, prune

#: Plugins for test selection, used by `make affected` and `make slow`.
pytest_plugins = (
    "tools.testing.shards", "tools.testing.time_limit", "tools.testing.last_green", "tools.testing.affected_files",
)  # fmt: skip
_count = itertools.count()
#: Its modules import PyTorch, which not every machine has.
collect_ignore_glob = (
    []
    if importlib.util.find_spec("torch")
    else ["roller/insight/trace/pytorch/*", "tests/insight/cost/calls.py", "tests/insight/cost/cases_*.py"]
)


@pytest.fixture(autouse=True, scope="session")
def _session_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of all caches; fixtures of a wider scope than one test compile into it."""
    folder = tmp_path_factory.mktemp("caches")
    patch = pytest.MonkeyPatch()
    patch.setenv("ROLLER_CACHE_DIR", str(folder / "session"))
    patch.setenv("ROLLER_EMULATOR_DIR", str(builds_folder()))
    patch.setenv("ROLLER_PROFILE_DIR", str(folder / "profiles"))
    patch.setenv("ROLLER_TRUST_CLOCK", "1")
    _told()
    yield folder
    patch.undo()


def _told() -> None:
    """Mark this machine as told that it is not probed: what is said once must not appear in a test by chance."""
    from roller.hardware.detect_cpu_spec import detect_cpu_without_probe
    from roller.hardware.probed_profile_location import profile_path

    told = profile_path(detect_cpu_without_probe().machine).with_suffix(".told")
    told.parent.mkdir(parents=True, exist_ok=True)
    told.touch()


@pytest.fixture(autouse=True)
def _log_as_before() -> Iterator[None]:
    """Leave the logger ``roller`` as it was: a verb of the command line sets it up for the whole process."""
    log = logging.getLogger("roller")
    level, handlers, propagate = log.level, list(log.handlers), log.propagate
    yield
    log.setLevel(level)
    log.handlers[:], log.propagate = handlers, propagate


@pytest.fixture(autouse=True)
def cache_dir(_session_cache: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the empty cache folder of this test."""
    folder = _session_cache / f"test{next(_count)}"
    monkeypatch.setenv("ROLLER_CACHE_DIR", str(folder))
    monkeypatch.delenv("COLUMNS", raising=False)  # of the terminal that tests run in, which tables would fit
    return folder


def pytest_addoption(parser: pytest.Parser) -> None:
    """Offer to write the list of slow tests."""
    parser.addoption("--write-slow-list", type=Path, help="write the tests that took long to this file")


def pytest_configure(config: pytest.Config) -> None:
    """Mark the slow tests, and note what all take where a list is to be written.

    A shell starts what runs in the background with interrupts ignored: tests of Ctrl-C need them, here and in children.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, signal.default_int_handler)
    for name in [n for n in os.environ if n.startswith("GIT_")]:  # of a hook: tests have repositories of their own
        del os.environ[name]
    config.pluginmanager.register(collecting, "collecting")
    config.pluginmanager.register(slow_tests, "slow-tests")
    if config.option.markexpr == "not slow":
        # Idle workers of TVM's thread pools spin and slow other tests down. Tests of threads and of random cases take
        # all processors, and so do the slow tests: those find races between the tasks of a kernel.
        os.environ.setdefault("TVM_NUM_THREADS", "1")
    if not hasattr(config, "workerinput"):
        prune(builds_folder())
    path = config.getoption("--write-slow-list")
    if path is not None:
        config.pluginmanager.register(slow_tests.Recorder(path), "slow-list")
