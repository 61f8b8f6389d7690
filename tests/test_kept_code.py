"""What is loaded as code is checked first: whole, and written by nobody else."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest

from roller.core import trusted_library_cache
from roller.core.trusted_library_cache import (
    UntrustedFileError,
    check_folder_trusted,
    load_cached_library,
    make_trusted_folder,
    read_verified_library,
    write_library_with_checksum,
)
from roller.emulator import build_library
from roller.errors import ArtifactError, EmulationError, RollerWarning
from roller.runtime.cache import KernelCache
from roller.runtime.session.native_runner_build import load_or_build_runner_image
from roller.runtime.small_result_cache import read_small_result, write_small_result
from roller_runtime.session.native_runner import load_runner
from tests.offenders import every

_OTHER = 4321


@pytest.fixture(autouse=True)
def _say_again():
    trusted_library_cache._warn_once_per_text.cache_clear()


def test_a_library_is_what_was_kept(tmp_path):
    path = tmp_path / "a.so"
    write_library_with_checksum(path, b"code")
    assert read_verified_library(path) == b"code"
    assert path.stat().st_mode & 0o777 == 0o600


@every("size", [0, 1, 31, 32, 33, 35])
def test_one_that_was_cut_short_is_damaged(size, tmp_path):
    path = tmp_path / "a.so"
    write_library_with_checksum(path, b"code")
    path.write_bytes(path.read_bytes()[:size])
    with pytest.raises(ValueError, match="checksum"):
        read_verified_library(path)


def test_a_damaged_one_is_said_once_and_built_again(tmp_path):
    path = tmp_path / "a.so"
    path.write_bytes(b"\x7fELF")
    with pytest.warns(RollerWarning, match="was damaged"):
        assert load_cached_library(path) is None
    assert load_cached_library(path) is None
    assert load_cached_library(tmp_path / "absent.so") is None


def test_a_pipe_in_its_place_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "a.so")
    with pytest.raises(UntrustedFileError, match="no file"):
        read_verified_library(tmp_path / "a.so")


@every("mode", [0o777, 0o722, 0o702, 0o1777])
def test_a_folder_that_others_write_is_refused(mode, tmp_path):
    folder = tmp_path / "cache"
    folder.mkdir()
    folder.chmod(mode)
    with pytest.raises(UntrustedFileError, match="others can write"):
        check_folder_trusted(folder)


def test_a_folder_of_another_user_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: _OTHER)
    if tmp_path.stat().st_uid == 0:  # root may do anything anyway
        os.chown(tmp_path, _OTHER + 1, -1)
    with pytest.raises(UntrustedFileError, match="of another user"):
        check_folder_trusted(tmp_path)


def test_a_folder_is_made_for_this_user_alone(tmp_path):
    before = os.umask(0)
    try:
        make_trusted_folder(tmp_path / "a" / "b")
    finally:
        os.umask(before)
    assert [(tmp_path / x).stat().st_mode & 0o777 for x in ("a", "a/b")] == [0o700, 0o700]


@pytest.mark.slow
def test_the_runner_of_a_cache_that_others_write_is_not_loaded(cache_dir, monkeypatch):
    image = load_or_build_runner_image()
    (kept_file,) = (cache_dir / "runner").glob("*.so")
    write_library_with_checksum(kept_file, b"code of somebody else")
    cache_dir.chmod(0o777)
    with pytest.warns(RollerWarning, match="only you can write"):
        assert load_or_build_runner_image() == image


@pytest.mark.slow
def test_a_runner_that_was_cut_short_is_compiled_again(cache_dir):
    image = load_or_build_runner_image()
    (kept_file,) = (cache_dir / "runner").glob("*.so")
    kept_file.write_bytes(kept_file.read_bytes()[: len(image) // 2])
    with pytest.warns(RollerWarning, match="was damaged"):
        assert load_or_build_runner_image() == image
    assert read_verified_library(kept_file) == image
    assert load_runner(image).launch


def test_clearing_removes_libraries_too(cache_dir):
    for name in ("runner", "emulator"):
        write_library_with_checksum(make_trusted_folder(cache_dir / name) / "a.so", b"code")
    KernelCache().clear()
    assert not list(cache_dir.glob("runner/*")) and not list(cache_dir.glob("emulator/*"))


@pytest.mark.slow
def test_kernels_of_a_cache_that_others_write_are_not_loaded(cache_dir):
    import roller

    expr = roller.ops.reduce("sum", (4, 8), 1)
    roller.compile(expr, top_k=1, deterministic=True)
    assert KernelCache().info()["entries"] == 1
    cache_dir.chmod(0o777)
    for ask in (KernelCache().info, KernelCache().clear):
        with pytest.raises(ArtifactError, match=r"expected a cache that only you can write, got one that others can"):
            ask()
    with pytest.warns(RollerWarning, match=r"only you can write, .* \(mode 777\).*chmod go-w"):
        kernel = roller.compile(expr, top_k=1, deterministic=True)
    np.testing.assert_allclose(kernel(np.ones((4, 8), np.float32)), np.full(4, 8.0))
    assert kernel.cached_at is None


def test_notes_of_a_folder_that_others_write_are_not_read(cache_dir):
    assert write_small_result(cache_dir, "a", {"x": 1}) and read_small_result(cache_dir, "a") == {"x": 1}
    cache_dir.chmod(0o777)
    assert read_small_result(cache_dir, "a") == {} and not write_small_result(cache_dir, "b", {})


_SOURCE = 'extern "C" int answer() { return 42; }\n'


@pytest.mark.slow
def test_a_library_of_the_emulator_that_was_cut_short_is_built_again(tmp_path):
    assert build_library.load_library(_SOURCE, False, tmp_path).answer() == 42
    for path in tmp_path.iterdir():
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    build_library._build_or_load_cached.cache_clear()
    with pytest.warns(RollerWarning, match="was damaged"):
        assert build_library.load_library(_SOURCE, False, tmp_path).answer() == 42
    tmp_path.chmod(0o777)
    with pytest.raises(EmulationError, match="only you can write"):
        build_library.load_library(_SOURCE, False, tmp_path)


@pytest.mark.slow
def test_a_library_that_is_cut_short_while_it_runs_kills_nobody(tmp_path):
    code = f"""
from pathlib import Path
from roller.emulator import build_library
loaded = build_library.load_library({_SOURCE!r}, False, {str(tmp_path)!r})
for path in Path({str(tmp_path)!r}).iterdir():
    path.write_bytes(b"")
assert loaded.answer() == 42
"""
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_the_folder_of_the_emulator_is_that_of_the_cache(cache_dir, monkeypatch):
    monkeypatch.delenv("ROLLER_EMULATOR_DIR")
    assert build_library.default_cache_folder() == cache_dir / "emulator"
    cache_dir.mkdir()
    cache_dir.chmod(0o777)
    with pytest.warns(RollerWarning, match="only you can write"):
        assert build_library._cache_folder_or_none(None) is None  # and what is built is not kept
