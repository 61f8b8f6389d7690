"""What the cache holds, dropping one kernel, and its size limit: the least recently used goes, whoever is at it."""

from __future__ import annotations

import math
import os
import subprocess
import sys
import time
import warnings
from dataclasses import replace
from pathlib import Path

import pytest

import roller
from roller.errors import ArtifactError, NoCandidateError, RollerError, RollerWarning
from roller.runtime.cache import KernelCache
from roller.runtime.cache_limit import DEFAULT_BYTES, parse_size, read_limit_and_origin, set_limit
from roller.runtime.list_and_drop_cached_kernels import (
    drop_kernel,
    list_cached_kernels,
    remove_if_wrong,
    remove_wrong_kernel_on_failure,
)
from tests.runtime.cache_entries import make_entry, make_key

RELU = roller.ops.elementwise("relu", (64,))
MATMUL = roller.ops.matmul(24, 20, 16)


def stored(cache: KernelCache, *labels: str, size: int = 0) -> list[str]:
    """Store a kernel per label, each used an hour after the one before; return the digests of their files."""
    found = []
    for n, label in enumerate(labels):
        key = make_key(RELU, label)
        cache.store(key, make_entry(RELU, label + "x" * size))
        row = cache.database.row(key.digest)
        assert row is not None
        found.append(row.artifact)
        at = time.time() - 3600 * (len(labels) - n)
        os.utime(cache.files.path(row.artifact), (at, at))
    return found


def doubtful(measured_s: float = 2e-3):
    entry = make_entry(MATMUL, "doubtful", measured_s)
    first = replace(entry.candidates[0], status="doubtful", reason="other programs")
    artifact = replace(entry.artifact, build={"doubt": "its time is doubtful"})
    return replace(entry, artifact=artifact, candidates=(first, *entry.candidates[1:]))


def test_holdings_say_what_is_there_and_how_it_was_chosen() -> None:
    cache = KernelCache()
    assert list_cached_kernels(cache) == []
    checked = make_entry(MATMUL, "checked")
    checked = replace(checked, candidates=(replace(checked.candidates[0], status="checked"), *checked.candidates[1:]))
    entries = {"measured": make_entry(MATMUL, "m", 1e-3), "predicted": make_entry(MATMUL, "p"), "checked": checked,
               "doubtful": doubtful()}  # fmt: skip
    before = time.time()
    for label, entry in entries.items():
        assert cache.store(make_key(MATMUL, label), entry)
    found = {h.status: h for h in list_cached_kernels(cache)}
    assert {s: h.key for s, h in found.items()} == {s: make_key(MATMUL, s).digest for s in entries}
    assert {s: h.measured_s for s, h in found.items()} == {
        "measured": 1e-3, "predicted": None, "checked": None, "doubtful": 2e-3,
    }  # fmt: skip
    h = found["measured"]
    assert (h.operator, h.arguments, h.device) == ("matmul", "24x16, 16x20 float32", "v100")
    assert before <= h.stored_at <= time.time() and h.used_at is not None and h.size_bytes > 100
    assert cache.info()["entries_measured"] == 2


def test_a_doubtful_kernel_is_measured_again_and_replaces_nothing_sure() -> None:
    cache, key = KernelCache(), make_key(MATMUL)
    assert cache.store(key, doubtful())
    assert cache.load(key, measured=True) is None, "not final"
    assert cache.measurements() == (), "no time a model may be held against"
    sure = make_entry(MATMUL, "sure", 1e-3)
    assert cache.load_or_build(key, lambda: sure, measured=True) == sure
    assert cache.store(key, doubtful())
    found = cache.load(key, measured=True)
    assert found == sure
    assert found is not None and found.stored_at is not None


def test_whoever_waits_takes_a_doubtful_result_but_nobody_later() -> None:
    """To measure once more on the same busy machine would tell no more than the process that was waited for."""
    cache, key, built = KernelCache(), make_key(MATMUL), []

    def build():
        built.append(1)
        return doubtful()

    before = time.time()
    cache.load_or_build(key, build, measured=True)
    assert cache.load(key, measured=True, since=before) == doubtful()
    assert list(cache.artifacts([key], measured=True, since=before)) == [key.digest]
    assert cache.artifacts([key], measured=True) == {}
    cache.load_or_build(key, build, measured=True)
    assert len(built) == 2


