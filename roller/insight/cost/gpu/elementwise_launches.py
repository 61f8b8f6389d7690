"""Element-wise operators and copies of any layout, each as one expression over as few axes as possible."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache

from roller.expr import Axis, Call, Cast, Const, Load, Scalar, Stage, Tensor, TensorExpr, axis_index
from roller.insight.cost.gpu.operator_view import OperatorView, total_bytes
from roller.insight.cost.kernel_launch_types import Kernel, Launch, MemoryKernel
from roller.insight.trace.trace import TensorRecord
from roller_runtime.core.dtypes import DTYPE_BYTES


@dataclass(frozen=True)
class OperandLayout:
    """Layout of a tensor over the axes of a result; strides are in elements and 0 along broadcast axes."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: str


def broadcast_layout(tensor: TensorRecord, rank: int) -> OperandLayout:
    """Return the layout of a tensor broadcast to ``rank`` dimensions."""
    missing = rank - len(tensor.shape)
    stride = tuple(0 if n == 1 else s for n, s in zip(tensor.shape, tensor.stride, strict=True))
    return OperandLayout((1,) * missing + tuple(tensor.shape), (0,) * missing + stride, tensor.dtype)


def merge_contiguous_axes(
    extents: Sequence[int], tensors: Sequence[OperandLayout]
) -> tuple[tuple[int, ...], tuple[tuple[int, ...], ...]]:
    """Return extents and strides over as few axes as possible, merging axes that are contiguous in all tensors."""
    # Axes are in the memory order of the first tensor, outermost first.
    axes = [d for d, n in enumerate(extents) if n > 1]
    axes.sort(key=lambda d: (-abs(tensors[0].stride[d]), d))
    sizes: list[int] = []
    strides: list[tuple[int, ...]] = []
    for d in axes:
        step = tuple(t.stride[d] for t in tensors)
        if sizes and all(a == b * extents[d] for a, b in zip(strides[-1], step, strict=True)):
            sizes[-1] *= extents[d]
            strides[-1] = step
        else:
            sizes.append(extents[d])
            strides.append(step)
    return tuple(sizes), tuple(strides)


def scalar_expression_of_functions(functions: Sequence[str], loads: Sequence[Scalar], dtype: str) -> Scalar:
    """Return a scalar expression that applies every function once; functions of several arguments combine operands."""
    rest, value = list(loads[1:]), loads[0] if loads else Const(0.0, dtype)
    for name in functions:
        if name in _JOINING:
            value = Call(name, (value, rest.pop(0) if rest else Const(2.0, dtype)))
        elif name == "select":
            condition = Call("lt", (rest.pop(0) if rest else value, Const(0.0, dtype)))
            value = Call("select", (condition, value, rest.pop(0) if rest else Const(0.0, dtype)))
        else:
            value = Call(name, (value,))
    while rest:
        value = Call("add", (value, rest.pop(0)))
    return value


_JOINING = frozenset({"add", "sub", "mul", "div", "max", "min", "pow", "fmod", "eq", "lt", "le"})


@lru_cache(maxsize=4096)
def elementwise_expression(
    functions: tuple[str, ...], extents: tuple[int, ...], out: OperandLayout, operands: tuple[OperandLayout, ...]
) -> TensorExpr:
    """Return the expression for an element-wise operator."""
    sizes, strides = merge_contiguous_axes(extents, (out, *operands))
    axes = tuple(Axis(f"d{n}", size) for n, size in enumerate(sizes)) or (Axis("d0", 1),)
    acc = "float64" if out.dtype == "float64" else "float32"

    def axes_of_operand(n: int) -> tuple[tuple[int, ...], tuple[str, ...]]:
        used = [d for d in range(len(sizes)) if strides[d][n]]
        used.sort(key=lambda d: -abs(strides[d][n]))
        return tuple(sizes[d] for d in used), tuple(axes[d].name for d in used)

    inputs, loads = [], []
    for n, tensor in enumerate(operands):
        shape, names = axes_of_operand(n + 1)
        inputs.append(Tensor(f"X{n}", shape or (1,), tensor.dtype))
        at = tuple(axis_index(a) for a in names) or (axis_index(axes[0].name, 0),)
        load: Scalar = Load(f"X{n}", at)
        loads.append(load if tensor.dtype == acc else Cast(acc, load))
    store = tuple(axis_index(a.name) for a in axes)
    result = Tensor("Y", tuple(a.extent for a in axes), out.dtype)
    stage = Stage(result, axes, store, scalar_expression_of_functions(functions, loads, acc), None, acc)
    return TensorExpr("elementwise", tuple(inputs), (stage,), ("Y",))


