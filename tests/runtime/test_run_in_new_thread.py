"""What forked processes run in a new thread."""

import contextvars
import threading

import pytest

from roller.runtime.run_in_new_thread import run_in_new_thread

SETTING = contextvars.ContextVar("setting", default=0)


def test_results_and_errors_are_those_of_the_function():
    assert run_in_new_thread(lambda: (3, threading.current_thread() is threading.main_thread())) == (3, False)
    for error in (ValueError, SystemExit, KeyboardInterrupt):
        with pytest.raises(error, match="that"):
            run_in_new_thread(lambda error=error: (_ for _ in ()).throw(error("that")))


def test_context_variables_have_the_callers_values():
    token = SETTING.set(7)
    try:
        assert run_in_new_thread(SETTING.get) == 7
    finally:
        SETTING.reset(token)


def test_the_stack_is_large_whatever_other_threads_get():
    usual = threading.stack_size(1 << 16)
    try:
        assert run_in_new_thread(lambda: recurse_through_c(300)) == 0
        assert threading.stack_size() == 1 << 16
    finally:
        threading.stack_size(usual)


def recurse_through_c(depth):
    return 0 if depth == 0 else max(map(recurse_through_c, [depth - 1]))


def test_where_no_thread_can_start_the_calling_one_runs_the_function(monkeypatch):
    def refuse(_thread):
        raise RuntimeError("can't start new thread")

    usual = threading.stack_size()
    monkeypatch.setattr(threading.Thread, "start", refuse)
    assert run_in_new_thread(threading.current_thread) is threading.current_thread()
    assert threading.stack_size() == usual