def test_anew_builds_whatever_there_is() -> None:
    cache, key = KernelCache(), make_key(MATMUL)
    cache.store(key, make_entry(MATMUL, "old", 1e-3))
    new = make_entry(MATMUL, "new", 2e-3)
    assert cache.load_or_build(key, lambda: new, measured=True, anew=True) == new
    assert cache.load(key, measured=True) == new


def test_one_kernel_is_dropped_and_a_file_that_two_share_stays() -> None:
    cache = KernelCache()
    (one, two), entry = (make_key(RELU, x) for x in "ab"), make_entry(RELU, "same")
    cache.store(one, entry)
    cache.store(two, entry)
    assert drop_kernel(cache, one.digest[:12]).key == one.digest
    assert cache.load(one) is None and cache.load(two) == entry
    with pytest.raises(ArtifactError, match=r"expected the beginning of a kernel's key, got '0000'\."):
        drop_kernel(cache, "0000")
    with pytest.raises(ArtifactError, match="expected the beginning"):
        drop_kernel(cache, "")
    drop_kernel(cache, two.digest.upper())
    assert list_cached_kernels(cache) == [] and list(cache.files.digests_and_sizes()) == []


def test_a_wrong_kernel_is_forgotten_and_one_that_took_its_place_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    cache, key, entry = KernelCache(), make_key(RELU), make_entry(RELU, "old")
    assert not remove_if_wrong(cache, key, lambda _: True), "nothing is kept"
    cache.store(key, entry)
    old = cache.database.row(key.digest)
    assert not remove_if_wrong(cache, key, lambda kernel: kernel != entry.artifact)
    assert cache.load(key) == entry
    with monkeypatch.context() as patch, pytest.raises(NoCandidateError), remove_wrong_kernel_on_failure(cache, key):
        new = make_entry(RELU, "new")
        cache.store(key, new)
        patch.setattr(cache.database, "row", lambda _: old)  # what was read before the other process stored its own
        raise NoCandidateError("all are wrong", (entry.artifact.program.digest,))
    assert cache.load(key) == new
    assert remove_if_wrong(cache, key, lambda kernel: kernel == new.artifact)
    assert cache.load(key) is None and list(cache.files.digests_and_sizes()) == []


def test_a_key_that_two_begin_with_is_refused() -> None:
    cache = KernelCache()
    stored(cache, *"abcdefghijklmnopq")
    keys = [h.key[0] for h in list_cached_kernels(cache)]
    twice = next(k for k in keys if keys.count(k) > 1)
    with pytest.raises(ArtifactError, match=f"expected one kernel, {keys.count(twice)} begin with '{twice}'"):
        drop_kernel(cache, twice)


def test_the_least_recently_used_goes_and_what_was_read_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    cache = KernelCache()
    files = stored(cache, "a", "b", "c", "d")
    (size,) = {s for _, s in cache.files.digests_and_sizes()}
    assert cache.load(make_key(RELU, "a")) is not None, "it is used just now"
    monkeypatch.setenv("ROLLER_CACHE_SIZE", str(int(3.5 * size)))
    assert cache.trim() == (1, size)
    assert {d for d, _ in cache.files.digests_and_sizes()} == {files[0], *files[2:]}
    assert cache.load(make_key(RELU, "b")) is None
    assert cache.store(make_key(RELU, "e"), make_entry(RELU, "e"))
    assert cache.load(make_key(RELU, "c")) is None
    assert all(cache.load(make_key(RELU, x)) is not None for x in "ade")
    monkeypatch.setenv("ROLLER_CACHE_SIZE", "1")
    assert cache.store(make_key(RELU, "f"), make_entry(RELU, "f"))
    assert [h.key for h in list_cached_kernels(cache)] == [make_key(RELU, "f").digest], "what was just made stays"


def test_looking_at_all_files_is_rare(monkeypatch: pytest.MonkeyPatch) -> None:
    cache, looked = KernelCache(), []
    real = cache.files.digests_and_sizes
    monkeypatch.setattr(cache.files, "digests_and_sizes", lambda: looked.append(1) or real())
    stored(cache, "a", "b", "c", "d")
    assert len(looked) == 1, "four kernels are nothing to 4 GiB"