def elementwise_launches(
    functions: tuple[str, ...], out: TensorRecord, inputs: Sequence[TensorRecord]
) -> tuple[Launch, ...]:
    """Return the kernel for an element-wise operator, priced by its bytes if no expression describes it."""
    dtypes = {t.dtype for t in (out, *inputs)}
    count = math.prod(out.shape)
    if not dtypes <= DTYPE_BYTES.keys() or not 0 < count < 2**40:
        return (MemoryKernel(total_bytes(inputs), total_bytes((out,))),)
    rank = len(out.shape)
    # An operand that occurs twice, as in x * x, is read from memory once.
    operands = tuple(broadcast_layout(t, rank) for t in dict.fromkeys(inputs) if math.prod(t.shape) > 1)
    shape, layout = tuple(out.shape), broadcast_layout(out, rank)
    expr = elementwise_expression(functions, shape, layout, operands)
    return (Kernel(expr, cache_bytes=_touched_cache_sector_bytes(shape, layout, operands)),)


#: Number of consecutive result elements that a block of PyTorch's element-wise kernels computes: 4 for each of 128
#: threads (``num_threads`` and ``thread_work_size`` of ATen/native/cuda/thread_constants.h; ``Loops.cuh``).
_BLOCK_ELEMENTS = 512
#: Size in bytes of a sector, the smallest transaction of the shared cache.
_SECTOR_BYTES = 32


@lru_cache(maxsize=4096)
def _touched_cache_sector_bytes(
    extents: tuple[int, ...], out: OperandLayout, operands: tuple[OperandLayout, ...]
) -> float:
    """Return the number of bytes in the cache sectors that blocks touch; 0 if no tensor's elements are scattered."""
    # A block visits the result's elements in order, without tiles. In an operand with a different memory order, it
    # touches one sector for every element, unless neighbouring elements share the sector.
    sizes, strides = merge_contiguous_axes(extents, (out, *operands))
    taken, left = list[int](), _BLOCK_ELEMENTS
    for size in reversed(sizes):  # innermost first
        taken.append(min(size, left))
        left = -(-left // taken[-1])
    visited, blocks = math.prod(taken), math.prod(sizes) / max(1, math.prod(taken))
    asked, scattered = 0.0, False
    for n, tensor in enumerate((out, *operands)):
        width = DTYPE_BYTES[tensor.dtype]
        steps = sorted((abs(s[n]) * width, t) for s, t in zip(reversed(strides), taken, strict=True) if s[n] and t > 1)
        touched, first = 1.0, True
        for step, count in steps:
            touched *= math.ceil(count * step / _SECTOR_BYTES) if first and step < _SECTOR_BYTES else count
            first = False
        asked += blocks * touched * _SECTOR_BYTES
        distinct = math.prod(t for _, t in steps)
        scattered |= touched * _SECTOR_BYTES > 2 * distinct * width and distinct > visited // 2
    return asked if scattered else 0.0


def pointwise_launches_rule(*functions: str) -> Callable[[OperatorView], tuple[Launch, ...]]:
    """Return the mapping for an operator that applies ``functions`` to every element of its inputs."""

    def map_operator(view: OperatorView) -> tuple[Launch, ...]:
        if not view.inputs:
            return (MemoryKernel(0.0, total_bytes(view.outputs)),)
        return elementwise_launches(functions, view.out, view.inputs)

    return map_operator


def fill_launches(view: OperatorView) -> tuple[Launch, ...]:
    """Return the kernel that writes a tensor without reading any."""
    return (MemoryKernel(0.0, total_bytes((view.out,))),)


def bernoulli_launches(view: OperatorView) -> tuple[Launch, ...]:
    """Return the kernel for ``aten.bernoulli``, which reads the probabilities if each element has its own."""
    own = not view.in_place and view.overload == "default"
    return elementwise_launches(("lt",), view.out, view.inputs) if own else fill_launches(view)


def copy_launches(view: OperatorView) -> tuple[Launch, ...]:
    """Return the kernel that copies a tensor to another layout or dtype; a copy from the host only writes."""
    name = "src" if view.packet == "aten.copy" else "self"
    source = view.tensor(name, 1 if name == "src" else 0)
    return fill_launches(view) if source is None else elementwise_launches((), view.out, (source,))
