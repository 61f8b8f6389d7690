"""Partitions a graph into a program: lowers every node to parts and fuses parts into kernels."""

from __future__ import annotations

from roller.models.argument_validation import validate_fallback
from roller.models.graph.fuse_parts import fuse_parts
from roller.models.graph.fusion_rule_cache import NamedForm
from roller.models.graph.lowered_parts import (
    AliasPart,
    AppendPart,
    ComputedPart,
    ConcatPart,
    FallbackSubgraph,
    LibraryFunctionPart,
    PartProtocol,
)
from roller.models.graph.lowering_state import Lowering
from roller.models.graph.model_graph import FallbackRegion, Graph
from roller.models.graph.model_independent_kernels import make_kernel_call, make_kernel_source
from roller.models.graph.partition_report import Partition, partition_report
from roller.models.onnx.lower_graph import lower_graph, refused_nodes_error
from roller_runtime.core.gc_pause import gc_paused
from roller_runtime.plan.program_steps import (
    Append,
    Call,
    Foreign,
    Join,
    KernelSource,
    Program,
    Run,
    Step,
    Value,
    View,
    values_read,
    values_written,
)


def partition_graph(graph: Graph, *, fallback: str | None = None) -> Program:
    """Return the program of a graph."""
    return partition_with_report(graph, fallback=fallback).program


@gc_paused()
def partition_with_report(graph: Graph, *, fallback: str | None = None) -> Partition:
    """Return the program of a graph and a report on its nodes."""
    fallback = validate_fallback(fallback, graph.name)
    low = lower_graph(graph)
    refused = low.refused
    reasons = {r.nodes[0]: r.reason for r in refused}
    if fallback is not None:
        from roller.models.onnx.fallback_subgraphs import replace_refused_nodes

        refused = replace_refused_nodes(low)
        reasons |= {name: why for n in graph.nodes if isinstance(n, FallbackRegion) for name, why in n.reasons.items()}
    if refused:
        raise refused_nodes_error(graph.name, refused, fallback)
    cuts = fuse_parts(low)
    return partition_report(make_program(low), tuple(cuts), reasons)


def make_program(low: Lowering) -> Program:
    """Return the program that runs the parts in ``low`` in order."""
    kernels: dict[str, KernelSource] = {}
    known: dict[tuple[int, tuple[int, ...]], str] = {}
    steps = tuple(
        _make_kernel_step(p, low, kernels, known) if isinstance(p, NamedForm) else _make_step(p, low, kernels)
        for p in low.parts
    )
    used = {n for s in steps for n in (*values_read(s), *values_written(s))} | {*low.graph.inputs, *low.graph.outputs}
    constants = {n: a for n, a in low.constants.items() if n in used}
    values = {n: v for n, v in low.values.items() if n in used}
    return Program(low.graph.name, low.graph.inputs, low.graph.outputs, values, constants, steps, kernels,
                   low.graph.loose)  # fmt: skip


def _make_kernel_step(
    piece: NamedForm, low: Lowering, kernels: dict[str, KernelSource], known: dict[tuple[int, tuple[int, ...]], str]
) -> Run:
    """Return the step for one piece; pieces of the same form share one kernel."""
    label = " + ".join(piece.nodes)
    at = id(piece.form), tuple(k for k, name in enumerate(piece.inputs) if name in low.constants)
    if at not in known:
        known[at], source = make_kernel_source(piece.form, at[1], label)
        kernels.setdefault(known[at], source)
    return Run(label, known[at], piece.inputs, piece.outputs, piece.nodes)


def _make_step(part: PartProtocol, low: Lowering, kernels: dict[str, KernelSource]) -> Step:
    """Return the step for one part; store its kernel in ``kernels``."""
    if isinstance(part, ComputedPart):
        for s in part.stages:
            if s.name in part.outputs:
                low.values.setdefault(s.name, Value(s.name, s.output.shape, s.output.dtype))
        label = " + ".join(part.nodes)
        made = make_kernel_call(part, low.constants, label)
        kernels.setdefault(made.key, made.source)
        return Run(label, made.key, made.inputs, made.outputs, part.nodes)
    if isinstance(part, AliasPart):
        return View(part.source, part.target, part.offset * _itemsize(low.values[part.source]))
    if isinstance(part, ConcatPart):
        return Join(part.sources, part.target, part.axis)
    if isinstance(part, AppendPart):
        return Append(part.source, part.cache, part.target, part.axis, part.offset)
    if isinstance(part, FallbackSubgraph):
        return Foreign("onnxruntime", part.model, part.inputs, part.outputs, part.nodes)
    assert isinstance(part, LibraryFunctionPart)
    return Call(part.name, part.arguments, part.results, part.attributes, " + ".join(part.nodes))


def _itemsize(value: Value) -> int:
    return value.nbytes // value.elements if value.elements else 0
