"""Every registered operator against an independent NumPy computation; canonical forms; serialisation; keys."""

from __future__ import annotations

import json
from functools import cache

import numpy as np

from roller.expr import TensorExpr
from roller.expr.canonical import fuse_axes, group_axes
from roller.expr.serialize import expr_from_dict, expr_to_dict
from roller.ops import ONNX_NAMES, REGISTRY, elementwise_functions
from tests.cases import BINARY, ODD_CASES, UNARY, Case, arrays_for
from tests.offenders import every
from tests.ops import numpy_reference

every_case = every("case", ODD_CASES, ids=[c[0] for c in ODD_CASES])


@cache
def _built(case: Case) -> tuple[TensorExpr, list[np.ndarray]]:
    """Return the expression of a case with arrays for it; nothing here changes either."""
    expr = case[1]()
    arrays = arrays_for(expr, case[1])
    for array in arrays:
        array.flags.writeable = False
    return expr, arrays


def _viewed(form: TensorExpr, arrays: list[np.ndarray]) -> list[np.ndarray]:
    return [a.reshape(t.shape) for a, t in zip(arrays, form.inputs, strict=True)]


def _points(shape: tuple[int, ...], count: int = 17) -> np.ndarray:
    """Sampled output coordinates; both corners included."""
    rng = np.random.default_rng(1)
    inner = np.stack([rng.integers(0, n, count) for n in shape], 1) if shape else np.zeros((count, 0), np.int64)
    return np.concatenate([np.zeros((1, len(shape)), np.int64), inner, np.array([shape], np.int64) - 1])


@every_case
def test_matches_numpy_whole_and_at_points(case: Case) -> None:
    label, factory = case
    expr, arrays = _built(case)
    (got,) = expr.evaluate(arrays)
    want = numpy_reference.compute(label.split("-")[0], factory.keywords, arrays)
    assert got.shape == want.shape == expr.output_tensors[0].shape
    np.testing.assert_allclose(got, want, rtol=1e-9, atol=1e-9)
    points = _points(got.shape)
    (sampled,) = expr.evaluate(arrays, points)
    np.testing.assert_allclose(sampled, want[tuple(points.T)], rtol=1e-9, atol=1e-9)


@every_case
def test_canonical_forms_agree(case: Case) -> None:
    expr, arrays = _built(case)
    (want,) = expr.evaluate(arrays)
    fused = fuse_axes(expr)
    forms = [fused, *(form for form in (group_axes(expr), group_axes(fused)) if form is not None)]
    for form in forms:
        assert [t.elements for t in form.tensors.values() if t.name in expr.tensors] == [
            expr.tensors[n].elements for n in form.tensors
        ]
        (got,) = form.evaluate(_viewed(form, arrays))
        np.testing.assert_allclose(got.reshape(want.shape), want, rtol=1e-12, atol=1e-12)


@every_case
def test_serialises(case: Case) -> None:
    expr, _ = _built(case)
    back = expr_from_dict(json.loads(json.dumps(expr_to_dict(expr))))
    assert back == expr
    assert back.key == expr.key


def test_keys_differ_between_computations() -> None:
    canonical: dict[str, set[str]] = {}
    for label, factory in ODD_CASES:
        canonical.setdefault(factory().key, set()).add(label)
    shared = [labels for labels in canonical.values() if len(labels) > 1]
    assert shared == []


def test_key_ignores_names_and_fusable_shapes() -> None:
    flat = REGISTRY["elementwise"](names="relu", shape=(17, 11, 3))
    assert flat.key == REGISTRY["elementwise"](names="relu", shape=(561,)).key
    data = json.dumps(expr_to_dict(REGISTRY["matmul"](m=8, n=9, k=10)))
    renamed = expr_from_dict(json.loads(data.replace('"A"', '"left"').replace('"i"', '"row"').replace("matmul", "x")))
    assert renamed.key == REGISTRY["matmul"](m=8, n=9, k=10).key
    assert renamed.key != REGISTRY["matmul"](m=9, n=8, k=10).key


def test_cases_cover_every_operator_and_function() -> None:
    assert {c[1].func for c in ODD_CASES} == set(REGISTRY.values())
    assert {n.split("(")[0] for n in (*UNARY, *BINARY)} == set(elementwise_functions.ELEMENT_FUNCTIONS)
    assert len(ODD_CASES) >= 70
    assert len({c[0] for c in ODD_CASES}) == len(ODD_CASES)
    assert max(s.points for c in ODD_CASES for s in c[1]().stages) < 200_000


def test_epilogue_is_one_stage_in_place() -> None:
    for label, factory in ODD_CASES:
        expr = factory()
        if factory.keywords.get("epilogue") and expr.stages[-1].name + "_acc" in expr.tensors:
            assert expr.epilogue is not None, label
            assert expr.epilogue.output.name == expr.outputs[0]


def test_onnx_names_are_registered() -> None:
    assert set(ONNX_NAMES.values()) <= set(REGISTRY)
    assert ONNX_NAMES["Conv"] == "conv2d"
    assert ONNX_NAMES["MatMul"] == "matmul"


def test_low_precision_accumulates_wide_and_converts_once() -> None:
    expr = REGISTRY["matmul"](m=8, n=8, k=8, dtype="float16", epilogue=("relu",))
    assert expr.anchor.acc_dtype == expr.anchor.output.dtype == "float32"
    assert expr.output_tensors[0].dtype == "float16"
    assert REGISTRY["matmul"](m=8, n=8, k=8, dtype="int8").output_tensors[0].dtype == "int32"
    assert REGISTRY["pool2d"]("max", 1, 1, 4, 4, 2, 2, dtype="int8").output_tensors[0].dtype == "int8"
