"""Locks are free in a forked process, and ordinary locks otherwise."""

import os
import signal
import threading

import pytest

from roller_runtime.core.fork_safe_lock import ForkSafeLock


def test_it_excludes_other_threads_and_is_reentrant():
    lock, found = ForkSafeLock(), []
    with lock, lock:
        thread = threading.Thread(target=lambda: found.append(lock.acquire(blocking=False)))
        thread.start()
        thread.join()
    thread = threading.Thread(target=lambda: found.append(lock.acquire(blocking=False)))
    thread.start()
    thread.join()
    assert found == [False, True]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of forking with threads: what is tested
def test_a_forked_process_finds_it_free_whoever_held_it():
    theirs, mine = ForkSafeLock(), ForkSafeLock()
    held, go = threading.Event(), threading.Event()

    def hold() -> None:
        with theirs:
            held.set()
            assert go.wait(30)

    thread = threading.Thread(target=hold)
    thread.start()
    assert held.wait(30)
    child = -1
    with mine:
        child = os.fork()
        if not child:
            signal.alarm(20)
    if not child:  # after leaving what was entered before the fork
        try:
            with theirs, mine:
                os._exit(7)
        finally:
            os._exit(1)
    go.set()
    thread.join()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    assert theirs.acquire(blocking=False) and mine.acquire(blocking=False)
