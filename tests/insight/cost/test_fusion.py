"""Kernels that are fused never wait for one another."""

from __future__ import annotations

import random

from roller.insight.cost.compiled.fusion import fuse_nodes
from roller.insight.cost.compiled.loop_nodes import LoopNode, StorageVersion, TensorAccess
from roller.insight.trace.trace import TensorRecord
from tests.insight.cost.test_compiled import kernels, operator, tensor, trace, unary


def node(place, points, reads, result, kind="pointwise"):
    """Return a node that reads values, each with its size, and writes one."""
    tensors = {StorageVersion(n): TensorRecord((size,), (1,), "float32", n) for n, size in reads}
    return LoopNode(
        place, kind, "n", "forward", points,
        reads={TensorAccess(v, 0, ((t.shape[0], 1),)): t for v, t in tensors.items()},
        writes={StorageVersion(result): TensorRecord((points,), (1,), "float32", result)},
    )  # fmt: skip


def is_in_order(groups):
    """Return whether each kernel runs after those that write what it reads."""
    place = {value: n for n, group in enumerate(groups) for value in group.writes()}
    return all(place.get(a.value, -1) <= n for n, group in enumerate(groups) for a in group.reads())


def test_a_path_through_a_kernel_that_began_before_both_is_seen():
    nodes = [
        node(0, 128, [(100, 128)], 1),
        node(1, 64, [(1, 128)], 2, "extern"),
        node(2, 64, [(101, 64)], 3),
        node(3, 128, [(100, 128), (3, 64)], 4),  # one kernel with the first, which the call waits for
        node(4, 64, [(2, 64), (101, 64)], 5),  # shares its input with the third, which the call has to wait for
    ]
    groups = fuse_nodes(nodes)
    assert sorted(sorted(n.operator for n in group.nodes) for group in groups) == [[0, 3], [1], [2], [4]]
    assert is_in_order(groups)


def test_kernels_of_random_graphs_run_after_what_they_read():
    for seed in range(200):
        draw = random.Random(seed)
        nodes = []
        for place in range(24):
            sources = draw.sample(range(max(0, place - 8), place), min(place, draw.randint(0, 2)))
            reads = [(n, nodes[n].rows) for n in sources] + [(100 + draw.randint(0, 3), 64)]
            kind = "extern" if draw.random() < 0.25 else "pointwise"
            nodes.append(node(place, draw.choice([64, 128]), reads, place, kind))
        groups = fuse_nodes(nodes)
        assert is_in_order(groups) and sum(len(group.nodes) for group in groups) == len(nodes), seed


def test_what_is_written_over_an_input_is_another_value():
    # such as a cache: what it becomes depends on what it was
    step = trace(unary("exp", 0, 1), operator("mm.default", [tensor(1), tensor(9)], [tensor(2)]),
                 operator("copy_.default", [tensor(0), tensor(2)], [tensor(0)], names=("self", "src")),
                 given={0, 9})  # fmt: skip
    assert [(one[1], one[2]) for one in kernels(step)] == [([0], [1]), ([1, 9], [2]), ([2], [0])]
