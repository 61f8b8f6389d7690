"""Lowered models: values, constants, and steps in a valid order.

A graph's partition consists of these steps, and so does the saved plan, which adds the locations of values
(:mod:`roller_runtime.plan.execution_plan`). All classes are frozen, JSON-ready data except for constants.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np

from roller_runtime.core.display import one_line_repr
from roller_runtime.core.dtypes import DTYPE_BYTES
from roller_runtime.errors import counted


@dataclass(frozen=True)
class Value:
    """A tensor passed between steps.

    Parameters
    ----------
    name
        Name of the tensor, unique in its model.
    shape
        Number of elements per dimension, which may be 0; ``()`` is a scalar.
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
        """Size in bytes."""
        return self.elements * DTYPE_BYTES[self.dtype]


@dataclass(frozen=True)
class DynamicOutput:
    """An output whose shape is known only at run time; it has no planned memory. A :class:`Foreign` step writes it.

    Parameters
    ----------
    dims
        Number of elements per dimension, ``None`` if unknown; ``None`` instead of the tuple for an unknown rank.
    """

    name: str
    dims: tuple[int | None, ...] | None
    dtype: str


@dataclass(frozen=True)
class Run:
    """One launch of a compiled kernel.

    Parameters
    ----------
    label
        Readable name (``"conv1 + relu1"``).
    kernel
        Key of the kernel; equal subgraphs share it.
    inputs, outputs
        Names of values or constants in the order of the kernel's expression.
    nodes
        Names of the graph nodes that the kernel computes.
    """

    label: str
    kernel: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    nodes: tuple[str, ...] = ()


@dataclass(frozen=True)
class View:
    """``target`` is the memory of ``source`` from ``offset_bytes`` on: a reshape or contiguous part without a copy."""

    source: str
    target: str
    offset_bytes: int = 0


@dataclass(frozen=True)
class Join:
    """``target`` concatenates its sources along ``axis``; the sources of a contiguous join are written in place."""

    sources: tuple[str, ...]
    target: str
    axis: int


@dataclass(frozen=True)
class Copy:
    """Copies ``rows`` rows of ``row_bytes`` bytes from ``source`` to ``target``, with offsets and pitches in bytes."""

    source: str
    target: str
    rows: int
    row_bytes: int
    source_offset_bytes: int = 0
    source_pitch_bytes: int = 0
    target_offset_bytes: int = 0
    target_pitch_bytes: int = 0


@dataclass(frozen=True)
class Append:
    """``target`` is the memory of the input ``cache``, with ``source`` written along ``axis`` from ``offset`` on."""

    source: str
    cache: str
    target: str
    axis: int
    offset: int


@dataclass(frozen=True)
class Call:
    """A function of ``roller_runtime.session.array_functions``, for operators that no tensor expression describes."""

    function: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: Mapping[str, Any] = field(default_factory=dict)
    label: str = ""


@dataclass(frozen=True)
class Foreign:
    """A subgraph that another runtime computes (``fallback="onnxruntime"``); ``model`` contains it as ONNX bytes."""

    runtime: str
    model: bytes = field(repr=False)
    inputs: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()
    nodes: tuple[str, ...] = ()


@dataclass(frozen=True)
class ParallelGroup:
    """Lanes that run concurrently, each a sequence of steps; no lane reads a value that another lane writes."""

    lanes: tuple[tuple[Step, ...], ...]


Step: TypeAlias = "Run | View | Join | Copy | Append | Call | Foreign | ParallelGroup"


@dataclass(frozen=True)
class Program:
    """A whole model as a sequence of steps.

    Parameters
    ----------
    inputs, outputs
        Names of the values that a caller passes and receives, in order.
    values
        All values by name, including constants.
    steps
        Steps in an order in which every value is written before it is read.
    kernels
        Sources of the kernels by key.
    loose
        Outputs whose shapes are known only at run time; they are absent from ``values``.
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
        """Return the name and the numbers of kernels and steps on one line."""
        kernels, steps = counted(len(self.kernels), "kernel"), counted(len(self.steps), "step")
        return one_line_repr("Program", f"{self.name or 'model'}: {kernels} in {steps}")


@dataclass(frozen=True)
class KernelSource:
    """Input of a kernel's compilation.

    Parameters
    ----------
    constants
        Names of the constant inputs of ``expression``.
    units
        Number of device units for a kernel in a lane of a :class:`ParallelGroup`; ``None`` for all. On a CPU, such a
        kernel starts no threads.
    """

    expression: Any  # a TensorExpr, which this package does not know
    constants: tuple[str, ...] = ()
    units: int | None = None


def values_read(step: Step) -> tuple[str, ...]:
    """Return the names that a step reads, each once."""
    if isinstance(step, ParallelGroup):
        return tuple(dict.fromkeys(n for lane in step.lanes for s in lane for n in values_read(s)))
    if isinstance(step, Join):
        return tuple(dict.fromkeys(step.sources))
    if isinstance(step, (View, Copy)):
        return (step.source,)
    if isinstance(step, Append):
        return step.source, step.cache
    return tuple(dict.fromkeys(n for n in step.inputs if n))


def values_written(step: Step) -> tuple[str, ...]:
    """Return the names that a step writes."""
    if isinstance(step, ParallelGroup):
        return tuple(dict.fromkeys(n for lane in step.lanes for s in lane for n in values_written(s)))
    return (step.target,) if isinstance(step, (View, Join, Copy, Append)) else tuple(n for n in step.outputs if n)


def iterate_kernel_runs(steps: Iterable[Step]) -> Iterator[Run]:
    """Yield every kernel step, including those in lanes."""
    for step in steps:
        if isinstance(step, ParallelGroup):
            for lane in step.lanes:
                yield from iterate_kernel_runs(lane)
        elif isinstance(step, Run):
            yield step