def test_a_file_without_a_row_goes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process killed between removing rows and files leaves one."""
    cache = KernelCache()
    files = stored(cache, "a", "b")
    cache.database.forget([files[0]])
    assert cache.load(make_key(RELU, "a")) is None
    size = cache.files.path(files[1]).stat().st_size
    assert cache.trim(1.5 * size) == (1, size)
    assert [d for d, _ in cache.files.digests_and_sizes()] == [files[1]]


def test_a_reader_that_lost_the_race_is_no_damage(monkeypatch: pytest.MonkeyPatch) -> None:
    cache = KernelCache()
    stored(cache, "a")
    row = cache.database.row(make_key(RELU, "a").digest)
    cache.trim(0)
    monkeypatch.setattr(cache.database, "row", lambda key: row)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert cache.load(make_key(RELU, "a")) is None


def test_the_limit_is_of_the_variable_then_of_the_folder_then_the_default(
    cache_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert read_limit_and_origin(cache_dir) == (DEFAULT_BYTES, "the default")
    set_limit(cache_dir, 5e6)
    assert read_limit_and_origin(cache_dir) == (5e6, "roller cache limit")
    set_limit(cache_dir, math.inf)
    assert read_limit_and_origin(cache_dir) == (math.inf, "roller cache limit")
    monkeypatch.setenv("ROLLER_CACHE_SIZE", "2 GiB")
    assert read_limit_and_origin(cache_dir) == (float(2 << 30), "ROLLER_CACHE_SIZE")
    monkeypatch.setenv("ROLLER_CACHE_SIZE", "much")
    with pytest.raises(RollerError, match=r"ROLLER_CACHE_SIZE: expected a size like 500M or 4GiB, or none, got 'much'"):
        read_limit_and_origin(cache_dir)
    key = make_key(RELU)
    with pytest.warns(RollerWarning, match="ROLLER_CACHE_SIZE: expected a size"):
        assert KernelCache().store(key, make_entry(RELU)), "what was compiled is not lost by it"
    assert KernelCache().store(key, make_entry(RELU)), "said once"
    (cache_dir / "limit").write_bytes(b"\xff\xfe nonsense")
    monkeypatch.delenv("ROLLER_CACHE_SIZE")
    assert read_limit_and_origin(cache_dir)[0] == DEFAULT_BYTES, "a damaged one is as if it were not there"


@pytest.mark.parametrize(("text", "size"), [("0", 0), ("1k", 1024), ("1.5 MB", 1.5 * (1 << 20)), ("7TiB", 7 << 40)])
def test_sizes_are_read_as_people_write_them(text: str, size: float) -> None:
    assert parse_size(text, "limit") == size
    for wrong in ("-1", "1X", "M", "1e9", "", "nan"):
        with pytest.raises(RollerError, match="limit: expected a size like"):
            parse_size(wrong, "limit")


WRITER = """
import itertools, sys, warnings
warnings.simplefilter("error")
import roller
from roller.runtime.cache import KernelCache
from tests.runtime.cache_entries import make_entry, make_key
relu, cache = roller.ops.elementwise("relu", (64,)), KernelCache()
trim, trims = cache.trim, 0
def told(*arguments, **options):
    global trims
    removed = trim(*arguments, **options)
    trims += removed[0] > 0
    if trims == 3:
        print("trimmed", flush=True)
    return removed
cache.trim = told
for n in itertools.count():
    label = f"{sys.argv[1]}/{n % 7}"
    assert cache.store(make_key(relu, label), make_entry(relu, label))
    found = cache.load(make_key(relu, label))
    assert found is None or label in found.artifact.source
"""


def test_writers_that_trim_at_the_same_time_and_are_killed_leave_a_sound_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    cache = KernelCache()
    stored(cache, "a")
    (size,) = {s for _, s in cache.files.digests_and_sizes()}
    monkeypatch.setenv("ROLLER_CACHE_SIZE", str(5 * size))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(["", *filter(None, sys.path)])[1:])
    writers = [
        subprocess.Popen([sys.executable, "-c", WRITER, str(n)], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        for n in range(3)
    ]
    for w in writers:  # however long it takes them on a busy machine
        assert w.stdout is not None and w.stdout.readline() == b"trimmed\n"
    for w in writers:
        w.kill()
        _, err = w.communicate()
        assert not err, err.decode()
    rows = cache.rows()
    assert all(r.sum() == r.checksum for r in rows)
    # A writer that was killed before it trimmed leaves one kernel more than the limit has room for.
    assert len(rows) <= 5 + len(writers)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        cache.trim(2 * size)
        kept = [h for h in list_cached_kernels(cache) if h.used_at is not None]
        assert len(kept) <= 2
