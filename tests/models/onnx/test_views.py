"""Contiguous pieces of values cost nothing, and steps of unrolled layers share their kernels."""

import numpy as np
import pytest

pytest.importorskip("onnx")

from roller.models.graph.model_graph import Graph, Node
from roller.models.onnx.partition_graph import partition_graph
from roller.models.onnx.read_model import read_onnx_graph
from roller.models.onnx.simplify_graph import fold_graph
from roller_runtime.plan.program_steps import Value, View
from tests.models.session.reference import evaluate_program


def slices(shape, begins, ends, axes, out):
    """Return ``y``, of a piece of ``x``, and ``z``, of all of it."""
    constants = {n: np.array(v, np.int64) for n, v in (("b", begins), ("e", ends), ("a", axes))}
    nodes = [
        Node("Slice", ("x", "b", "e", "a"), ("s",), {}, "slice"),
        Node("Tanh", ("s",), ("y",), {}, "tanh"),
        Node("Exp", ("x",), ("z",), {}, "exp"),
    ]
    values = {"x": shape, "s": out, "y": out, "z": shape}
    typed = {n: Value(n, s) for n, s in values.items()} | {n: Value(n, a.shape, "int64") for n, a in constants.items()}
    return Graph("slices", ("x",), ("y", "z"), tuple(nodes), typed, constants)


def views(graph):
    program = partition_graph(graph)
    return program, [s.offset_bytes for s in program.steps if isinstance(s, View)]


@pytest.mark.parametrize(
    "shape, begin, end, axes, out, offsets",
    [
        ((4, 32), [2], [3], [0], (1, 32), [256]),  # a row
        ((1, 4, 32), [1], [3], [1], (1, 2, 32), [128]),  # rows behind a dimension of one element
        ((4, 32), [0], [16], [1], (4, 16), []),  # columns: not one piece
        ((4, 5), [1], [2], [0], (1, 5), []),  # a piece, but in the middle of a line
    ],
)
def test_pieces_are_views_where_they_are_contiguous_and_aligned(shape, begin, end, axes, out, offsets):
    program, found = views(slices(shape, begin, end, axes, out))
    assert found == offsets
    x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    at = [slice(None)] * len(shape)
    at[axes[0]] = slice(begin[0], end[0])
    made = evaluate_program(program, {"x": x})
    np.testing.assert_allclose(made["y"], np.tanh(x[tuple(at)]), rtol=1e-6)
    np.testing.assert_allclose(made["z"], np.exp(x), rtol=1e-6)


def test_steps_of_an_unrolled_layer_share_their_kernels(tmp_path):
    from benchmarks.models import build, random_feeds

    counts = []
    for steps in (4, 8):
        path = build("lstm_unrolled", tmp_path, layers=2, steps=steps, width=32)
        program = partition_graph(fold_graph(read_onnx_graph(path)))
        counts.append(len(program.kernels))
        feeds = random_feeds(path)
    assert counts[0] == counts[1] <= 8
    import onnxruntime

    expected = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"]).run(None, feeds)
    np.testing.assert_allclose(evaluate_program(program, feeds)["y"], expected[0], atol=1e-5)
