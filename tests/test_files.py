"""Files appear whole or not at all."""

from __future__ import annotations

import os
import stat

import pytest

from roller_runtime.core.files import write_atomically


def test_a_file_appears_at_the_end_with_the_permissions_of_any_other(tmp_path):
    path = tmp_path / "a.json"
    path.write_text("old")
    with write_atomically(path, durable=True) as file:
        file.write(b"new")
        assert path.read_text() == "old"
    assert path.read_text() == "new" and [p.name for p in tmp_path.iterdir()] == ["a.json"]
    mask = os.umask(0)
    os.umask(mask)
    assert stat.S_IMODE(path.stat().st_mode) == 0o666 & ~mask


@pytest.mark.parametrize("error", [KeyboardInterrupt, ValueError])
def test_nothing_is_left_of_what_is_not_finished(tmp_path, error):
    path = tmp_path / "a.json"
    with pytest.raises(error), write_atomically(path) as file:
        file.write(b"half")
        raise error
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_is_not_there_is_the_systems_error(tmp_path):
    with pytest.raises(FileNotFoundError), write_atomically(tmp_path / "no" / "a.json"):
        pass


def test_what_is_no_file_is_never_replaced(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(OSError, match="a pipe or a device"), write_atomically(pipe) as file:
        file.write(b"x")
    assert stat.S_ISFIFO(pipe.stat().st_mode) and [p.name for p in tmp_path.iterdir()] == ["pipe"]
