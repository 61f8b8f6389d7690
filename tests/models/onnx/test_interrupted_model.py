"""Ctrl-C while a model is compiled: it stops, says what is kept, and the same call goes on from there."""

from __future__ import annotations

import sys

import onnx
import pytest

from roller.models.batch.progress import Progress, report_count_on_interrupt
from tests.models.onnx.networks import tower
from tests.runtime.test_interrupts import AT_FORK, run

COMPILES = """
import roller
try:
    session = roller.compile_model(sys.argv[2], batch=1, workers=2, deterministic=True)
except KeyboardInterrupt as stop:
    print(stop)
else:
    print("compiled after", forks)
"""


@pytest.mark.slow
def test_an_interrupt_within_any_fork_stops_a_model(tmp_path, monkeypatch):
    scratch, path = tmp_path / "scratch", tmp_path / "tower.onnx"
    scratch.mkdir()
    monkeypatch.setenv("TMPDIR", str(scratch))
    onnx.save(tower(), path)
    for fork in (1, 2, 4):  # a process builds many kernels, so that there are few forks
        done = run(AT_FORK + COMPILES, str(fork), str(path))
        assert "the same command goes on from there" in done.stdout, done.stderr
        assert "Exception ignored" not in done.stderr and "Traceback" not in done.stderr
    last = run(AT_FORK + COMPILES, "0", str(path))
    assert last.stdout.startswith("compiled after"), last.stderr
    assert list(scratch.iterdir()) == [], "no folder of a build is left"
    again = run(AT_FORK + COMPILES, "0", str(path))
    assert again.stdout == "compiled after 0\n", "everything is in the cache"


@pytest.mark.parametrize("kept", [True, False])
def test_what_was_done_is_told(kept):
    seen = []
    with pytest.raises(KeyboardInterrupt) as stop, report_count_on_interrupt(seen.append, kept=kept) as tell:
        tell(Progress("build", 3, 12))
        raise KeyboardInterrupt
    text = str(stop.value)
    assert text.startswith("interrupted; 3 of 12 kernels were done.") and seen == [Progress("build", 3, 12)]
    assert ("goes on from there" in text) == kept
    assert sys.getsizeof(text) < 400
