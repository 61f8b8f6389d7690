"""From stages to a kernel: an expression whose names say nothing about the model, and its key."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from roller.expr import Axis, Const, Index, Load, Scalar, Stage, Tensor, TensorExpr, map_indices, transform
from roller.model.steps import KernelSource, Value
from roller.onnx.lowered import Computed


@dataclass(frozen=True)
class Kernel:
    """A kernel and what it is called with.

    Parameters
    ----------
    key
        Equal for parts that may share the kernel: names do not matter, the values of constants do not either.
    source
        What it is compiled from.
    inputs, outputs
        Names of values (or constants), one per input and output of the expression.
    """

    key: str
    source: KernelSource
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


def kernel_of(part: Computed, values: Mapping[str, Value], constants: Mapping[str, np.ndarray], label: str) -> Kernel:
    """Return the kernel of a part; inputs nobody reads are none.

    Raises
    ------
    ExprError
        Where the stages are no valid expression.
    """
    stages = tuple(replace(s, body=with_literals(s.body, constants)) for s in part.stages)
    own = {s.name for s in stages}
    names = tuple(dict.fromkeys(ld.tensor for s in stages for ld in s.loads if ld.tensor not in own))
    renamed = {n: f"x{k}" for k, n in enumerate(names)}
    renamed |= {s.name: f"t{k}" for k, s in enumerate(stages)} | {n: f"y{k}" for k, n in enumerate(part.outputs)}
    axes: dict[str, str] = {}
    for s in stages:
        for a in s.axes:
            axes.setdefault(a.name, f"{'d' if a.kind == 'spatial' else 'k'}{len(axes)}")
    inputs = tuple(Tensor(renamed[n], values[n].shape, values[n].dtype) for n in names)
    plain = tuple(_renamed(s, renamed, axes) for s in stages)
    expr = TensorExpr(label, inputs, plain, tuple(renamed[n] for n in part.outputs))
    fixed = tuple(renamed[n] for n in names if n in constants)
    types = [(t.shape, t.dtype) for t in (*expr.inputs, *expr.output_tensors)]
    positions = [n for n, name in enumerate(names) if name in constants]
    text = json.dumps([expr.key, types, positions, expr.allow_padding])
    key = hashlib.sha256(text.encode()).hexdigest()[:24]
    return Kernel(key, KernelSource(expr, fixed), names, part.outputs)


def with_literals(body: Scalar, constants: Mapping[str, np.ndarray]) -> Scalar:
    """Return ``body`` with loads of constants of one element replaced by their values."""

    def leaf(n: Scalar) -> Scalar:
        held = constants.get(n.tensor) if isinstance(n, Load) and not n.guard else None
        if held is None or held.size != 1:
            return n
        value = held.reshape(()).item()
        return Const(int(value) if held.dtype.kind == "b" else value, held.dtype.name)

    return transform(body, leaf)


def _renamed(s: Stage, tensors: Mapping[str, str], axes: Mapping[str, str]) -> Stage:
    def index(i: Index) -> Index:
        return replace(i, terms=tuple(replace(t, axis=axes[t.axis]) for t in i.terms))

    def leaf(n: Scalar) -> Scalar:
        return replace(n, tensor=tensors[n.tensor]) if isinstance(n, Load) else n

    return replace(
        s,
        output=replace(s.output, name=tensors[s.name]),
        axes=tuple(Axis(axes[a.name], a.extent, a.kind) for a in s.axes),
        store=tuple(index(i) for i in s.store),
        body=transform(map_indices(s.body, index), leaf),
    )
