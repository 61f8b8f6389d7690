"""Kernels for ranges, saved: right at drawn sizes without a compiler, and refused if anything is wrong with them."""

from __future__ import annotations

import json
import pickle
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import roller
import roller_runtime
from roller.compiler.dynamic.dynamic_axes import parse_dynamic_axes
from roller.compiler.dynamic.kernel import VaryingKernel
from roller.compiler.dynamic.loaded_kernel import LoadedRangeKernel
from roller.compiler.dynamic.operator_session import _session_sizes
from roller.compiler.dynamic.symbolic_call import SymbolicRange
from roller.errors import ArtifactError, LaunchError, NoCandidateError, RollerError
from roller_runtime.storage.verified_container import SAVED

ROOT = Path(__file__).resolve().parents[3]
OPS = roller.ops
#: Fails if a saved kernel needs the compiler, or anything that the wheel of roller-runtime does not install.
ALONE = """
import sys
for name in ("roller", "yaml", "typer", "rich", "onnx", "platformdirs", "ml_dtypes"):
    sys.modules[name] = None  # any import of it raises
import numpy as np
import roller_runtime
session = roller_runtime.load_model(sys.argv[1])
(found,) = session.run(dict(np.load(sys.argv[2]))).values()
np.save(sys.argv[3], found)
assert not {"tvm", "tvm_ffi"} & set(sys.modules)  # where they are installed, their libraries are used
"""
#: The same for ``roller.load``; there is no C compiler either.
LOADED = """
import os, sys
os.environ["PATH"] = ""
import numpy as np
import roller
arrays = np.load(sys.argv[2])
np.save(sys.argv[3], roller.load(sys.argv[1])(*(arrays[n] for n in arrays)))
assert not {"tvm", "tvm_ffi", "roller.construction", "roller.runtime"} & set(sys.modules)
"""


def arrays_of(expr, seed=0):
    rng = np.random.default_rng(seed)
    return [rng.integers(-8, 9, t.shape).astype(t.dtype) for t in expr.inputs]


def saved(make, shapes, folder, **options):
    """Return the kernel of an expression, and the folder that it is saved in."""
    kernel = roller.compile(make(**dict.fromkeys(shapes, 9)), shapes=shapes, deterministic=True, **options)
    return kernel, kernel.save(folder)


def rows_and_columns(i, j):
    return OPS.matmul(i, j, 5, epilogue=("relu",))


@pytest.mark.parametrize(
    ("expr", "shapes", "inputs", "ends", "derived"),
    [
        (OPS.matmul(8, 9, 5), {"i": (1, 7), "j": (2, 9)}, {"A": ("i", 5), "B": (5, "j")}, {"i": (1, 7), "j": (2, 9)},
         {}),
        (OPS.conv2d(1, 3, 9, 7, 4, 3, 3, stride=2), {"ho": (1, 9)}, {"X": (1, 3, "X_2", 7), "W": (4, 3, 3, 3)},
         {"X_2": (3, 19)}, {"ho": "floor((X_2 - 1) / 2)"}),
        # The summand has the height of the result: the image's follows it.
        (OPS.conv2d(1, 3, 9, 7, 4, 3, 3, stride=2, epilogue=("add",)), {"ho": (1, 9)},
         {"X": (1, 3, "X_2", 7), "W": (4, 3, 3, 3), "residual": (1, 4, "ho", 3)}, {"ho": (1, 9)},
         {"X_2": "2 * ho + 1"}),
    ],
    ids=["product", "image", "image and summand"],
)  # fmt: skip
def test_sizes_of_sessions_are_dimensions_of_inputs(expr, shapes, inputs, ends, derived):
    varies = parse_dynamic_axes(expr, shapes)
    found = _session_sizes(varies.at, varies.box, frozenset())
    assert (found.inputs, found.ends) == (inputs, ends)
    assert {n: str(f) for n, f in found.derived.items()} == derived


@pytest.fixture(scope="module")
def product(tmp_path_factory):
    """A product of two sizes that vary."""
    return saved(rows_and_columns, {"i": (1, 12), "j": (1, 9)}, tmp_path_factory.mktemp("saved") / "product")


@pytest.fixture
def copied(product, tmp_path):
    """A copy of the product's folder, to be changed."""
    return shutil.copytree(product[1], tmp_path / "copy")


def right_at(loaded, make, sizes, seed=0, tolerance=1e-5):
    expr = make(**sizes)
    given = arrays_of(expr, seed)
    (meant,) = expr.evaluate(given)
    found = loaded(*given)
    np.testing.assert_allclose(found, meant, tolerance, tolerance * np.abs(meant).max(), err_msg=str(sizes))
    out = np.empty_like(found)
    assert loaded(*given, out=out) is out
    np.testing.assert_array_equal(out, found)


