"""An interrupt is never lost, wherever it arrives; children see none of it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading

import pytest

from roller.runtime.defer_interrupts import interrupts_deferred

#: Interrupts its process within fork number ``argv[1]``, in the hooks that Python runs behind it: whatever is raised
#: there is printed and forgotten. ``work`` follows.
AT_FORK = """
import os, signal, sys
forks, wanted = 0, int(sys.argv[1])

def strike():
    global forks
    forks += 1
    if forks == wanted:
        os.kill(os.getpid(), signal.SIGINT)
        for _ in range(100):  # the handler runs between two of its steps
            pass

os.register_at_fork(after_in_parent=strike)
"""

BUILDS = """
from roller.runtime.build_pool import build_all
try:
    build_all({n: n for n in "abcde"}, str, workers=2)
except KeyboardInterrupt:
    print("interrupted after", forks)
else:
    print("lost")
"""


def run(script: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", script, *arguments], capture_output=True, text=True, timeout=300)


@pytest.mark.parametrize("fork", ["1", "3", "5"])
def test_an_interrupt_within_a_fork_stops_the_builds(fork):
    done = run(AT_FORK + BUILDS, fork)
    assert done.stdout == f"interrupted after {fork}\n", done.stderr
    assert "Exception ignored" not in done.stderr


def test_the_first_interrupt_within_is_delivered_at_the_end():
    told = []
    before = signal.signal(signal.SIGINT, lambda number, frame: told.append(number))
    try:
        with interrupts_deferred():
            os.kill(os.getpid(), signal.SIGINT)
            os.kill(os.getpid(), signal.SIGINT)
            assert told == []
        assert told == [signal.SIGINT]
        os.kill(os.getpid(), signal.SIGINT)
        assert len(told) == 2, "the handler is back"
    finally:
        signal.signal(signal.SIGINT, before)


def test_what_is_raised_within_is_not_hidden():
    with pytest.raises(OSError, match="no more processes"), interrupts_deferred():
        raise OSError("no more processes")
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_where_interrupts_are_ignored_they_stay_so():
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with interrupts_deferred():
            assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)


def test_other_threads_are_left_alone():
    seen = []

    def work():
        with interrupts_deferred():
            seen.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [signal.default_int_handler]
