"""TensorExpr: a small frozen DAG of stages over named axes, which all stages of an expression share."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from roller.errors import ExprError, did_you_mean, shown
from roller.expr.combiners import COMBINERS
from roller.expr.scalar import Index, Load, Scalar, loads
from roller_runtime.core.display import one_line_repr
from roller_runtime.core.dtypes import DTYPE_BYTES, canonical_dtype_name

SPATIAL, REDUCTION = "spatial", "reduction"

#: Maximum number of elements in a tensor or points in a stage: counts and bytes, padded on every axis, stay below
#: 2**63.
MOST_POINTS = 2**56

#: Number of elements that 32-bit offsets in generated kernels can address; a tensor must have fewer.
OFFSET_ELEMENTS = 2**31


@dataclass(frozen=True)
class Axis:
    """A loop of a stage: its name, extent (elements) and kind (``spatial`` or ``reduction``)."""

    name: str
    extent: int
    kind: str = SPATIAL

    def __post_init__(self) -> None:
        """Reject extents that no loop can have."""
        if not isinstance(self.extent, (int, np.integer)) or isinstance(self.extent, bool):
            raise ExprError(
                f"axis '{self.name}': expected an integer extent, got {shown(self.extent)}. Give concrete shapes; "
                "symbolic extents are not supported."
            )
        if self.extent < 1:
            raise ExprError(f"axis '{self.name}': expected an extent of at least 1, got {shown(self.extent)}.")


@dataclass(frozen=True)
class Tensor:
    """A named array: shape in elements, dtype as a NumPy-style name."""

    name: str
    shape: tuple[int, ...]
    dtype: str = "float32"

    def __post_init__(self) -> None:
        """Reject invalid shapes and unknown dtypes, and replace an alias of a dtype by its name."""
        object.__setattr__(self, "dtype", canonical_dtype_name(self.dtype))
        if self.dtype not in DTYPE_BYTES:
            raise ExprError(
                f"tensor '{self.name}': unknown dtype '{self.dtype}'{did_you_mean(self.dtype, DTYPE_BYTES) or '.'} "
                f"Use one of {sorted(DTYPE_BYTES)}."
            )
        if any(int(s) < 1 for s in self.shape):
            raise ExprError(f"tensor '{self.name}': expected positive dimensions, got {shown(self.shape)}.")

    @property
    def elements(self) -> int:
        """Number of elements."""
        return int(np.prod(self.shape, dtype=np.int64)) if self.shape else 1

    @property
    def itemsize_bytes(self) -> int:
        """Size of one element in bytes."""
        return DTYPE_BYTES[self.dtype]

    @property
    def nbytes(self) -> int:
        """Size of the whole tensor in bytes."""
        return self.elements * self.itemsize_bytes


@dataclass(frozen=True)
class Stage:
    """One loop nest: ``output[store] = combine over reduction axes of body``, accumulated in ``acc_dtype``."""

    output: Tensor
    axes: tuple[Axis, ...]
    store: tuple[Index, ...]
    body: Scalar
    combiner: str | None = None
    acc_dtype: str = "float32"

    def __post_init__(self) -> None:
        """Check that the combiner and the axes agree."""
        if self.combiner is not None and self.combiner not in COMBINERS:
            raise ExprError(f"stage '{self.name}': unknown combiner '{self.combiner}'. Use one of {sorted(COMBINERS)}.")
        if self.combiner is None and self.reduction_axes:
            raise ExprError(f"stage '{self.name}': has reduction axes but no combiner.")

    def __repr__(self) -> str:
        """Return the computation on one line."""
        from roller.expr.expression_text import stage_text

        return one_line_repr("Stage", stage_text(self))

    @property
    def name(self) -> str:
        """Name of the tensor that the stage writes."""
        return self.output.name

    @cached_property
    def spatial_axes(self) -> tuple[Axis, ...]:
        """Axes of the result."""
        return tuple(a for a in self.axes if a.kind == SPATIAL)

    @cached_property
    def reduction_axes(self) -> tuple[Axis, ...]:
        """Axes that the combiner reduces."""
        return tuple(a for a in self.axes if a.kind == REDUCTION)

    @cached_property
    def extents(self) -> dict[str, int]:
        """Extent of each axis, keyed by axis name."""
        return {a.name: a.extent for a in self.axes}

    @cached_property
    def loads(self) -> tuple[Load, ...]:
        """Distinct loads of the body."""
        return loads(self.body)

    @cached_property
    def points(self) -> int:
        """Number of points over all axes, spatial and reduction."""
        return int(np.prod([a.extent for a in self.axes], dtype=np.int64)) if self.axes else 1


@dataclass(frozen=True)
class TensorExpr:
    """Tensor expression of an operator: frozen, hashable and independent of TVM.

    Each stage writes one tensor. The store index of a stage maps the spatial axes to the tensor's dimensions; its body
    is a scalar tree over loads; an optional combiner reduces over the reduction axes. Axes with the same name in
    several stages are the same coordinate, so fusion and tiling act on all stages at once.

    Parameters
    ----------
    name
        Label for messages and reports (``"matmul"``); never used for a decision and not part of ``key``.
    inputs
        Tensors that the caller passes, in call order.
    stages
        Loop nests in topological order.
    outputs
        Names of the result tensors.
    allow_padding
        Whether the upper layers may pad axes; if ``False``, only divisors of an extent are tile sizes.
    propagate_nan
        Whether a maximum or minimum of NaN and a number is NaN, as in NumPy and PyTorch; if ``False``, kernels may
        return either (``ConstructOptions.propagate_nan``).
    """

    name: str
    inputs: tuple[Tensor, ...]
    stages: tuple[Stage, ...]
    outputs: tuple[str, ...]
    allow_padding: bool = True
    propagate_nan: bool = True
    # Not an argument: dataclasses.replace must start with an empty one, or results of the old value would be reused.
    _memo: dict[str, Any] = field(default_factory=dict, init=False, compare=False, repr=False, hash=False)

    def __post_init__(self) -> None:
        """Check names, ranks and order of the stages."""
        known: dict[str, Tensor] = {}
        for t in self.inputs:
            if t.name in known:
                raise ExprError(f"{self.name}: two tensors are named '{t.name}'. Give each a name of its own.")
            known[t.name] = t
        if not self.stages:
            raise ExprError(f"{self.name}: expected at least one stage, got none.")
        for s in self.stages:
            self._check_stage(s, known)
            known[s.name] = s.output
        self._check_sizes(known.values())
        written = {s.name for s in self.stages}
        for o in self.outputs:
            if o not in written:
                raise ExprError(f"{self.name}: output '{o}' is written by no stage.")

    def _check_sizes(self, tensors: Iterable[Tensor]) -> None:
        """Reject sizes whose padded byte counts would overflow 64 bits and wrap around silently."""
        shapes = [(f"tensor '{t.name}'", "elements", t.shape) for t in tensors]
        shapes += [(f"stage '{s.name}'", "points", tuple(s.extents.values())) for s in self.stages]
        for where, unit, shape in shapes:
            count = math.prod(int(n) for n in shape)
            if count > MOST_POINTS:
                raise ExprError(
                    f"{self.name}: {where}: expected at most {MOST_POINTS} {unit}, got {shown(count)} {shown(shape)}. "
                    "Use smaller extents."
                )

    def _check_stage(self, s: Stage, known: Mapping[str, Tensor]) -> None:
        if s.name in known:
            raise ExprError(f"{self.name}: two tensors are named '{s.name}'. Give each a name of its own.")
        if len(s.store) != len(s.output.shape):
            raise ExprError(f"{self.name}: stage '{s.name}' stores {len(s.store)} indices into {s.output.shape}.")
        names = set(s.extents)
        for ld in s.loads:
            t = known.get(ld.tensor)
            if t is None:
                raise ExprError(f"{self.name}: stage '{s.name}' reads '{ld.tensor}', which nothing defines before it.")
            if len(ld.index) != len(t.shape):
                raise ExprError(f"{self.name}: '{ld.tensor}' has {len(t.shape)} dimensions, read with {len(ld.index)}.")
            self._check_load(s, ld, t, names)

    def _check_load(self, s: Stage, ld: Load, t: Tensor, names: set[str]) -> None:
        for d, i in enumerate(ld.index):
            unknown = set(i.axes) - names
            if unknown:
                raise ExprError(f"{self.name}: stage '{s.name}' reads '{ld.tensor}' by unknown axes {sorted(unknown)}.")
            low, high = i.range(s.extents)
            guards = [b for b in ld.guard if b.index == i]
            low = max([low, *(b.low for b in guards)])
            high = min([high, *(b.high - 1 for b in guards)])
            if low <= high and (low < 0 or high >= t.shape[d]):
                raise ExprError(
                    f"{self.name}: stage '{s.name}' reads '{ld.tensor}' dimension {d} at {low}..{high}, outside "
                    f"0..{t.shape[d] - 1}. Guard the access or correct the shape."
                )

    @cached_property
    def tensors(self) -> dict[str, Tensor]:
        """All tensors, keyed by name: inputs, intermediates and outputs."""
        return {t.name: t for t in (*self.inputs, *(s.output for s in self.stages))}

    @cached_property
    def anchor(self) -> Stage:
        """The stage that determines the tiling: the reduction with the most points, else the largest stage."""
        reducing = [s for s in self.stages if s.combiner is not None]
        return max(reducing or list(self.stages), key=lambda s: s.points)

    @property
    def axes(self) -> tuple[Axis, ...]:
        """Axes of the anchor: spatial ones in output order, then reduction axes."""
        return self.anchor.axes

    @cached_property
    def output_tensors(self) -> tuple[Tensor, ...]:
        """The result tensors, in the order of ``outputs``."""
        return tuple(self.tensors[o] for o in self.outputs)

    @cached_property
    def epilogue(self) -> Stage | None:
        """The only other stage, if it is element-wise and reads the anchor's result in place, else ``None``."""
        if len(self.stages) != 2 or self.stages[0] is not self.anchor:
            return None
        last = self.stages[1]
        own = [ld for ld in last.loads if ld.tensor == self.anchor.name]
        same = last.combiner is None and last.store == self.anchor.store and last.axes == self.anchor.spatial_axes
        return last if same and own and all(ld.index == self.anchor.store and not ld.guard for ld in own) else None

    @cached_property
    def flops(self) -> int:
        """Number of floating-point operations over all points; a fused multiply-add counts as two."""
        from roller.expr.scalar import Call, walk_scalar_tree

        total = 0
        for s in self.stages:
            ops = sum(1 for n in walk_scalar_tree(s.body) if isinstance(n, Call)) + (1 if s.combiner else 0)
            total += ops * s.points
        return total

    @cached_property
    def compulsory_bytes(self) -> int:
        """Total size of all inputs and outputs in bytes, each counted once."""
        return sum(t.nbytes for t in self.inputs) + sum(t.nbytes for t in self.output_tensors)

    @cached_property
    def key(self) -> str:
        """SHA-256 of the canonical (fused) form with all names replaced by positions."""
        from roller.expr.canonical import fuse_axes
        from roller.expr.serialize import expr_to_nameless_dict

        return hashlib.sha256(json.dumps(expr_to_nameless_dict(fuse_axes(self)), sort_keys=True).encode()).hexdigest()

    def evaluate(
        self, arrays: Sequence[np.ndarray], points: np.ndarray | None = None, *, magnitude: bool = False
    ) -> tuple[np.ndarray, ...]:
        """Compute the float64 reference; see :func:`roller.expr.evaluate.evaluate`."""
        from roller.expr.evaluate import evaluate

        return evaluate(self, arrays, points, magnitude=magnitude)

    def __str__(self) -> str:
        """Return name, axes, dtypes and epilogue on one line."""
        from roller.expr.expression_text import expr_text

        return expr_text(self)

    def __repr__(self) -> str:
        """Return a shortened form of :meth:`__str__`."""
        return one_line_repr("TensorExpr", str(self))
