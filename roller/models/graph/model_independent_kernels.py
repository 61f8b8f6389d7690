"""Turns stages into kernels: an expression whose names are independent of the model, and its key."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Container, Mapping
from dataclasses import dataclass, replace

from roller.expr import SPATIAL, Axis, Index, Load, Scalar, Stage, TensorExpr, map_indices, transform_scalar
from roller.models.graph.lowered_parts import ComputedPart
from roller_runtime.plan.program_steps import KernelSource


@dataclass(frozen=True)
class KernelCall:
    """A kernel and the values with which it is called.

    Parameters
    ----------
    key
        Key that is equal for all parts that may share the kernel, whatever their names and constant values are.
    inputs, outputs
        Names of values, one for each input and output of the expression.
    """

    key: str
    source: KernelSource
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


def make_kernel_call(part: ComputedPart, constants: Container[str], label: str) -> KernelCall:
    """Return the kernel of a part; ``constants`` contains the names of constant values."""
    fixed = tuple(k for k, t in enumerate(part.reads) if t.name in constants)
    key, source = make_kernel_source(number_tensor_and_axis_names(part)[0], fixed, label)
    return KernelCall(key, source, part.inputs, part.outputs)


def make_kernel_source(form: ComputedPart, fixed: tuple[int, ...], label: str) -> tuple[str, KernelSource]:
    """Return the key and source of a numbered part's kernel, whose inputs at positions ``fixed`` are constant."""
    first = len(form.reads)
    names = {f"#{k}": f"x{k}" if k < first else f"t{k - first}" for k in range(first + len(form.stages))}
    names |= {n: f"y{k}" for k, n in enumerate(form.outputs)}
    axes = {a.name: a.name for s in form.stages for a in s.axes}
    inputs = tuple(replace(t, name=names[t.name]) for t in form.reads)
    stages = tuple(_rename_stage(s, names, axes) for s in form.stages)
    expr = TensorExpr(label, inputs, stages, tuple(names[n] for n in form.outputs))
    types = [(t.shape, t.dtype) for t in (*expr.inputs, *expr.output_tensors)]
    text = json.dumps([expr.key, types, fixed, expr.allow_padding])
    key = hashlib.sha256(text.encode()).hexdigest()[:24]
    return key, KernelSource(expr, tuple(inputs[k].name for k in fixed))


def number_tensor_and_axis_names(part: ComputedPart) -> tuple[ComputedPart, tuple[str, ...]]:
    """Return a part with numbered axes and tensors (``#0``, ``#1`` ..., inputs first), and the tensors' names."""
    names = (*part.inputs, *(s.name for s in part.stages))
    renamed = {n: f"#{k}" for k, n in enumerate(names)}
    axes: dict[str, str] = {}
    for s in part.stages:
        for a in s.axes:
            axes.setdefault(a.name, f"{'d' if a.kind == SPATIAL else 'k'}{len(axes)}")
    reads = tuple(replace(t, name=renamed[t.name]) for t in part.reads)
    stages = tuple(_rename_stage(s, renamed, axes) for s in part.stages)
    return ComputedPart(reads, stages, tuple(renamed[o] for o in part.outputs)), names


def _rename_stage(s: Stage, tensors: Mapping[str, str], axes: Mapping[str, str]) -> Stage:
    def index(i: Index) -> Index:
        return replace(i, terms=tuple(replace(t, axis=axes[t.axis]) for t in i.terms))

    def leaf(n: Scalar) -> Scalar:
        return replace(n, tensor=tensors[n.tensor]) if isinstance(n, Load) else n

    same = all(a == b for a, b in axes.items())  # axes of most forms are already numbered
    body = s.body if same else map_indices(s.body, index)
    return replace(
        s,
        output=replace(s.output, name=tensors[s.name]),
        axes=s.axes if same else tuple(Axis(axes[a.name], a.extent, a.kind) for a in s.axes),
        store=s.store if same else tuple(index(i) for i in s.store),
        body=transform_scalar(body, leaf),
    )
