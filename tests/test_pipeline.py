"""The road end to end: compile, check, time, run, save, load; and every stage's clear refusal."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import roller
from roller.compiler import pipeline
from roller.errors import BuildError, ExprError, LaunchError, NoCandidateError, RollerError, SpecError, TileError
from roller.runtime.check import check
from roller.runtime.random_inputs import random_inputs
from tests.offenders import every


class OnlyDlpack:
    """An array that offers nothing but DLPack."""

    def __init__(self, array: np.ndarray) -> None:
        self.array = array

    def __dlpack__(self, **kwargs: Any) -> Any:
        return self.array.__dlpack__(**kwargs)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.array.__dlpack_device__()


@pytest.fixture(scope="module")
def matmul() -> roller.CompiledKernel:
    return roller.compile(roller.ops.matmul(33, 47, 29), device="cpu", top_k=3)


def test_compile_runs_checks_and_times(matmul: roller.CompiledKernel) -> None:
    a, b = random_inputs(matmul.artifact.expression)
    assert check(matmul.artifact.expression, [a, b], matmul(a, b)).ok
    assert len(matmul.candidates) == 3
    assert all(c.status in ("measured", "slower") for c in matmul.candidates)
    times = [c.measured_s for c in matmul.candidates if c.measured_s is not None]
    assert matmul.measured_s == min(times)
    assert matmul.program in [c.program for c in matmul.candidates]
    assert matmul.estimate.seconds > 0
    assert "main" in matmul.source


def test_out_and_dlpack(matmul: roller.CompiledKernel) -> None:
    a, b = random_inputs(matmul.artifact.expression)
    expected = matmul(a, b)
    out = np.zeros((33, 47), np.float32)
    assert matmul(OnlyDlpack(a), OnlyDlpack(b), out=out) is out
    assert np.array_equal(out, expected)


def test_loaded_kernel_needs_no_tvm(matmul: roller.CompiledKernel, tmp_path: Path) -> None:
    path = matmul.artifact.save(tmp_path / "k.json")
    code = (
        "import sys, numpy as np, roller\n"
        f"k = roller.load({str(path)!r})\n"
        "a, b = np.ones((33, 29), 'f'), np.ones((29, 47), 'f')\n"
        "assert (k(a, b) == 29).all() and 'tvm' not in sys.modules\n"
        "print(k.program == k.artifact.program, k.measured_s > 0)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout.split() == ["True", "True"], done.stderr


def test_te_tensors_and_primfunc() -> None:
    from tvm import te

    a, b = te.placeholder((9, 5), name="A"), te.placeholder((5, 7), name="B")
    k = te.reduce_axis((0, 5), name="k")
    c = te.compute((9, 7), lambda i, j: te.sum(a[i, k] * b[k, j], axis=k), name="C")
    x, y = np.random.default_rng(0).random((9, 5), "f"), np.random.default_rng(1).random((5, 7), "f")
    for expr in ([a, b, c], te.create_prim_func([a, b, c])):
        kernel = roller.compile(expr, device="cpu", top_k=1)
        np.testing.assert_allclose(kernel(x, y), x @ y, rtol=1e-5)
    assert kernel.artifact.expression.key == roller.ops.matmul(9, 7, 5).key


def test_device_that_is_not_here_is_not_touched(monkeypatch: pytest.MonkeyPatch) -> None:
    parts = ("", ".parse_device_names", ".device_process", ".message_channel")
    reads_names = {f"roller.backends{part}" for part in parts}
    touching = {n for n in sys.modules if n.startswith("roller.backends")} - reads_names
    for name in touching | {"roller.backends.build", "roller.backends.cpu", "roller.backends.cuda", "cupy"}:
        monkeypatch.setitem(sys.modules, name, None)
    kernel = roller.compile(roller.ops.matmul(64, 64, 64), device="v100", top_k=4)
    assert "__global__" in kernel.source
    assert len(kernel.candidates) == 4
    assert kernel.measured_s is None and all(c.measured_s is None for c in kernel.candidates)
    with pytest.raises(LaunchError, match="device='cpu'"):
        kernel(np.ones((64, 64), "f"), np.ones((64, 64), "f"))


def test_a_loaded_kernel_saved_as_source_is_built_before_its_device_is_asked_for(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path = roller.compile(roller.ops.matmul(64, 64, 64), device="v100", top_k=1).artifact.save(tmp_path / "m.json")
    assert roller.load(path).artifact.binary is None
    built: list[str] = []

    def build(artifact: roller.KernelArtifact) -> roller.KernelArtifact:
        built.append(artifact.target["arch"])
        return artifact.with_binary(b"a cubin")

    monkeypatch.setattr("roller.backends.cuda.toolchain.build", build)
    monkeypatch.setitem(sys.modules, "cupy", None)  # no GPU software, wherever this test runs
    with pytest.raises(LaunchError, match=r"expected CuPy.*install it with"):
        roller.load(path)(np.ones((64, 64), "float32"), np.ones((64, 64), "float32"))
    assert built == ["sm_70"]


def test_failed_candidate_is_a_record(monkeypatch: pytest.MonkeyPatch) -> None:
    lower, seen = pipeline.lower, []

    def second_fails(program: Any, expression: Any, spec: Any) -> Any:
        seen.append(program)
        if str(program) == bad:
            raise BuildError("planted")
        return lower(program, expression, spec)

    expr = roller.ops.matmul(40, 24, 16)
    bad = str(roller.construct(expr, device="cpu", top_k=3)[1].program)
    monkeypatch.setattr(pipeline, "lower", second_fails)
    kernel = roller.compile(expr, device="cpu", top_k=3, cache=False)
    assert [c.status == "failed" for c in kernel.candidates] == [False, True, False]
    assert "planted" in (kernel.candidates[1].reason or "")

    def none(program: Any, expression: Any, spec: Any) -> Any:
        raise BuildError("planted everywhere")

    monkeypatch.setattr(pipeline, "lower", none)
    with pytest.raises(NoCandidateError, match=r"3 x failed: .*planted everywhere"):
        roller.compile(expr, device="cpu", top_k=3)
    with pytest.raises(NoCandidateError, match="planted everywhere"):
        roller.compile(expr, device="v100", top_k=2)


def test_wrong_kernel_is_never_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    lower = pipeline.lower
    expr = roller.ops.elementwise("relu", (100,))
    other = roller.ops.elementwise("neg", (100,))
    best = str(roller.construct(expr, device="cpu", top_k=2)[0].program)

    def negates(program: Any, expression: Any, spec: Any) -> Any:
        if str(program) != best:
            return lower(program, expression, spec)
        wrong = roller.construct(other, device=spec, top_k=1)[0].program
        return lower(wrong, expression, spec)

    monkeypatch.setattr(pipeline, "lower", negates)
    kernel = roller.compile(expr, device="cpu", top_k=2)
    assert [c.status for c in kernel.candidates].count("wrong") == 1
    assert "error bound" in next(c.reason for c in kernel.candidates if c.status == "wrong")
    assert str(kernel.program) != best


@every(
    ("call", "error", "says"),
    [
        (lambda: roller.compile(roller.ops.matmul(4, 4, 4), device="v10"), SpecError, "did you mean 'v100'"),
        (lambda: roller.construct(roller.ops.matmul(4, 4, 4), device=3), RollerError, "name of a spec"),
        (lambda: roller.compile("matmul(4, 4, 4)"), ExprError, "roller.ops.parse"),
        (lambda: roller.compile(roller.ops.matmul(4, 4, 4), top_k=0), RollerError, "top_k"),
        (lambda: roller.ops.matmul(0, 4, 4), ExprError, "at least 1"),
        (lambda: roller.ops.matmul(4, -2, 4), ExprError, "at least 1"),
        (
            lambda: roller.predict(roller.ops.matmul(64, 64, 64), "v100", {"shard": {}}),
            TileError,
            "no tiled layer of v100; did you mean 'shared'",
        ),
        (
            lambda: roller.predict(roller.ops.matmul(64, 64, 64), "cpu-avx2", {"l1": {"i": 4}, "register": {"i": 5}}),
            TileError,
            "at least the extent of the layer above",
        ),
        (
            lambda: roller.predict(roller.ops.matmul(4096, 4096, 4096), "v100", {"shared": [128, 128, 256]}),
            TileError,
            "threads",
        ),
    ],
)
def test_bad_input_is_one_clear_error(call: Any, error: type[Exception], says: str) -> None:
    with pytest.raises(error) as info:
        call()
    assert says in str(info.value)
    assert "\n" not in str(info.value)


@pytest.mark.parametrize(
    ("arrays", "says"),
    [
        ((np.ones((33, 29), "f"),), "2"),
        ((np.ones((33, 28), "f"), np.ones((29, 47), "f")), "(33, 29)"),
        ((np.ones((33, 29)), np.ones((29, 47), "f")), "float32"),
        (([[1.0]], np.ones((29, 47), "f")), "A"),
    ],
)
def test_wrong_arrays_are_refused(matmul: roller.CompiledKernel, arrays: tuple[Any, ...], says: str) -> None:
    with pytest.raises(LaunchError) as info:
        matmul(*arrays)
    assert says in str(info.value)
