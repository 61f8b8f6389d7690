"""compile(constants=...): the road with weights that never change, from the model to a saved kernel."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import roller
from roller import ConstructOptions, ops
from roller.artifact import KernelArtifact
from roller.compiler import pipeline
from roller.errors import LaunchError, NoCandidateError, RollerError
from roller.expr import Load, transform_scalar
from roller.runtime.check import check
from roller.runtime.random_inputs import random_inputs
from roller.templates import price_with_templates
from tests.offenders import every

MATMUL = ops.matmul(65, 96, 48)


@pytest.fixture(autouse=True)
def cache_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROLLER_CACHE_DIR", str(tmp_path / "cache"))


def named(expression: roller.TensorExpr, arrays: list[np.ndarray], *positions: int) -> dict[str, np.ndarray]:
    return {expression.inputs[n].name: arrays[n] for n in positions}


@pytest.mark.parametrize(
    ("expression", "fixed"),
    [
        (MATMUL, (1,)),
        (ops.matmul(33, 40, 31, transpose_a=True, transpose_b=True, epilogue=("bias", "relu")), (1, 2)),
        (ops.conv2d(1, 8, 14, 14, 16, 3, 3, padding=1, epilogue=("bias",)), (1, 2)),
        (ops.depthwise_conv2d(1, 8, 14, 14, 3, 3, padding=1), (1,)),
        (ops.matmul(20, 20, 20), (0, 1)),
        (ops.layer_norm((12, 40)), (1, 2)),
    ],
    ids=["matmul", "transposed-epilogue", "conv", "depthwise", "all", "norm"],
)
def test_the_kernel_takes_the_other_inputs(expression: roller.TensorExpr, fixed: tuple[int, ...]) -> None:
    arrays = random_inputs(expression, 3)
    kernel = roller.compile(expression, top_k=3, constants=named(expression, arrays, *fixed), cache=False)
    free = [a for n, a in enumerate(arrays) if n not in fixed]
    assert check(expression, arrays, kernel(*free)).ok
    run, out = kernel.launcher.bind(*free)
    run()
    assert check(expression, arrays, out).ok
    out.fill(np.nan)
    run, _ = kernel.launcher.bind(*free, out=out, rotating_bytes=1 << 16)
    for _ in range(9):
        run()
        assert check(expression, arrays, out).ok
        out.fill(np.nan)
    assert {c.status for c in kernel.candidates} <= {"measured", "slower"}
    assert kernel.program.constants == tuple(expression.inputs[n].name for n in fixed)


def test_constants_that_take_turns_are_copies_of_as_many_bytes_as_asked() -> None:
    a, b = random_inputs(MATMUL, 0)
    kernel = roller.compile(MATMUL, top_k=1, constants={"B": b}, cache=False).launcher
    own_bytes = sum(x.nbytes for x in kernel._held_arrays)
    assert len(kernel._copies(10 * own_bytes)) == 9
    assert kernel._copies(own_bytes) == kernel._copies(0) == []
    _, outs = zip(*(kernel.bind(a, rotating_bytes=n) for n in (0, 10 * own_bytes)), strict=True)
    assert outs[0].shape == outs[1].shape


@pytest.mark.parametrize("device", ["cpu-avx512", "cpu-avx2", "cpu-neon"])
def test_packing_a_constant_costs_no_call(device: str) -> None:
    expr = ops.matmul(1024, 1024, 1024)
    fresh = roller.construct(expr, device, top_k=1)[0]
    best = roller.construct(expr, device, top_k=1, options=ConstructOptions(constants=("B",)))[0]
    assert dict(fresh.estimate.terms)["pack_s"] > 0 and "B" in best.program.staged
    assert dict(best.estimate.terms)["pack_s"] == 0
    assert best.estimate.seconds < fresh.estimate.seconds
    again = replace(best.program, constants=())
    spec = roller.hardware.load_spec(device)
    assert price_with_templates.estimate_program(best.program, spec) == best.estimate
    assert dict(price_with_templates.estimate_program(again, spec).terms)["pack_s"] > 0


def test_boxes_are_priced_whatever_they_are_copied_from() -> None:
    expr = ops.conv2d(1, 16, 28, 28, 32, 3, 3, stride=2, padding=1)
    options = ConstructOptions(top_k=5, constants=("X", "W"))
    found = roller.construct(expr, "cpu-avx512", options=replace(options, axis_grouping=False))
    assert all("X" in c.program.staged and dict(c.estimate.terms)["pack_s"] > 0 for c in found)
    gathered = roller.construct(expr, "cpu-avx512", options=options)[0]  # as a panel it is free
    assert "c*kh*kw" in gathered.program.axis_names and dict(gathered.estimate.terms)["pack_s"] == 0


def test_one_cached_kernel_serves_all_values(monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = random_inputs(MATMUL, 1)
    first = roller.compile(MATMUL, top_k=2, constants={"B": b})
    monkeypatch.setattr(pipeline, "_compile_uncached", None)  # from here on only the cache answers
    other = roller.compile(MATMUL, top_k=2, constants={"B": -b})
    assert check(MATMUL, [a, b], first(a)).ok and check(MATMUL, [a, -b], other(a)).ok
    assert first.program == other.program


def test_names_share_a_kernel_and_constants_follow_their_place(monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = random_inputs(MATMUL, 1)
    roller.compile(MATMUL, top_k=2, constants={"B": b})
    swapped = {"A": "B", "B": "A"}  # the same expression, its inputs named the other way round

    def renamed(n: Any) -> Any:
        return replace(n, tensor=swapped[n.tensor]) if isinstance(n, Load) else n

    inputs = tuple(replace(t, name=swapped[t.name]) for t in MATMUL.inputs)
    stages = tuple(replace(s, body=transform_scalar(s.body, renamed)) for s in MATMUL.stages)
    other = replace(MATMUL, inputs=inputs, stages=stages)
    options = ConstructOptions(constants=("B",))
    assert options.identity(MATMUL)["constants"] == [1] and options.identity(other)["constants"] == [0]
    monkeypatch.setattr(pipeline, "_compile_uncached", None)
    kernel = roller.compile(other, top_k=2, constants={"A": b})
    assert check(MATMUL, [a, b], kernel(a)).ok
    with pytest.raises(TypeError):  # the left operand constant is another kernel, which nobody compiles here
        roller.compile(other, top_k=2, constants={"B": a})
    with pytest.raises(TypeError):
        roller.compile(other, top_k=2)


def test_a_saved_kernel_carries_its_constants(tmp_path: Path) -> None:
    expr = ops.matmul(16, 40, 8, epilogue=("bias",))
    a, b, bias = random_inputs(expr, 2)
    kernel = roller.compile(expr, top_k=1, constants=named(expr, [a, b, bias], 1, 2))
    expected = kernel(a)
    path = kernel.save(tmp_path / "kernel.json")
    np.save(tmp_path / "a.npy", a)
    code = (
        "import sys, numpy as np, roller\n"
        f"k = roller.load({str(path)!r})\n"
        f"np.save({str(tmp_path / 'c.npy')!r}, k(np.load({str(tmp_path / 'a.npy')!r})))\n"
        "print('tvm' in sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout.split() == ["False"], done.stderr
    assert np.array_equal(np.load(tmp_path / "c.npy"), expected)
    assert roller.load(path).artifact == kernel.artifact
    assert b.tobytes() in path.read_bytes(), "constants are bytes, not text"


def test_files_without_constants_keep_the_first_format() -> None:
    data = roller.compile(MATMUL, "v100", top_k=1, cache=False).artifact.to_dict()
    assert data["format_version"] == 1 and "constants" not in data and "prepare" not in data
    assert KernelArtifact.from_dict(data).constants == ()
    old = {k: v for k, v in data["program"].items() if k != "constants"}
    assert roller.tile.RProgram.from_dict(old) == roller.tile.RProgram.from_dict(data["program"])


def test_constants_are_copied() -> None:
    a, b = random_inputs(MATMUL, 5)
    given, wide = b.copy(), np.zeros((48, 192), np.float32)
    wide[:, ::2] = b
    kernel = roller.compile(MATMUL, top_k=1, constants={"B": given})
    given[:] = 0
    assert check(MATMUL, [a, b], kernel(a)).ok
    given[:] = b
    for strided in (wide[:, ::2], np.asfortranarray(b), b[::-1].copy()[::-1]):
        assert check(MATMUL, [a, b], roller.compile(MATMUL, top_k=1, constants={"B": strided})(a)).ok
    given.flags.writeable = False
    assert check(MATMUL, [a, b], roller.compile(MATMUL, top_k=1, constants={"B": given})(a)).ok


def test_bfloat16_constants() -> None:
    bfloat16 = pytest.importorskip("ml_dtypes").bfloat16
    expr = ops.matmul(16, 32, 24, dtype="bfloat16")
    a, b = random_inputs(expr, 1)
    assert b.dtype == bfloat16
    kernel = roller.compile(expr, top_k=2, constants={"B": b}, cache=False)
    assert check(expr, [a, b], kernel(a)).ok
    with pytest.raises(RollerError, match="'B': expected dtype bfloat16, got uint16"):
        roller.compile(expr, constants={"B": b.view(np.uint16)})


def test_zeros_do_not_hide_a_wrong_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    lower = pipeline.lower

    def forgets(program: Any, expression: Any, spec: Any) -> KernelArtifact:
        made = lower(program, expression, spec)
        assert made.prepare is not None
        return replace(made, prepare=None)  # its panel is never filled

    monkeypatch.setattr(pipeline, "lower", forgets)
    expr = ops.matmul(64, 64, 64, transpose_b=True)
    with pytest.raises(NoCandidateError, match="error bound"):
        roller.compile(expr, top_k=1, constants={"B": np.zeros((64, 64), "f")}, cache=False)


def test_devices_that_are_not_here() -> None:
    a, b = random_inputs(MATMUL, 1)
    pretended = roller.compile(MATMUL, "null:v100", top_k=2, constants={"B": b})
    assert check(MATMUL, [a, b], pretended(a)).ok
    with pytest.raises(LaunchError, match="expected arrays of"):
        pretended(a, b)
    with pytest.raises(LaunchError, match=r"null device.s kernel.*got .stream.\. A null device has no streams"):
        pretended(a, stream=None)
    with pytest.raises(LaunchError, match="'out': expected 1 array, got 2"):
        pretended(a, out=[a, a])
    source = roller.compile(MATMUL, "v100", top_k=1, constants={"B": b})
    assert source.artifact.launches[0].arguments == ("A", "B", "C")  # one argument like any other
    assert [(c.position, c.values) for c in source.artifact.constants] == [(1, b.tobytes())]
    with pytest.raises(LaunchError, match="not this machine's device"):
        source(a)


@every(
    ("constants", "text"),
    [
        ({"weights": np.zeros((48, 96), "f")}, r"expected inputs of matmul \['A', 'B'\], got 'weights'"),
        ({"B": np.zeros((96, 48), "f")}, r"'B': expected shape \(48, 96\), got \(96, 48\). Reshape"),
        ({"B": np.zeros((48, 96))}, "'B': expected dtype float32, got float64. Convert it with .astype"),
        ({"B": np.zeros((48, 96), ">f4")}, "'B': expected dtype float32, got >f4"),
        ({"B": [[0.0]]}, "'B': expected a NumPy or DLPack array, got list"),
        ([np.zeros(3)], "expected a mapping from names of inputs to arrays, got list"),
    ],
)
def test_refusals(constants: Any, text: str) -> None:
    with pytest.raises(RollerError, match=text):
        roller.compile(MATMUL, constants=constants)


def test_options_that_name_constants() -> None:
    b = np.ones((48, 96), "f")
    with pytest.raises(RollerError, match=r"expected a value for 'B', which the options name, got \[\]"):
        roller.compile(MATMUL, options=ConstructOptions(constants=("B",)))
    with pytest.raises(RollerError, match="expected a tuple of names of inputs"):
        ConstructOptions(constants="B")  # type: ignore[arg-type]
    with pytest.raises(RollerError, match="got 'gamm'; did you mean 'gamma'"):
        norm = ops.layer_norm((4, 8))
        names = [t.name for t in norm.inputs]
        assert "gamma" in names, names
        roller.construct(norm, "v100", options=ConstructOptions(constants=("gamm",)))
    options = ConstructOptions(top_k=1, constants=("B",))
    assert (roller.compile(MATMUL, options=options, constants={"B": b})(np.ones((65, 48), "f")) == 48).all()
