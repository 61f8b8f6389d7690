"""Helpers for lowerings: tensors and types of a site, windows from attributes, and stages of reductions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from roller.expr import Axis, Call, Index, Scalar, Stage, Tensor, axis_index
from roller.models.onnx.lowering_registry import Site, Unsupported
from roller.ops import operator_argument_checks
from roller.ops.operator_argument_checks import OperatorDtypes, ensure_spatial_axis, identity_indices, resolve_dtypes
from roller.ops.sliding_windows_and_convolutions import (
    Windows,
    dilated_window_extents,
    make_windows,
    same_padding_total,
)
from roller.ops.tensor_rows import TensorRows, axes_of_dimensions
from roller_runtime.plan.program_steps import Value


def output_or_intermediate_tensor(value: Value, dtype: str | None = None, part: str = "") -> Tensor:
    """Return the tensor that a stage writes for ``value``; ``part`` names an intermediate tensor."""
    return Tensor(f"{value.name}/{part}" if part else value.name, value.shape, dtype or value.dtype)


def accumulation_types(x: Value, y: Value) -> OperatorDtypes:
    """Return the dtypes for a sum, product or norm of ``x`` that writes ``y``."""
    return resolve_dtypes("onnx", x.dtype, None, y.dtype)


def float_accumulation_types(x: Value, y: Value) -> OperatorDtypes:
    """Return the dtypes of :func:`accumulation_types`; refuse integer arithmetic."""
    t = accumulation_types(x, y)
    if not t.is_float:
        raise Unsupported(f"it is defined here for floating-point tensors, not {x.dtype}")
    return t


def refuse_empty_tensors(site: Site) -> None:
    """Refuse a site that reads or writes an empty tensor."""
    for v in (*site.inputs, *site.outputs):
        if v is not None and not v.elements:
            raise Unsupported(f"tensor '{v.name}' of shape {v.shape} has no elements")


def normalise_axes(axes: Iterable[int], rank: int) -> tuple[int, ...]:
    """Return ``axes`` as sorted non-negative dimensions; refuse duplicates and dimensions out of range."""
    listed = [int(a) for a in axes]
    if any(not -rank <= a < rank for a in listed) or len({a % rank for a in listed}) != len(listed):
        raise Unsupported(f"expected distinct dimensions in {-rank}..{rank - 1}, got {listed}")
    return tuple(sorted(a % rank for a in listed))


def elementwise_stage(y: Value, value: Callable[[tuple[Index, ...]], Scalar], acc: str) -> Stage:
    """Return the stage that writes ``value(index)`` at every point of ``y``; a scalar has an axis of extent 1."""
    axes = axes_of_dimensions(y.shape)
    at = identity_indices(axes)
    return Stage(output_or_intermediate_tensor(y), ensure_spatial_axis(axes), at, value(at), None, acc)


def make_reduction_rows(
    x: Value, y: Value, t: OperatorDtypes, reduced: Sequence[int], *, keepdims: bool = False
) -> TensorRows:
    """Return the rows of ``x`` along ``reduced`` dimensions; names of intermediate tensors begin with ``y.name``."""
    return TensorRows(output_or_intermediate_tensor(x), axes_of_dimensions(x.shape, reduced), t, f"{y.name}/", keepdims)


def reduction_with_ending(
    y: Value, axes: Sequence[Axis], store: Sequence[Index], body: Scalar, combiner: str, t: OperatorDtypes,
    ending: Callable[[Scalar], Scalar] | None = None,
) -> tuple[Stage, ...]:  # fmt: skip
    """Return :func:`~.operator_argument_checks.reduction_and_ending_stages` with an intermediate named after ``y``."""
    return operator_argument_checks.reduction_and_ending_stages(
        output_or_intermediate_tensor(y), axes, store, body, combiner, t, ending, f"{y.name}/acc"
    )


def bias_ending(bias: Value | None, t: OperatorDtypes) -> Callable[[Scalar], Scalar] | None:
    """Return the ending that adds each filter's bias (axis ``f``), or ``None`` if there is no bias."""
    if bias is None:
        return None
    added = t.load(bias.name, (axis_index("f"),))
    return lambda total: Call("add", (total, added))


def site_windows(site: Site, size: Sequence[int], kernel: Sequence[int], *, ceil: bool = False) -> Windows:
    """Return the windows of a convolution or pooling from its attributes."""
    strides, dilations = (_positive_attribute_per_dimension(site, name, len(size)) for name in ("strides", "dilations"))
    covered = dilated_window_extents(kernel, dilations)
    pads = padding_per_dimension(site, size, covered, strides)
    ceil = ceil and (site.attribute("auto_pad", "NOTSET") or "NOTSET") == "NOTSET"
    hanging = [_elements_beyond_end_padding(*a) for a in zip(size, covered, strides, pads, strict=True)] if ceil else ()
    return make_windows("onnx", size, kernel, strides, dilations, pads, hanging)


def _positive_attribute_per_dimension(site: Site, name: str, rank: int) -> tuple[int, ...]:
    given = tuple(int(v) for v in site.attribute(name, ()) or (1,) * rank)
    if len(given) != rank or min(given, default=1) < 1:
        raise Unsupported(f"attribute '{name}': expected {rank} numbers of at least 1, got {list(given)}")
    return given


def padding_per_dimension(
    site: Site, size: Sequence[int], covered: Sequence[int], strides: Sequence[int]
) -> tuple[tuple[int, int], ...]:
    """Return the number of padding elements before and after each dimension, from ``auto_pad`` or ``pads``."""
    rank, mode = len(size), site.attribute("auto_pad", "NOTSET") or "NOTSET"
    if mode == "VALID":
        return ((0, 0),) * rank
    if mode in ("SAME_UPPER", "SAME_LOWER"):
        totals = [same_padding_total(*a) for a in zip(size, covered, strides, strict=True)]
        return tuple((p // 2, p - p // 2) if mode == "SAME_UPPER" else (p - p // 2, p // 2) for p in totals)
    pads = tuple(int(p) for p in site.attribute("pads", ()) or (0,) * (2 * rank))
    if mode != "NOTSET" or len(pads) != 2 * rank:
        raise Unsupported(f"padding: expected {2 * rank} pads or a known auto_pad, got {list(pads)} and '{mode}'")
    return tuple(zip(pads[:rank], pads[rank:], strict=True))


def _elements_beyond_end_padding(size: int, reach: int, stride: int, pads: tuple[int, int]) -> int:
    """Return how many elements the last window extends beyond the padding; no window starts in the end padding."""
    free = size + sum(pads) - reach
    count = -(-free // stride) + 1
    if (count - 1) * stride >= size + pads[0]:
        count -= 1
    return max(0, (count - 1) * stride - free)


def require_shape(y: Value, shape: Sequence[int]) -> None:
    """Refuse a site if its declared result shape differs from the shape that its lowering writes."""
    if tuple(shape) != y.shape:
        raise Unsupported(f"the declared result has shape {y.shape}, its attributes make {tuple(shape)}")
