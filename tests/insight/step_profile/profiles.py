"""Profiles for tests of what shows them."""

from __future__ import annotations

import random

from roller.insight.step_profile.batch_curve import BatchPoint, batch_curve
from roller.insight.step_profile.node import Seconds
from roller.insight.step_profile.step_profile import MemoryPoint, StepProfile
from roller.insight.step_profile.tree_builder import NodeKey, TreeBuilder


def small_profile() -> StepProfile:
    """Return a predicted profile with lines, modules, operators, kernels, memory and a curve over the batch."""
    draw, tree = random.Random(5), TreeBuilder()
    for block in range(6):
        for operator in range(4):
            line = NodeKey("line", f"net/model.py:{10 + operator}")
            module = NodeKey("module", f"blocks.{block}")
            path = (NodeKey("line", "net/train.py:9"), module, line, NodeKey("operator", f"aten.op_{operator}.default"))
            for phase in ("forward", "backward"):
                took = draw.random() * 1e-3
                leaf = (*path, NodeKey("kernel", f"kernel_{operator}"))
                bound = "compute" if operator % 2 else "dram"
                tree.add_time(leaf, phase, Seconds(took, took / 3, 1e-6), bound=bound, pipes=[("fma", took / 7)],
                              error=(0.75, 1.5) if operator else None)  # fmt: skip
            tree.add_bytes(path, "activation", held=draw.randrange(1 << 30))
        tree.add_bytes((module,), "parameter", name=f"blocks.{block}.weight", held=1 << 22,
                       registered=("net/model.py:3",))  # fmt: skip
    tree.add_bytes((NodeKey("overhead", "memory of no tensor"),), "context", held=500_000_000, tensors=0)
    root = tree.build()
    curve = batch_curve(
        lambda n: BatchPoint(n, 0.1 * n + 0.3, n / (0.1 * n + 0.3), 100 * n, 200 * n, True, "device", "forward"), 4, 0
    )
    points = tuple(
        MemoryPoint(
            float(n),
            900 + n,
            1000 + n,
            {"activation": 500 + n, "parameter": 100},
            {"activation blocks.0 net/model.py:10": 400 + n, "parameter blocks.1": 100},
        )
        for n in range(50)
    )
    return StepProfile(
        "train.py", "predicted", "a100", root, root.wall_s, 0.8 * root.wall_s, 1.25 * root.wall_s, 8, 8.0, 1, "bf16",
        ("fc",), "library", "links", 1 << 41, 12345, "", points, {"kernel": 0.5, "other": 0.25}, curve, ("a note",),
    )  # fmt: skip


def large_profile(kernels: int) -> StepProfile:
    """Return a recorded profile with that many kernels, each of another name, in times of whole nanoseconds."""
    draw, tree = random.Random(7), TreeBuilder()
    for number in range(kernels):
        took = draw.randrange(1, 2_000_000) / 1e9
        path = (NodeKey("module", f"layer{number % 40}"), NodeKey("operator", f"aten::op_{number % 83}"))
        tree.add_time((*path, NodeKey("kernel", f"kernel_{number}")), "forward", Seconds(took, took, 0.0))
    root = tree.build()
    return StepProfile("large.json", "recorded", "cuda:0", root, root.wall_s, root.wall_s, root.wall_s)
