"""Lengths behind strides are right at every size of a range, not at those a model was read at alone."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

import roller
from roller.compiler.dynamic.dynamic_size_box import SizeBox
from roller.core.anti_unification import MismatchError
from roller.errors import ModelError
from roller.models.compile import partition_graph, read_folded_graph
from roller.models.onnx import read_at_sample_sizes as range_reading
from roller.models.onnx.read_at_sample_sizes import read_at_sample_sizes
from roller_runtime.core.size_formulas import Formula

CONV = """<ir_version: 8, opset_import: ["": 17]>
image (float[batch, 3, height, width] x) => (float[batch, 4, rows, columns] y) {{
    y = Conv<strides = [{stride}, {stride}]>(x, w)
}}"""


def strided(low, high, stride, window):
    """Return the ranges of an image, and what reads a convolution over it at some sizes."""
    model = onnx.parser.parse_model(CONV.format(stride=stride))
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.ones((4, 3, window, window), "float32"), "w"))
    box = SizeBox({"batch": (1, 4), "height": (low, high), "width": (low, high)})
    return box, lambda p: partition_graph(
        read_folded_graph(model, shapes={"x": (p["batch"], 3, p["height"], p["width"])})
    )


@pytest.mark.parametrize(
    ("low", "high", "stride", "window"),
    [(16, 40, 4, 3), (16, 40, 8, 3), (32, 96, 6, 3), (32, 96, 8, 1), (64, 224, 6, 1), (100, 300, 7, 7), (33, 36, 8, 3)],
)
def test_a_stride_gives_the_length_of_every_size(low, high, stride, window):
    """Of these ranges the sizes that are looked at first leave several quotients possible."""
    box, reads = strided(low, high, stride, window)
    found = read_at_sample_sizes(box, reads).box
    for size in range(low, high + 1):
        lengths = found.with_derived_sizes({"batch": 2, "height": size, "width": size})
        meant = (size - window) // stride + 1
        rows, columns = ([x for n, x in lengths.items() if n.startswith(f"{side}_at_")] for side in ("height", "width"))
        assert set(rows) == set(columns) == {meant}, size


def test_a_length_that_stays_in_doubt_is_refused(monkeypatch):
    box, reads = strided(16, 40, 4, 3)
    doubtful = (Formula(1), Formula(2))
    monkeypatch.setattr(range_reading, "_ROUNDS", 2)
    monkeypatch.setattr(range_reading, "_derive_length_formulas", lambda programs, points: ({}, [doubtful]))
    with pytest.raises(MismatchError, match="expected one formula of each, got 1 other"):
        read_at_sample_sizes(box, reads)


def test_what_happens_at_the_largest_sizes_alone_is_refused():
    """The branch of 20 rows leaves the step out; that of all others would be taken for it."""
    text = """<ir_version: 8, opset_import: ["": 17]>
    m (float[rows, 4] x) => (float[rows, 4] y)
    <int64 first = {0}, int64 most = {20}> {
        dims = Shape(x)
        rows = Gather(dims, first)
        last = Equal(rows, most)
        z = If(last) <
            then_branch = g1 () => (float[a, b] t) { t = Identity(x) },
            else_branch = g2 () => (float[a, b] e) { e = Neg(x) }
        >
        y = Identity(z)
    }"""
    model = onnx.parser.parse_model(text)
    with pytest.raises(ModelError, match="expected the same steps for all sizes"):
        roller.compile_model(model, shapes={"x": (("rows", 2, 20), 4)})


TABLE = """<ir_version: 9, opset_import: ["": 20]>
m (float[t, 8] x, float[s, 8] z) => (float[u] y, float[s, 8] q, float[t, 8] r)
<int64[1] first = {0}, int64 begin = {0}, int64 step = {1}> {
    rows = Shape<start = 0, end = 1>(x)
    others = Shape<start = 0, end = 1>(z)
    longer = Max(rows, others)
    end = Squeeze(longer)
    steps = Range(begin, end, step)
    y = Gather(table, steps)
    q = Neg(z)
    r = Neg(x)
}"""
SQUEEZED = """<ir_version: 9, opset_import: ["": 20]>
m (float[b, s, 1, 6] x) => (float[b, s, 6] y) {
    flat = Squeeze(x)
    y = Exp(flat)
}"""
SCALED = """<ir_version: 9, opset_import: ["": 20]>
m (float[b, 600] x) => (float[b, 600] y) {
    rows = Shape<start = 0, end = 1>(x)
    factor = Cast<to = 1>(rows)
    scaled = Mul(w, factor)
    y = MatMul(x, scaled)
}"""


def test_lengths_are_read_where_one_overtakes_another():
    """Only near one corner is the second longer; in the middle of the box the result has the rows of the first."""
    model = onnx.parser.parse_model(TABLE)
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.arange(100, dtype="float32"), "table"))
    with pytest.raises(ModelError, match="expected the same steps for all sizes"):
        roller.compile_model(model, shapes={"x": (("t", 5, 100), 8), "z": (("s", 1, 8), 8)})


def test_axes_that_vanish_at_a_size_of_one_are_refused():
    model = onnx.parser.parse_model(SQUEEZED)
    with pytest.raises(ModelError, match=r"'y' is \[6\] at \{'b': 1, 's': 1\}, not \[1, 1, 6\]"):
        roller.compile_model(model, shapes={"x": (("b", 1, 4), ("s", 1, 70), 1, 6)})


def test_large_constants_that_sizes_change_are_refused():
    model = onnx.parser.parse_model(SCALED)
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.ones((600, 600), "float32"), "w"))
    with pytest.raises(ModelError, match="the constant 'scaled' is computed from sizes"):
        roller.compile_model(model, shapes={"x": (("b", 1, 9), 600)})


GATHERED = """<ir_version: 9, opset_import: ["": 20]>
m (float[s, 4] x) => (float[1, 4] y) <int64[1] second = {1}> {
    a = Exp(x)
    y = Gather(a, second)
}"""


def test_sizes_at_which_there_is_no_such_model_are_refused():
    """There is no second row of one: what a kernel left in memory before would be read."""
    model = onnx.parser.parse_model(GATHERED)
    with pytest.raises(ModelError, match=r"(?s)at \{'s': 1\}: .*index 1 of an axis of 1"):
        roller.compile_model(model, shapes={"x": (("s", 1, 9), 4)})
    made = roller.compile_model(model, shapes={"x": (("s", 2, 9), 4)}, deterministic=True)
    x = np.random.default_rng(0).standard_normal((5, 4)).astype("float32")
    np.testing.assert_allclose(made.run(x), np.exp(x[1:2]), rtol=1e-6)


def test_several_sizes_may_be_few():
    text = """<ir_version: 9, opset_import: ["": 20]>
    m (float[a, b, c] x) => (float[a, b, c] y) { y = Exp(x) }"""
    shapes = {"x": (("a", 1, 2), ("b", 1, 3), ("c", 1, 2))}
    made = roller.compile_model(onnx.parser.parse_model(text), shapes=shapes, deterministic=True)
    for shape in ((1, 1, 1), (2, 3, 2), (1, 2, 2), (2, 1, 1)):
        x = np.random.default_rng(0).standard_normal(shape).astype("float32")
        np.testing.assert_allclose(made.run(x), np.exp(x), rtol=1e-6)