def test_a_loaded_kernel_is_right_at_every_size_and_needs_no_compiler(product, monkeypatch):
    kernel, folder = product
    assert isinstance(kernel, SymbolicRange)
    for module in ("roller.templates.cpu.emit.build_library.build_library", "roller.core.c_compiler.require_compiler"):
        monkeypatch.setattr(module, None)
    loaded = roller.load(folder)
    assert isinstance(loaded, LoadedRangeKernel) and loaded.ranges == kernel.ranges and loaded.name == "matmul"
    assert repr(loaded).startswith("<LoadedRangeKernel matmul: i from 1 to 12, j from 1 to 9, ")
    for i in range(1, 13):
        for j in range(1, 10):
            right_at(loaded, rows_and_columns, {"i": i, "j": j}, i)
    a, b = arrays_of(rows_and_columns(7, 3))
    np.testing.assert_array_equal(loaded.at(7, 3)(a, b), kernel(a, b))
    np.testing.assert_array_equal(loaded.at(i=7, j=3)(a, b), kernel(a, b))


def test_the_folder_is_also_that_of_a_session(product, tmp_path):
    kernel, folder = product
    a, b = arrays_of(rows_and_columns(5, 7))
    for load in (roller.load_model, roller_runtime.load_model):
        session = load(folder)
        np.testing.assert_array_equal(session.run({"A": a, "B": b})["C"], kernel(a, b))
        assert [(t.name, t.shape) for t in session.inputs] == [("A", ("i", 5)), ("B", (5, "j"))]
        assert [(t.name, t.shape) for t in session.outputs] == [("C", ("i", "j"))]
    assert session.metrics().calls == 1 and session.profile({"A": a, "B": b}, repeats=2).steps
    found = roller_runtime.verify_saved_model(roller.load(folder, threads=1).save(tmp_path / "again", sources=False))
    assert (found.format_version, found.name) == (3, "matmul") and found.ranges == {"i": (1, 12, 1), "j": (1, 9, 1)}


@pytest.mark.parametrize("script", [ALONE, LOADED], ids=["roller_runtime", "roller"])
def test_a_saved_kernel_runs_in_a_process_without_a_compiler(script, product, tmp_path):
    kernel, folder = product
    arrays = arrays_of(rows_and_columns(11, 3))
    np.savez(tmp_path / "given.npz", **dict(zip("AB", arrays, strict=True)))
    words = [sys.executable, "-c", script, str(folder), str(tmp_path / "given.npz"), str(tmp_path / "found.npy")]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    np.testing.assert_array_equal(np.load(tmp_path / "found.npy"), kernel(*arrays))


def test_what_a_call_may_not_have_is_said(product):
    loaded = roller.load(product[1])
    a, b = arrays_of(rows_and_columns(5, 7))
    with pytest.raises(LaunchError, match="'i' from 1 to 12, got 13"):
        loaded(np.ones((13, 5), "float32"), b)
    with pytest.raises(LaunchError, match="expected 2 arrays"):
        loaded(a)
    with pytest.raises(LaunchError, match="expected dtype float32"):
        loaded(a.astype("float64"), b)
    with pytest.raises(LaunchError, match="threads"):
        roller.load(product[1], threads=0)
    with pytest.raises(RollerError, match="code and memory of this process"):
        pickle.dumps(loaded)


def test_folders_that_were_changed_are_refused(copied):
    manifest = copied / SAVED.manifest
    body = json.loads(manifest.read_text())
    for name in ("ranges.json", body["kernels"][0]["file"], "runner.so"):
        path = copied / name
        whole = path.read_bytes()
        path.write_bytes(whole[:-9] + bytes([whole[-9] ^ 1]) + whole[-8:])
        for load in (roller.load, roller_runtime.load_model, roller_runtime.verify_saved_model):
            with pytest.raises(ArtifactError, match="altered or damaged"):
                load(copied)
        path.write_bytes(whole)
    manifest.write_text(manifest.read_text().replace('"cores"', '"Cores"'))
    with pytest.raises(ArtifactError, match="altered or damaged"):
        roller.load(copied)
    manifest.write_text(json.dumps(SAVED.with_checksum({**body, SAVED.key: SAVED.version + 1})))
    with pytest.raises(ArtifactError, match=r"expected version 3 or 2, got 4. Upgrade roller"):
        roller.load(copied)
    (copied / "ranges.json").unlink()
    with pytest.raises(ArtifactError):
        roller.load(copied)


def test_what_is_no_saved_kernel_is_refused(product, tmp_path):
    with pytest.raises(ArtifactError, match="exists and is not empty"):
        product[0].save(product[1])
    with pytest.raises(ArtifactError, match="proofs: expected a number of at least 1"):
        product[0].save(tmp_path / "new", proofs=0)
    with pytest.raises(ArtifactError, match="cannot read"):
        roller.load(tmp_path)
    assert not (tmp_path / "new").exists()


