"""Modules that are loaded when they are first used."""

from __future__ import annotations

import sys
import threading
import types
from concurrent.futures import ThreadPoolExecutor

from roller.targets.lazy import import_object

SOURCE = """
from gate_of_a_test import begun, goes_on
begun.set()
goes_on.wait(60)
value = 7
"""


def test_a_module_that_another_thread_is_loading_is_waited_for(tmp_path, monkeypatch):
    gate = types.ModuleType("gate_of_a_test")
    gate.begun, gate.goes_on = threading.Event(), threading.Event()
    monkeypatch.setitem(sys.modules, gate.__name__, gate)
    (tmp_path / "loads_slowly.py").write_text(SOURCE)
    monkeypatch.syspath_prepend(tmp_path)
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(import_object, "loads_slowly:value")
        assert gate.begun.wait(60)
        second = pool.submit(import_object, "loads_slowly:value")
        threading.Event().wait(0.05)  # time to look into what is half loaded
        gate.goes_on.set()
        assert (first.result(60), second.result(60)) == (7, 7)
    monkeypatch.delitem(sys.modules, "loads_slowly")
