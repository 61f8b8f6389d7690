"""``python -m benchmarks.onnx.large``: how compiling grows with a model's nodes, by what the model looks like."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated

import numpy as np
import typer

import onnx
from benchmarks.common import screen, table, write_json
from onnx import TensorProto, helper
from roller.models.compile import compile_model
from roller.models.graph import memory_plan
from roller.models.onnx import read_model, simplify_graph
from roller.models.onnx.partition_graph import partition_graph

#: A model of 10^5 nodes is read, folded, partitioned and planned within this, on two cores that do nothing else.
LIMIT_S = 20.0

Made = tuple[list[onnx.NodeProto], list[str], list[str], dict[str, np.ndarray]]


def _chain(nodes: int) -> Made:
    """Return element-wise nodes in a row."""
    kinds = ("Relu", "Neg", "Abs", "LeakyRelu")
    made = [helper.make_node(kinds[i % 4], [f"v{i}"], [f"v{i + 1}"]) for i in range(nodes)]
    return made, ["v0"], [f"v{nodes}"], {}


def _branches(nodes: int) -> Made:
    """Return chains of ten nodes side by side, which one Concat puts together."""
    made, ends = [], []
    for b in range(nodes // 10):
        made += [
            helper.make_node(("Relu", "Tanh")[i % 2], [f"v{b}_{i}" if i else "x"], [f"v{b}_{i + 1}"])
            if i
            else helper.make_node("Mul", ["x", f"k{b}"], [f"v{b}_1"])
            for i in range(10)
        ]
        ends.append(f"v{b}_10")
    weights = {f"k{b}": np.full(8, b + 1, np.float32) / 100 for b in range(nodes // 10)}
    return [*made, helper.make_node("Concat", ends, ["y"], axis=1)], ["x"], ["y"], weights


def _ports(nodes: int) -> Made:
    """Return nodes that each have an input and an output of the model."""
    made = [helper.make_node("Tanh", [f"x{i}"], [f"y{i}"]) for i in range(nodes)]
    return made, [f"x{i}" for i in range(nodes)], [f"y{i}" for i in range(nodes)], {}


def _residual(nodes: int) -> Made:
    """Return residual blocks in a row: a product, a function, a sum with what came in."""
    made = []
    for i in range(nodes // 3):
        made += [
            helper.make_node("MatMul", [f"v{i}", f"w{i % 4}"], [f"p{i}"]),
            helper.make_node("Tanh", [f"p{i}"], [f"t{i}"]),
            helper.make_node("Add", [f"t{i}", f"v{i}"], [f"v{i + 1}"]),
        ]
    weights = {f"w{k}": np.random.default_rng(k).standard_normal((8, 8), np.float32) / 8 for k in range(4)}
    return made, ["v0"], [f"v{nodes // 3}"], weights


def _convolutions(nodes: int) -> Made:
    """Return small convolutions with weights of their own, each with its activation."""
    made, weights = [], {}
    for i in range(nodes // 2):
        weights[f"w{i}"] = np.random.default_rng(i).standard_normal((4, 4, 3, 3), np.float32) / 6
        made += [
            helper.make_node("Conv", [f"v{i}", f"w{i}"], [f"c{i}"], pads=[1] * 4),
            helper.make_node("Relu", [f"c{i}"], [f"v{i + 1}"]),
        ]
    return made, ["v0"], [f"v{nodes // 2}"], weights


def _splits(nodes: int) -> Made:
    """Return one Split whose parts each go through a function into one Concat."""
    parts = nodes - 2
    made = [
        helper.make_node("Split", ["x"], [f"s{i}" for i in range(parts)], axis=0),
        *(helper.make_node("Tanh", [f"s{i}"], [f"t{i}"]) for i in range(parts)),
        helper.make_node("Concat", [f"t{i}" for i in range(parts)], ["y"], axis=0),
    ]
    return made, ["x"], ["y"], {"s": np.ones(parts, np.int64)}


def _dense(nodes: int) -> Made:
    """Return layers that each add up all ten before them."""
    made = []
    for i in range(nodes):
        made.append(helper.make_node("Sum", [f"v{j}" for j in range(max(0, i - 9), i + 1)], [f"v{i + 1}"]))
    return made, ["v0"], [f"v{nodes}"], {}


SHAPES: dict[str, Callable[[int], Made]] = {
    "chain": _chain,
    "branches": _branches,
    "ports": _ports,
    "residual": _residual,
    "convolutions": _convolutions,
    "splits": _splits,
    "dense": _dense,
}
_EXTENTS = {"convolutions": (1, 4, 6, 6), "residual": (8, 8)}


def large_model(kind: str, nodes: int) -> onnx.ModelProto:
    """Return a model of about so many nodes."""
    made, inputs, outputs, weights = SHAPES[kind](nodes)
    extent = (nodes - 2, 8) if kind == "splits" else _EXTENTS.get(kind, (4, 8))
    given = [helper.make_tensor_value_info(n, TensorProto.FLOAT, extent) for n in inputs]
    written = [helper.make_tensor_value_info(n, TensorProto.FLOAT, None) for n in outputs]
    held = [onnx.numpy_helper.from_array(a, n) for n, a in weights.items()]
    graph = helper.make_graph(made, kind, given, written, held)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10)


def stages(model: onnx.ModelProto) -> Iterator[tuple[str, float]]:
    """Yield the stages that come before and after kernels, with the seconds each takes."""
    data = model.SerializeToString()
    before = time.perf_counter()
    graph = read_model.read_onnx_graph(data)
    yield "read", time.perf_counter() - before
    before = time.perf_counter()
    graph = simplify_graph.fold_graph(graph)
    yield "fold", time.perf_counter() - before
    before = time.perf_counter()
    program = partition_graph(graph)
    yield "partition", time.perf_counter() - before
    before = time.perf_counter()
    memory_plan.plan_memory(program)
    yield "plan", time.perf_counter() - before


def main(
    kinds: Annotated[str, typer.Option("--filter", help="Comma-separated kinds of models.")] = ",".join(SHAPES),
    nodes: Annotated[int, typer.Option(min=100, help="Nodes of a model.")] = 100_000,
    whole: Annotated[bool, typer.Option(help="Compile the model, kernels included.")] = False,
    json: Annotated[Path | None, typer.Option(help="Write the seconds here.")] = None,
    strict: Annotated[bool, typer.Option(help="Exit 1 where a limit is missed.")] = False,
) -> None:
    """Time the stages of a model's road at a tenth of its nodes and at all of them."""
    rows = []
    for kind in kinds.split(","):
        for count in (nodes // 10, nodes):
            model = large_model(kind, count)
            if whole:
                before = time.perf_counter()
                session = compile_model(model, "cpu", cache=False, deterministic=True)
                seconds = {"compile_model": time.perf_counter() - before}
                del session
            else:
                seconds = dict(stages(model))
            rows.append({"model": kind, "nodes": count, **seconds, "total": sum(seconds.values())})
            screen().print(f"{kind} {count}: " + ", ".join(f"{k} {v:.2f} s" for k, v in seconds.items()))
    names = [n for n in rows[0] if n not in ("model", "nodes")]
    screen().print(
        table(
            "Seconds",
            ["model", "nodes", *names],
            [[r["model"], str(r["nodes"]), *(f"{r[n]:.2f}" for n in names)] for r in rows],
        )
    )
    if json is not None:
        write_json(json, {"rows": rows})
    if strict and any(r["total"] > LIMIT_S for r in rows):
        raise typer.Exit(1)


if __name__ == "__main__":
    typer.run(main)
