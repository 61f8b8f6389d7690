"""The cache of kernels: what it finds, what it refuses, and what it does when its files are damaged."""

from __future__ import annotations

import errno
import os
import sqlite3
import subprocess
import sys
import time
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import roller
from roller.compiler import pipeline
from roller.core.cache_location import cache_folder
from roller.errors import ArtifactError, BuildError, NoCandidateError, RollerWarning
from roller.runtime import cache_key, content_addressed_files
from roller.runtime.cache import CacheKey, KernelCache, Measurement
from roller.runtime.cache_transfer import export_cache
from tests.runtime.cache_entries import make_entry, make_key

ROOT = Path(__file__).resolve().parents[2]
MATMUL = roller.ops.matmul(24, 20, 16)


def forbid_compiling(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        raise AssertionError("compiled again")

    monkeypatch.setattr(pipeline, "_compile_uncached", refuse)


def in_new_process(code: str, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, timeout=120, check=False,
        env={**os.environ, **environment},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("device", ["cpu", "v100"])
def test_second_compile_is_the_first(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    first = roller.compile(MATMUL, device=device, top_k=3)
    forbid_compiling(monkeypatch)
    again = roller.compile(roller.ops.matmul(24, 20, 16), device=device, top_k=3)
    assert again is not first
    assert again.artifact == first.artifact
    assert again.candidates == first.candidates
    assert len(again.candidates) == 3
    assert again.estimate == first.estimate
    assert repr(again) == repr(first)
    if device == "cpu":
        a, b = np.ones((24, 16), "f"), np.ones((16, 20), "f")
        assert (again(a, b) == 16).all()
    else:
        with pytest.raises(roller.RollerError, match="not this machine's device"):
            again(np.ones((24, 16), "f"), np.ones((16, 20), "f"))


def test_second_compile_in_a_new_process_needs_no_tvm_and_no_constructor() -> None:
    """``benchmarks/cache_hit.py`` measures how long it takes."""
    roller.compile(MATMUL, device="cpu", top_k=3)
    code = (
        "import sys, roller\n"
        "k = roller.compile(roller.ops.matmul(24, 20, 16), device='cpu', top_k=3)\n"
        "heavy = ('tvm', 'tvm_ffi', 'roller.templates.emit', 'roller.construction.constructor', 'roller.perf')\n"
        "print(k.measured_s > 0, [m for m in heavy if m in sys.modules])\n"
    )
    assert in_new_process(code).strip() == "True []"


def test_cache_false_neither_reads_nor_writes(cache_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    roller.compile(MATMUL, device="v100", top_k=1, cache=False)
    assert not cache_dir.exists()
    roller.compile(MATMUL, device="v100", top_k=1)
    forbid_compiling(monkeypatch)
    with pytest.raises(AssertionError, match="compiled again"):
        roller.compile(MATMUL, device="v100", top_k=1, cache=False)


def test_what_decides_the_kernel_is_in_the_key(monkeypatch: pytest.MonkeyPatch) -> None:
    ops, v100 = roller.ops, roller.load_spec("v100")
    compiled: list[str] = []
    real = pipeline._compile_uncached

    def counting(*arguments: Any) -> Any:
        compiled.append(str(arguments[0]))
        return real(*arguments)

    monkeypatch.setattr(pipeline, "_compile_uncached", counting)
    relu = ops.elementwise("relu", (17, 11, 3))
    calls: list[dict[str, Any]] = [
        {"expr": relu, "device": v100},
        {"expr": ops.elementwise("relu", (561,)), "device": v100},
        {"expr": ops.elementwise("relu", (17, 11, 3), dtype="float16"), "device": v100},
        {"expr": relu, "device": roller.load_spec("v100", {"units": 40})},
        {"expr": relu, "device": v100, "options": roller.ConstructOptions(top_k=1, axis_fusion=False)},
        {"expr": relu, "device": v100, "top_k": 2},
    ]
    for n, call in enumerate(calls, 1):
        expr = call.pop("expr")
        roller.compile(expr, **{"top_k": None if "options" in call else 1, **call})
        assert len(compiled) == n, f"call {n} was served the kernel of another"
    assert roller.compile(relu, device=v100, top_k=1, seed=7).artifact.inputs[0].shape == (561,)
    assert len(compiled) == len(calls), "the seed changes no kernel"
    monkeypatch.setattr(pipeline, "TEMPLATE_VERSION", pipeline.TEMPLATE_VERSION + 1)
    roller.compile(relu, device=v100, top_k=1)
    assert len(compiled) == len(calls) + 1


def test_code_is_in_the_key() -> None:
    assert CacheKey.of(MATMUL, "s", 1, {}, "old").digest != CacheKey.of(MATMUL, "s", 1, {}, "new").digest
    assert CacheKey.of(MATMUL, "s", 1, {}).parts["code"] == CacheKey.of(MATMUL, "s", 1, {}).parts["code"] != ""


def test_names_share_a_kernel_and_keep_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    roller.compile(MATMUL, device="v100", top_k=1)
    forbid_compiling(monkeypatch)
    other = replace(MATMUL, name="attention")
    kernel = roller.compile(other, device="v100", top_k=1)
    assert kernel.artifact.expression is other
    assert "attention on v100" in repr(kernel)


def test_failure_is_not_cached(monkeypatch: pytest.MonkeyPatch) -> None:
    def none(*_: Any) -> None:
        raise BuildError("planted")

    with monkeypatch.context() as patch:
        patch.setattr(pipeline, "lower", none)
        for _ in range(2):
            with pytest.raises(NoCandidateError, match="planted"):
                roller.compile(MATMUL, device="v100", top_k=1)
    assert "__global__" in roller.compile(MATMUL, device="v100", top_k=1).source


def test_measurement_beats_prediction() -> None:
    cache, key = KernelCache(), make_key(MATMUL)
    assert cache.store(key, make_entry(MATMUL, "predicted"))
    assert cache.load(key, measured=True) is None
    assert cache.store(key, make_entry(MATMUL, "measured", 1e-3))
    assert cache.store(key, make_entry(MATMUL, "predicted again"))
    found = cache.load(key)
    assert found is not None
    assert "// measured" in found.artifact.source
    assert cache.load(key, measured=True) == found == make_entry(MATMUL, "measured", 1e-3)


def test_measurements_are_appended_and_outlive_the_kernels() -> None:
    cache = KernelCache()
    assert cache.measurements() == ()
    before = time.time()
    for seconds in (1e-3, 2e-3):
        cache.store(make_key(MATMUL), make_entry(MATMUL, measured_s=seconds))
    found = cache.measurements("spec")
    assert [m.measured_s for m in found] == [1e-3, 2e-3]
    first = make_entry(MATMUL).candidates[0]
    assert {(m.candidate_id, m.device, m.status) for m in found} == {(first.id, "v100", "measured")}
    assert found[0].predicted_s == first.estimate["seconds"]
    assert before <= found[0].measured_at <= found[1].measured_at <= time.time()
    assert found[0].host == found[1].host != ""
    far = Measurement("c", "other", "h200", 3e-3, None, "measured", 5.0, "there", (("driver", "570"),))
    assert cache.add_measurements([far, far])
    assert cache.measurements("other") == (far,)
    assert cache.clear() == 2  # the file that the second result replaced goes here as well
    assert cache.load(make_key(MATMUL)) is None
    assert len(cache.measurements()) == 3
    cache.clear(measurements=True)
    assert cache.measurements() == ()
    assert cache.info()["entries"] == cache.info()["artifacts"] == 0


def artifact_file(cache: KernelCache) -> Path:
    (digest, _) = next(cache.files.digests_and_sizes())
    return cache.files.path(digest)


def truncate(cache: KernelCache) -> None:
    path = artifact_file(cache)
    path.write_bytes(path.read_bytes()[:-100])


def flip(cache: KernelCache) -> None:
    path = artifact_file(cache)
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(bytes(data))


def tamper(cache: KernelCache) -> None:
    with sqlite3.connect(cache.database.path) as db:
        db.execute("UPDATE entries SET candidates = replace(candidates, '\"constructed\"', '\"measured\"')")
    db.close()


DAMAGES = {
    "truncated": truncate,
    "bit flipped": flip,
    "missing": lambda cache: artifact_file(cache).unlink(),
    "empty": lambda cache: artifact_file(cache).write_bytes(b""),
    "row": tamper,
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_entry_is_reported_once_and_rebuilt(damage: str, monkeypatch: pytest.MonkeyPatch) -> None:
    first = roller.compile(MATMUL, device="v100", top_k=3)
    DAMAGES[damage](KernelCache())
    with pytest.warns(RollerWarning, match="the cached kernel of matmul for v100 was damaged") as caught:
        assert roller.compile(MATMUL, device="v100", top_k=3).artifact == first.artifact
    assert len(caught) == 1
    forbid_compiling(monkeypatch)
    again = roller.compile(MATMUL, device="v100", top_k=3)
    assert again.artifact == first.artifact
    assert again.candidates == first.candidates


@pytest.mark.parametrize("number", [errno.EMFILE, errno.EACCES, errno.EIO])
def test_what_cannot_be_read_now_is_not_damaged(number: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Minutes of measuring are not thrown away because too many files are open."""
    cache, key, entry = KernelCache(), make_key(MATMUL, str(number)), make_entry(MATMUL, "measured", 1e-3)
    cache.store(key, entry)
    looks: list[bytes] = []

    def unreadable(path: Path) -> bytes:
        raise OSError(number, os.strerror(number), str(path))

    with monkeypatch.context() as patch:
        patch.setattr(content_addressed_files, "read_file", lambda path: looks.pop() if looks else unreadable(path))
        with pytest.warns(RollerWarning, match="cache folder that can be read") as caught:
            assert cache.load(key) is None
            assert cache.artifacts([key]) == {}
        assert len(caught) == 1, "said once"
        with pytest.raises(ArtifactError, match="cache folder that can be read"):
            export_cache(cache, tmp_path / "kernels.tar")
        looks.append(b"damaged at the first look, and not to be read at the second")
        with pytest.warns(RollerWarning, match="was damaged"):
            assert cache.load(key) is None
    assert cache.load(key, measured=True) == entry


def test_an_index_that_cannot_be_opened_now_is_not_moved_aside(monkeypatch: pytest.MonkeyPatch) -> None:
    cache = KernelCache()
    cache.store(make_key(MATMUL), make_entry(MATMUL))

    def closed(*_: Any) -> Any:
        raise sqlite3.OperationalError("unable to open database file")

    with monkeypatch.context() as patch:
        patch.setattr(cache.database, "_connect", closed)
        with pytest.raises(sqlite3.OperationalError):
            cache.database.set_aside_if_damaged()
    assert cache.info()["damaged_databases"] == [] and cache.info()["entries"] == 1


@pytest.mark.parametrize("damage", ["garbage", "header", "middle", "a table is gone"])
def test_damaged_index_is_moved_aside_and_rebuilt(damage: str, monkeypatch: pytest.MonkeyPatch) -> None:
    first = roller.compile(MATMUL, device="v100", top_k=3)
    cache = KernelCache()
    path = cache.database.path
    data = path.read_bytes()
    if damage == "a table is gone":
        with sqlite3.connect(path) as db:
            db.execute("DROP TABLE entries")
        db.close()
    elif damage == "garbage":
        path.write_bytes(b"\xa5" * len(data))
    elif damage == "header":
        path.write_bytes(b"\0" * 100 + data[100:])
    else:
        path.write_bytes(data[:4096] + b"\xa5" * (len(data) - 4096))
    damaged = path.read_bytes()
    with pytest.warns(RollerWarning, match="the index of the cache was damaged") as caught:
        assert roller.compile(MATMUL, device="v100", top_k=3).artifact == first.artifact
    assert len(caught) == 1
    (aside,) = cache.info()["damaged_databases"]
    assert (cache.folder / aside).read_bytes() == damaged
    forbid_compiling(monkeypatch)
    assert roller.compile(MATMUL, device="v100", top_k=3).candidates == first.candidates


def test_empty_index_is_an_empty_cache() -> None:
    first = roller.compile(MATMUL, device="v100", top_k=1)
    KernelCache().database.path.write_bytes(b"")
    assert roller.compile(MATMUL, device="v100", top_k=1).artifact == first.artifact
    assert KernelCache().info()["entries"] == 1


def test_unusable_folder_is_reported_once_and_compiling_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("not a folder")
    monkeypatch.setenv("ROLLER_CACHE_DIR", str(tmp_path / "file" / "cache"))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(2):
            assert "__global__" in roller.compile(MATMUL, device="v100", top_k=1).source
    (only,) = caught
    assert only.category is RollerWarning
    assert str(only.message).startswith(f"{tmp_path}/file/cache: expected a cache folder that can be read and written")
    assert "set ROLLER_CACHE_DIR to a writable folder, or pass cache=False" in str(only.message)
    assert KernelCache().clear() == 0


READ_ONLY = """
import os, warnings, roller
from roller.compiler import pipeline
expr = roller.ops.matmul(24, 20, 16)
roller.compile(expr, device='v100', top_k=1)
for folder, _, files in os.walk(os.environ['ROLLER_CACHE_DIR']):
    os.chmod(folder, 0o555)
    for name in files:
        os.chmod(os.path.join(folder, name), 0o444)
if os.geteuid() == 0:
    os.seteuid(65534)  # permissions do not bind root
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter('always')
    roller.compile(roller.ops.matmul(24, 20, 8), device='v100', top_k=1)
    roller.compile(roller.ops.matmul(24, 20, 4), device='v100', top_k=1)
    print([w.category.__name__ for w in caught])
pipeline._compile = None  # a hit calls nothing
print(roller.compile(expr, device='v100', top_k=1).artifact.device)
"""


def test_read_only_folder_is_read_and_reported_once() -> None:
    import shutil
    import tempfile

    folder = Path(tempfile.mkdtemp(prefix="roller-read-only-"))  # pytest's own folders are closed to other users
    try:
        folder.chmod(0o755)
        out = in_new_process(READ_ONLY, ROLLER_CACHE_DIR=str(folder / "cache"))
        assert out.split() == ["['RollerWarning']", "v100"]
    finally:
        for path in [folder, *folder.rglob("*")]:
            path.chmod(0o755)
        shutil.rmtree(folder)


def test_location(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("ROLLER_CACHE_DIR", "~/kernels")
    assert cache_folder() == Path.home() / "kernels"
    monkeypatch.delenv("ROLLER_CACHE_DIR")
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_folder() == tmp_path / "roller"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    assert cache_folder() == Path.home() / ".cache" / "roller"
    monkeypatch.setattr(sys, "platform", "other")
    monkeypatch.setitem(sys.modules, "platformdirs", None)
    assert cache_folder() == Path.home() / ".cache" / "roller"


def test_leftovers_of_killed_writers_are_removed() -> None:
    cache = KernelCache()
    cache.store(make_key(MATMUL), make_entry(MATMUL))
    old, young, lock = cache.folder / "tmp" / "old", cache.folder / "tmp" / "young", cache.folder / "locks" / "k.lock"
    for path in (old, young, lock):
        path.write_bytes(b"x")
    os.utime(old, (1, 1))
    cache.store(make_key(MATMUL, "other"), make_entry(MATMUL, "other"))
    assert (old.exists(), young.exists()) == (False, True)
    cache.clear()
    assert not young.exists() and not lock.exists()


def test_parts_that_decide_a_kernel_are_there():
    packages = Path(roller.__file__).parents[1]
    assert [part for part in (*cache_key._DECIDING, *cache_key.ALL_CODE) if not (packages / part).exists()] == []
