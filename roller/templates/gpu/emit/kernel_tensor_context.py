"""Tensors of one lowering: global buffers, values computed in place, and element types."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from roller.expr import Index, Load, Scalar, Stage, Tensor, TensorExpr
from roller.expr.scalar import transform_scalar
from roller.te.compat import dtype_of, tirx
from roller.te.emit_tvm_expressions import emit_scalar
from roller.templates.gpu.emit.tir_statements import Buffer, Expr, Stmt, declare_buffer, load
from roller.tile.vector_access_widths import is_in_memory
from roller_runtime.core.dtypes import NARROW_FLOATS

#: Returns a tensor's element at the given indices, for ``emit_scalar``.
Reader = Callable[..., Expr]


def compute_dtype(dtype: str) -> str:
    """Return the dtype of arithmetic on elements of ``dtype``: half types compute in float32."""
    return "float32" if dtype in NARROW_FLOATS else dtype


def promote_narrow_float(value: Expr) -> Expr:
    """Convert a half-precision value to float32; leave any other value unchanged."""
    return value.astype("float32") if dtype_of(value) in NARROW_FLOATS else value


@dataclass
class KernelContext:
    """Buffers of one expression while its kernels are written; unbuffered element-wise results are recomputed."""

    expr: TensorExpr
    #: Whether the target copies from global memory to the scratchpad without registers.
    async_copies: bool = False
    buffers: dict[str, Buffer] = field(default_factory=dict)
    workspaces: list[Tensor] = field(default_factory=list)
    #: Memory that :attr:`prepare` fills from constant inputs before all calls.
    panels: list[Tensor] = field(default_factory=list)
    #: The kernel that fills the panels, if there are any.
    prepare: Stmt | None = None
    #: Axes along which elements are copied one by one, because row lengths are known only at the call.
    scalar_axes: frozenset[str] = frozenset()
    #: Whether the template places all barriers itself.
    own_barriers: bool = False

    def __post_init__(self) -> None:
        """Declare inputs and outputs."""
        for t in (*self.expr.inputs, *self.expr.output_tensors):
            self.declare(t)

    def prefix(self, word: str) -> str:
        """Return ``word``, extended until no tensor's name starts with it, as a prefix for names of registers."""
        while any(name.startswith(word) for name in self.tensors):
            word += "_"
        return word

    def declare(self, tensor: Tensor) -> Buffer:
        """Declare the global buffer of a tensor, named like the tensor as far as C allows."""
        taken = {b.name for b in self.buffers.values()}
        name = base = re.sub(r"\W", "_", tensor.name, flags=re.ASCII)
        n = 1
        while name in taken:
            name, n = f"{base}_{n}", n + 1
        self.buffers[tensor.name] = declare_buffer(name, tensor.shape, tensor.dtype)
        return self.buffers[tensor.name]

    def workspace(self, tensor: Tensor) -> Buffer:
        """Declare memory that holds data between the kernels of one call."""
        self.workspaces.append(tensor)
        return self.declare(tensor)

    @property
    def tensors(self) -> dict[str, Tensor]:
        """All tensors, including workspaces, keyed by name."""
        return {**self.expr.tensors, **{t.name: t for t in self.workspaces}}

    def panel(self, tensor: Tensor) -> Buffer:
        """Declare memory that is filled once and read by every call."""
        self.panels.append(tensor)
        return self.declare(tensor)

    def is_scalar(self, load: Load) -> bool:
        """Return whether the rows that a load reads may have any length, so that vectors of them may be misaligned."""
        return bool(load.index) and not self.scalar_axes.isdisjoint(load.index[-1].axes)

    def stage(self, tensor: str) -> Stage | None:
        """Return the stage that writes a tensor, or ``None`` for an input."""
        return next((s for s in self.expr.stages if s.name == tensor), None)

    def is_in_global_memory(self, tensor: str) -> bool:
        """Return whether a kernel may read the tensor from global memory; element-wise results are recomputed."""
        return tensor in self.buffers and is_in_memory(self.expr, tensor)

    def readers(self, local: Mapping[str, Reader] | None = None) -> dict[str, Reader]:
        """Return a reader per tensor; ``local`` overrides the readers of tensors held in registers or scratchpad."""
        out: dict[str, Reader] = {}
        for name in self.expr.tensors:
            out[name] = self._reader(name, out)
        out.update(local or {})
        return out

    def _reader(self, name: str, readers: Mapping[str, Reader]) -> Reader:
        if self.is_in_global_memory(name):
            return lambda *index: promote_narrow_float(load(self.buffers[name], *index))
        s = self.stage(name)
        assert s is not None

        def inline(*index: Expr) -> Expr:
            value = promote_narrow_float(emit_scalar(s.body, axis_values_of_output(s, index), readers))
            floating = "float" in dtype_of(value) and "float" in s.output.dtype
            return value if floating else value.astype(s.output.dtype)

        return inline


def axis_values_of_output(s: Stage, index: tuple[Expr, ...]) -> dict[str, Expr]:
    """Return the axis values of an output element (a grouped axis sums ``index * div``)."""
    env: dict[str, Expr] = {}
    for i, value in zip(s.store, index, strict=True):
        for t in i.terms:
            part = value if t.div == 1 else value * t.div
            env[t.axis] = env[t.axis] + part if t.axis in env else part
    return {**{a.name: tirx.const(0, "int32") for a in s.spatial_axes}, **env}


def replace_loads_by_names(body: Scalar, names: Mapping[Load, str]) -> Scalar:
    """Return ``body`` with the given loads replaced by loads of scalars with the given names."""

    def swap(node: Scalar) -> Scalar:
        return Load(names[node], ()) if isinstance(node, Load) and node in names else node

    return transform_scalar(body, swap)


def convert_to_output_dtype(value: Expr, s: Stage) -> Expr:
    """Convert a value to the dtype that its stage stores."""
    return value if dtype_of(value) == s.output.dtype else value.astype(s.output.dtype)


def bounds_to_check(
    index: Index, value: Expr, extents: Mapping[str, int], low: int, high: int, beyond: tuple[int, int] = (0, 0)
) -> list[Expr]:
    """Return the bounds in ``low <= value < high`` that the box of ``extents``, grown by ``beyond``, does not imply."""
    first, last = index.range(extents)
    return ([value >= low] if first - beyond[0] < low else []) + ([value < high] if last + beyond[1] >= high else [])
