"""Cached models with dynamic sizes: found again, right at sizes that were not proven before, never stale or foreign."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import numpy as np
import onnx
import pytest

import roller
from roller.models import compile_for_ranges
from roller.runtime.cache import KernelCache

TEXT = """<ir_version: 8, opset_import: ["": 17]>
product (float[rows, 24] x) => (float[rows, 33] y) { y = MatMul(x, w) }"""
SHAPES = {"x": (("rows", 1, 30), 24)}


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("ROLLER_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache" / "ranges"


def weights(seed):
    return np.random.default_rng(seed).integers(-4, 5, (24, 33)).astype("float32")


def model(seed=0):
    made = onnx.parser.parse_model(TEXT)
    made.graph.initializer.append(onnx.numpy_helper.from_array(weights(seed), "w"))
    return made.SerializeToString()


def compiled(seed=0, **options):
    return roller.compile_model(model(seed), shapes=SHAPES, deterministic=True, **options)


def right(session, seed=0, rows=range(1, 31)):
    for n in rows:
        x = np.random.default_rng(n).integers(-4, 5, (n, 24)).astype("float32")
        np.testing.assert_array_equal(session.run(x), x @ weights(seed))


@pytest.fixture
def no_compiling(monkeypatch):
    def fail(*arguments, **options):
        raise AssertionError("compiled again")

    def forbid():
        monkeypatch.setattr(compile_for_ranges, "generalise_and_compile", fail)

    return forbid


def test_the_second_compilation_is_read(cache, no_compiling):
    first = compiled()
    right(first, rows=(3, 30))
    (entry,) = cache.iterdir()
    no_compiling()
    again = compiled()
    assert again.ranges == first.ranges and repr(again) == repr(first)
    roller.compile_model(model(), shapes={"x": (("rows", range(1, 31)), 24)}, deterministic=True)
    right(again)
    assert all(s.predicted_s > 0 for s in again.profile({"x": np.ones((7, 24), "float32")}, repeats=2).steps)
    with pytest.raises(AssertionError, match="compiled again"):
        compiled(seed=1)
    with pytest.raises(AssertionError, match="compiled again"):
        compiled(threads=1)
    with pytest.raises(AssertionError, match="compiled again"):
        compiled(cache=False)
    KernelCache().clear()
    assert not entry.exists()


def test_cached_sessions_are_saved_with_proofs(cache, no_compiling, tmp_path):
    compiled()
    no_compiling()
    right(roller.load_model(compiled().save(tmp_path / "saved")))
    assert not (tmp_path / "saved" / "prover.pickle").exists()


def test_damaged_entries_are_compiled_again(cache):
    compiled()
    (entry,) = cache.iterdir()
    for name in ("model.json", "ranges.json", "prover.pickle", "kernels/0000.so"):
        data = bytearray((entry / name).read_bytes())
        data[len(data) // 2] ^= 1
        (entry / name).write_bytes(data)
        right(compiled(), rows=(5,))
        assert (entry / name).read_bytes() != data


def test_what_others_can_write_is_not_read(cache):
    compiled()
    (entry,) = cache.iterdir()
    cache.chmod(0o777)
    (entry / "model.json").write_text("{}")
    right(compiled(), rows=(5,))
    assert (entry / "model.json").read_text() == "{}"


def test_a_cached_session_starts_without_a_compiler(cache, tmp_path):
    (tmp_path / "m.onnx").write_bytes(model())
    code = """
    import sys
    import numpy as np
    import roller
    session = roller.compile_model("m.onnx", shapes={"x": (("rows", 1, 30), 24)}, deterministic=True)
    print("tvm" in sys.modules)
    assert session.run(np.ones((17, 24), "float32")).shape == (17, 33)
    """
    command = [sys.executable, "-c", textwrap.dedent(code)]
    found = [subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=True) for _ in range(2)]
    assert [done.stdout.split() for done in found] == [["True"], ["False"]]
