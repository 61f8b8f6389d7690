"""Programs made by hand from ready operators, and their kernels."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import numpy as np
import pytest

from roller import ops
from roller.artifact import KernelArtifact
from roller.compiler.pipeline import lower
from roller.construction.constructor import construct_candidates
from roller.expr import TensorExpr
from roller.hardware.detect_cpu_spec import detect_cpu
from roller.templates.common.options import ConstructOptions
from roller_runtime.plan.program_steps import (
    Call,
    Foreign,
    Join,
    KernelSource,
    ParallelGroup,
    Program,
    Run,
    Step,
    Value,
    View,
)
from roller_runtime.session.packed_constants import flatten_lanes


def random(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape, np.float32)


@functools.cache
def built(expression: TensorExpr, constants: tuple[str, ...] = ()) -> KernelArtifact:
    """The best prediction, built and not timed."""
    spec = detect_cpu()
    best = construct_candidates(expression, spec, ConstructOptions(top_k=1, constants=constants))[0]
    return lower(best.program, expression, spec)


def kernels(program: Program) -> dict[str, KernelArtifact]:
    return {key: built(source.expression, source.constants) for key, source in program.kernels.items()}


def feeds(program: Program, seed: int = 0) -> dict[str, np.ndarray]:
    made = {}
    for n, name in enumerate(program.inputs):
        value = program.values[name]
        made[name] = random(seed + n, *value.shape)
    return made


def program(
    steps: Sequence[Step],
    inputs: dict[str, tuple[int, ...]],
    outputs: Sequence[str],
    between: dict[str, tuple[int, ...]],
    sources: dict[str, KernelSource] | None = None,
    constants: dict[str, np.ndarray] | None = None,
) -> Program:
    constants = constants or {}
    shapes = {**inputs, **between}
    values = {n: Value(n, s) for n, s in shapes.items()}
    values |= {n: Value(n, a.shape, str(a.dtype)) for n, a in constants.items()}
    return Program("test", tuple(inputs), tuple(outputs), values, constants, tuple(steps), sources or {})


def unary(shape: tuple[int, ...], fn: str = "relu") -> KernelSource:
    return KernelSource(ops.elementwise(fn, shape))


def run(kernel: str, inputs: Sequence[str] | str, output: str) -> Run:
    names = (inputs,) if isinstance(inputs, str) else tuple(inputs)
    return Run(f"{kernel} -> {output}", kernel, names, (output,), (f"node_{output}",))


def mlp(layers: int = 3, rows: int = 4, width: int = 48) -> Program:
    """Layers of one matrix product and one activation: equal kernels, other weights."""
    names = [f"h{n}" for n in range(2 * layers)]
    steps = []
    last = "x"
    for n in range(layers):
        steps.append(run("matmul", (last, f"w{n}"), names[2 * n]))
        steps.append(run("relu", names[2 * n], names[2 * n + 1]))
        last = names[2 * n + 1]
    expression = ops.matmul(rows, width, width)
    sources = {"matmul": KernelSource(expression, ("B",)), "relu": unary((rows, width))}
    weights = {f"w{n}": random(100 + n, width, width) / 7 for n in range(layers)}
    return program(steps, {"x": (rows, width)}, [last], dict.fromkeys(names, (rows, width)), sources, weights)


def dense_block(batch: int = 1, side: int = 6) -> Program:
    """As in DenseNet: every layer reads all before it, joined along the channels."""
    one, two, three = ((batch, c, side, side) for c in (4, 8, 12))
    steps = [
        run("first", "x", "a"), run("first", "a", "b"), Join(("a", "b"), "ab", 1),
        run("wide", "ab", "wide_ab"), run("narrow", "wide_ab", "c"), Join(("ab", "c"), "abc", 1),
        run("last", "abc", "y"),
    ]  # fmt: skip
    take = Value("wide_ab", two)
    sources = {
        "first": unary(one, "tanh"), "wide": unary(two, "sigmoid"), "narrow": _halved(batch, side),
        "last": unary(three, "relu"),
    }  # fmt: skip
    shapes = {"a": one, "b": one, "ab": two, take.name: two, "c": one, "abc": three, "y": three}
    return program(steps, {"x": one}, ["y"], shapes, sources)


def _halved(batch: int, side: int) -> KernelSource:
    """Half the channels, by the mean of neighbours."""
    return KernelSource(ops.reduce("mean", (batch, 4, 2, side, side), axes=(2,)))


def lanes(rows: int = 3, width: int = 40) -> Program:
    """Two lanes of two steps each that meet in a sum."""
    steps = [
        run("tanh", "x", "t"),
        ParallelGroup(
            (
                (run("relu", "t", "a0"), run("tanh", "a0", "a1")),
                (run("tanh", "x", "b0"), run("relu", "b0", "b1"), run("tanh", "b1", "b2")),
            )
        ),
        run("add", ("a1", "b2"), "y"),
    ]
    shape = (rows, width)
    sources = {
        "relu": unary(shape),
        "tanh": unary(shape, "tanh"),
        "add": KernelSource(ops.elementwise("add", shape)),
    }
    between = dict.fromkeys(("t", "a0", "a1", "b0", "b1", "b2", "y"), shape)
    return program(steps, {"x": shape}, ["y"], between, sources)


def mixed() -> Program:
    """Views, a library function between kernels, an input and a constant that are outputs, one output twice."""
    steps = [
        run("relu", "x", "r"),
        View("r", "flat"),
        View("flat", "tail", 4 * 6),
        Call("gather", ("table", "ids"), ("rows",), {"axis": 0}, "gather"),
        run("tanh", "rows", "t"),
    ]
    shapes = {"r": (3, 4), "flat": (12,), "tail": (6,), "rows": (2, 6), "t": (2, 6)}
    sources = {"relu": unary((3, 4)), "tanh": unary((2, 6), "tanh")}
    constants = {"table": random(9, 5, 6), "ids": np.array([4, 1], np.int64)}
    return program(steps, {"x": (3, 4)}, ["flat", "x", "tail", "table", "t", "t"], shapes, sources, constants)


def flat(steps: Sequence[Step]) -> list[Step]:
    """Steps, those of lanes in place of their ``ParallelGroup``."""
    return list(flatten_lanes(steps))


def with_foreign() -> Program:
    """A kernel, a subgraph that ONNX Runtime computes, and a kernel that reads one of its two outputs."""
    onnx = pytest.importorskip("onnx")
    pytest.importorskip("onnxruntime")
    helper, float32 = onnx.helper, onnx.TensorProto.FLOAT
    nodes = [helper.make_node("Sign", ["r"], ["s"]), helper.make_node("Sinh", ["r"], ["h"])]
    ends = [[helper.make_tensor_value_info(n, float32, [3, 4]) for n in names] for names in (["r"], ["s", "h"])]
    graph = helper.make_graph(nodes, "part", *ends)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    steps = [
        run("relu", "x", "r"),
        Foreign("onnxruntime", model.SerializeToString(), ("r",), ("s", "h"), ("sign", "sinh")),
        run("tanh", "h", "y"),
    ]
    shape = (3, 4)
    sources = {"relu": unary(shape), "tanh": unary(shape, "tanh")}
    return program(steps, {"x": shape}, ["s", "y"], dict.fromkeys(("r", "s", "h", "y"), shape), sources)
