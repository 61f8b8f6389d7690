"""What a model is once it is taken apart: values, constants, and steps in an order that may run.

The same steps go from the partition of a graph to the plan that is saved and run; what a plan adds is where every
value lives (:mod:`roller.models.graph.plan`). Everything here is plain data: frozen, JSON-ready but for the constants.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np

from roller.core.display import one_line
from roller.core.dtypes import DTYPE_BYTES
from roller.errors import counted
from roller.expr import TensorExpr


@dataclass(frozen=True)
class Value:
    """A tensor that passes between steps.

    Parameters
    ----------
    name
        Unique in its model.
    shape
        Elements per dimension; ``()`` is a scalar, a dimension may be 0.
    dtype
        NumPy-style name (``"float32"``, ``"bfloat16"``, ``"bool"``).
    """

    name: str
    shape: tuple[int, ...]
    dtype: str = "float32"

    @property
    def elements(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes of the whole tensor."""
        return self.elements * DTYPE_BYTES[self.dtype]


@dataclass(frozen=True)
class DynamicOutput:
    """An output whose shape only a run knows: no memory is planned for it, and a :class:`Foreign` step writes it.

    Parameters
    ----------
    name
        Unique in its model.
    dims
        What is known of its shape: elements per dimension, ``None`` for those that are not; ``None`` where not even
        their number is.
    dtype
        As of :class:`Value`.
    """

    name: str
    dims: tuple[int | None, ...] | None
    dtype: str


@dataclass(frozen=True)
class Run:
    """One compiled kernel.

    Parameters
    ----------
    label
        What it computes, for people (``"conv1 + relu1"``).
    kernel
        Key of the kernel: equal subgraphs share it.
    inputs
        Values or constants, one per input of the kernel's expression, in its order.
    outputs
        Values it writes, one per output of the expression.
    nodes
        Names of the nodes of the graph it stands for.
    """

    label: str
    kernel: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    nodes: tuple[str, ...] = ()


@dataclass(frozen=True)
class View:
    """``target`` is memory of ``source`` from ``offset_bytes`` on: a reshape, or a contiguous part. Costs nothing."""

    source: str
    target: str
    offset_bytes: int = 0


@dataclass(frozen=True)
class Join:
    """``target`` is its sources side by side along ``axis``.

    Where they lie in one piece (nothing but 1 before the axis) the memory plan lets their producers write there.
    """

    sources: tuple[str, ...]
    target: str
    axis: int


@dataclass(frozen=True)
class Copy:
    """``rows`` runs of ``row_bytes`` from ``source`` to ``target``, each with its own first byte and pitch (bytes)."""

    source: str
    target: str
    rows: int
    row_bytes: int
    source_offset_bytes: int = 0
    source_pitch_bytes: int = 0
    target_offset_bytes: int = 0
    target_pitch_bytes: int = 0


@dataclass(frozen=True)
class Call:
    """A function of :mod:`roller.models.session.library`, computed by the array module of the device (NumPy, CuPy).

    For what no tensor expression is: indices that are data, sorting, shapes of results that depend on values.
    """

    function: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: Mapping[str, Any] = field(default_factory=dict)
    label: str = ""


@dataclass(frozen=True)
class Foreign:
    """A subgraph that another runtime computes (``fallback="onnxruntime"``); ``model`` is it as ONNX bytes."""

    runtime: str
    model: bytes = field(repr=False)
    inputs: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()
    nodes: tuple[str, ...] = ()


@dataclass(frozen=True)
class ParallelGroup:
    """Lanes that run at the same time, each a sequence of steps: no lane reads what another one writes.

    Parameters
    ----------
    lanes
        The steps of each.
    """

    lanes: tuple[tuple[Step, ...], ...]


Step: TypeAlias = "Run | View | Join | Copy | Call | Foreign | ParallelGroup"


@dataclass(frozen=True)
class Program:
    """A whole model as steps.

    Parameters
    ----------
    name
        Of the model, for people.
    inputs, outputs
        Names of the values a caller passes and gets, in order.
    values
        Every value by name: inputs, outputs and what lies between; constants too.
    constants
        Arrays by name; what kernels take as constants are among them.
    steps
        In an order in which every value is written before it is read.
    kernels
        The expression of every kernel by key, and the names (of ``expr.inputs``) that are constant.
    loose
        Outputs of which only a run knows the shape; they are no ``values``.
    """

    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    values: Mapping[str, Value]
    constants: Mapping[str, np.ndarray] = field(repr=False)
    steps: tuple[Step, ...] = ()
    kernels: Mapping[str, KernelSource] = field(default_factory=dict)
    loose: Mapping[str, DynamicOutput] = field(default_factory=dict)

    def __repr__(self) -> str:
        """Name and size on one line."""
        kernels, steps = counted(len(self.kernels), "kernel"), counted(len(self.steps), "step")
        return one_line("Program", f"{self.name or 'model'}: {kernels} in {steps}")


@dataclass(frozen=True)
class KernelSource:
    """What a kernel is compiled from.

    Parameters
    ----------
    expression
        What it computes.
    constants
        Names of the inputs that never change.
    units
        Units of the device it is constructed for, where it has but a share of them: lanes of a :class:`ParallelGroup`.
        On a CPU such a kernel starts no threads of its own. ``None`` is all of them.
    """

    expression: TensorExpr
    constants: tuple[str, ...] = ()
    units: int | None = None


def reads(step: Step) -> tuple[str, ...]:
    """Return the names a step reads, each once."""
    if isinstance(step, ParallelGroup):
        return tuple(dict.fromkeys(n for lane in step.lanes for s in lane for n in reads(s)))
    if isinstance(step, Join):
        return tuple(dict.fromkeys(step.sources))
    if isinstance(step, (View, Copy)):
        return (step.source,)
    return tuple(dict.fromkeys(n for n in step.inputs if n))


def writes(step: Step) -> tuple[str, ...]:
    """Return the names a step writes."""
    if isinstance(step, ParallelGroup):
        return tuple(dict.fromkeys(n for lane in step.lanes for s in lane for n in writes(s)))
    return (step.target,) if isinstance(step, (View, Join, Copy)) else tuple(n for n in step.outputs if n)


def runs_of(steps: Iterable[Step]) -> Iterator[Run]:
    """Yield every kernel step, those of lanes too."""
    for step in steps:
        if isinstance(step, ParallelGroup):
            for lane in step.lanes:
                yield from runs_of(lane)
        elif isinstance(step, Run):
            yield step