def test_sizes_without_a_correct_kernel_are_not_saved(product, tmp_path):
    kernel = product[0]
    priced = [replace(j, kernel=replace(j.kernel, low={"i": 2, "j": 2})) for j in kernel.priced]
    other = SymbolicRange(kernel.varies, kernel.expression, priced, kernel._best, kernel.spec)
    with pytest.raises(NoCandidateError, match="expected a kernel for all sizes, got none that is correct for 20 "):
        other.save(tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_a_kernel_whose_code_reads_the_extent_is_saved_with_its_table(tmp_path):
    def make(i):
        return OPS.matmul(i, 9, 5, epilogue=("bias",))

    b = np.random.default_rng(3).integers(-8, 9, (5, 9)).astype("float32")
    kernel, folder = saved(make, {"i": (1, 14)}, tmp_path / "rows", constants={"B": b})
    assert isinstance(kernel, VaryingKernel)
    loaded = roller.load(folder)
    bias = np.arange(9, dtype="float32")
    for i in range(1, 15):
        a = np.random.default_rng(i).integers(-8, 9, (i, 5)).astype("float32")
        np.testing.assert_array_equal(loaded(a, bias), a.astype(float) @ b + bias)
    assert loaded.session.profile({"A": a, "bias": bias}, repeats=2).steps[0].predicted_s > 0
    with pytest.raises(LaunchError, match="'i' from 1 to 14, got 15"):
        loaded(np.ones((15, 5), "float32"), bias)
    (folder / "arrays.bin").write_bytes((folder / "arrays.bin").read_bytes()[:-1] + b"?")
    with pytest.raises(ArtifactError):
        roller_runtime.verify_saved_model(folder)


def test_sizes_of_images_are_those_of_the_input(tmp_path):
    """No array has the height of the result, which the height of the image determines."""

    def make(ho):
        return OPS.conv2d(1, 3, 2 * ho + 1, 7, 4, 3, 3, stride=2)

    _, folder = saved(make, {"ho": (1, 9)}, tmp_path / "image")
    loaded = roller.load(folder)
    assert loaded.ranges == {"X_2": (3, 19)} and loaded.session.inputs[0].shape == (1, 3, "X_2", 7)
    for ho in range(1, 10):
        right_at(loaded, make, {"ho": ho}, ho)
    for refused in (lambda: loaded(np.ones((1, 3, 8, 7), "float32"), np.ones((4, 3, 3, 3), "float32")),
                    lambda: loaded.at(X_2=8)):  # fmt: skip
        with pytest.raises(LaunchError, match=r"such as \(1, 3, 7, 7\), got \(1, 3, 8, 7\)"):
            refused()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("make", "shapes", "proofs"),
    [
        (lambda i, j: OPS.matmul(i, j, 33, epilogue=("bias",)), {"i": (1, 300), "j": (1, 200)}, 100),
        (lambda i: OPS.matmul(i, 48, 24), {"i": (1, 300)}, 500),
        (lambda d0, d1: OPS.softmax((d0, d1)), {"d0": (1, 40), "d1": (2, 100)}, 100),
        (lambda d0: OPS.layer_norm((d0, 48)), {"d0": (1, 64)}, 500),
        (lambda d0, d1, d2: OPS.elementwise("add", (d0, d1, d2)), {"d0": (1, 40), "d1": (1, 33), "d2": (1, 50)}, 100),
        (lambda d0, d1: OPS.reduce("sum", (d0, d1), (1,)), {"d0": (1, 64), "d1": (2, 99)}, 100),
        (lambda n, ho, wo: OPS.conv2d(n, 5, ho, wo, 7, 3, 3, padding=1, epilogue=("bias", "relu")),
         {"n": (1, 3), "ho": (3, 40), "wo": (3, 40)}, 60),
        (lambda ho, wo: OPS.conv2d(1, 4, 2 * ho - 1, 2 * wo - 1, 6, 3, 3, stride=2, padding=1, epilogue=("bias",)),
         {"ho": (2, 40), "wo": (2, 40)}, 60),
        (lambda i: OPS.matmul(i, 24, 16, dtype="uint8", acc_dtype="int32"), {"i": (1, 63)}, 500),
    ],
    ids=["product", "rows", "softmax", "layer_norm", "sum of two", "sum over an axis", "image", "strided", "bytes"],
)  # fmt: skip
def test_saved_operators_are_right_at_drawn_sizes(make, shapes, proofs, tmp_path):
    kernel = roller.compile(make(**dict.fromkeys(shapes, 9)), shapes=shapes, deterministic=True)
    loaded = roller.load(kernel.save(tmp_path / "kernel", proofs=proofs, sources=False))
    draw = np.random.default_rng(5)
    ends = [{n: e[k] for n, e in shapes.items()} for k in (0, 1)]
    drawn = [{n: int(draw.choice([low, high, *draw.integers(low, high + 1, 3)])) for n, (low, high) in shapes.items()}
             for _ in range(40)]  # fmt: skip
    small = [{n: low + (m == n) for n, (low, _) in shapes.items()} for m in shapes]
    for seed, sizes in enumerate([*ends, *small, *drawn]):
        right_at(loaded, make, sizes, seed, 1e-4)
