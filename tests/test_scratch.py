"""Temporary folders: gone at the end, and gone after a kill as soon as the next process needs one."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from roller_runtime.core.temporary_folders import ScratchLibraries, remove_abandoned_folders, scratch_folder
from roller_runtime.errors import LaunchError

ROOT = Path(__file__).resolve().parent.parent
_KILLED = """
import os, signal
from roller_runtime.core.temporary_folders import scratch_folder
with scratch_folder("killed-") as folder:
    open(folder + "/kernel.o", "w").close()
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture
def where(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    remove_abandoned_folders.cache_clear()
    yield tmp_path
    remove_abandoned_folders.cache_clear()


def aged(folder):
    past = time.time() - 1000
    os.utime(folder, (past, past))


def test_a_folder_is_gone_at_the_end_whatever_happens(where):
    with pytest.raises(ValueError, match="in it"), scratch_folder("a-") as folder:
        Path(folder, "x").write_text("")
        raise ValueError("in it")
    assert list(where.iterdir()) == []


def test_what_a_killed_process_left_goes_and_nothing_else(where):
    environment = {**os.environ, "TMPDIR": str(where), "PYTHONPATH": str(ROOT)}
    assert subprocess.run([sys.executable, "-c", _KILLED], env=environment).returncode == -signal.SIGKILL
    (left,) = where.iterdir()
    assert (left / "kernel.o").exists()
    for name in ("roller-scratch-mine", "roller-checkout"):  # no lock of ours in them
        (where / name).mkdir()
        aged(where / name)
    with scratch_folder():
        assert left.exists()  # it might be new, and not locked yet
    aged(left)
    with scratch_folder() as held:
        remove_abandoned_folders.cache_clear()
        aged(held)
        with scratch_folder():
            assert not left.exists() and Path(held).exists()
    assert {p.name for p in where.iterdir()} == {"roller-scratch-mine", "roller-checkout"}


def test_a_library_that_cannot_be_written_is_reported_in_one_sentence(monkeypatch, tmp_path):
    """The folder of temporary files is full, or is none."""

    def refuse(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", refuse)
    with (
        pytest.raises(LaunchError, match=r"^mlp: cannot write a temporary copy of its library \(.*No space left.*\)"),
        ScratchLibraries() as scratch,
    ):
        scratch.write(b"", "mlp")


def test_copies_of_libraries_have_paths_of_their_own_until_the_end():
    with ScratchLibraries() as scratch:
        paths = [scratch.write(data, "mlp") for data in (b"a", b"b")]
        assert [p.read_bytes() for p in paths] == [b"a", b"b"] and paths[0].parent == paths[1].parent
    assert not paths[0].parent.exists()
