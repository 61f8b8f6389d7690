"""Models of many nodes: what reading, folding, partition and planning do grows as the nodes, and nothing recurses."""

from __future__ import annotations

import cProfile
import pstats

import numpy as np
import pytest
from onnx import helper

from benchmarks.onnx.large import SHAPES, large_model, stages
from roller.models.compile import read_folded_graph
from roller.models.onnx.partition_graph import partition_graph
from tests.models.onnx.models import FLOAT, model_of, runtime
from tests.models.session.reference import evaluate_program


def calls(kind: str, nodes: int) -> int:
    """Return how many functions the stages call: no clock is asked."""
    profile = cProfile.Profile()
    model = large_model(kind, nodes)
    profile.enable()
    list(stages(model))
    profile.disable()
    return pstats.Stats(profile).total_calls


@pytest.mark.parametrize("kind", SHAPES)
def test_work_grows_as_the_nodes(kind):
    """A chain is cut every few hundred nodes, and equal pieces are fused once: it is doubled in whole pieces."""
    calls(kind, 60)  # what is loaded and registered on first use
    few, some, many = (calls(kind, n) for n in ((256, 512, 1024) if kind == "chain" else (60, 120, 240)))
    assert many - some < 2.2 * (some - few)


@pytest.mark.parametrize("op", ["Sum", "Max", "Concat", "Mean"])
def test_one_node_of_many_inputs(op):
    names = [f"x{n}" for n in range(400)]
    told = {"axis": 0} if op == "Concat" else {}
    model = model_of(
        [helper.make_node(op, names, ["y"], **told)], [(n, FLOAT, (2, 3)) for n in names], [("y", FLOAT, None)]
    )
    feeds = {n: np.full((2, 3), k % 7, np.float32) for k, n in enumerate(names)}
    program = partition_graph(read_folded_graph(model))
    np.testing.assert_allclose(evaluate_program(program, feeds)["y"], runtime(model, feeds)[0], rtol=1e-6)
