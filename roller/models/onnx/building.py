"""Helpers for lowerings: tensors and types of a site, windows from attributes, and stages of reductions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from roller.expr import Axis, Call, Index, Scalar, Stage, Tensor, axis_index
from roller.models.graph.steps import Value
from roller.models.onnx.lowering import Site, Unsupported
from roller.ops import build
from roller.ops.build import Types, indices, rows_of, types
from roller.ops.rows import Rows, axes_over
from roller.ops.windows import Windows, reaches, same_padding, windows


def tensor(value: Value, dtype: str | None = None, part: str = "") -> Tensor:
    """Return a value as the tensor that a stage writes; ``part`` names an intermediate tensor."""
    return Tensor(f"{value.name}/{part}" if part else value.name, value.shape, dtype or value.dtype)


def types_of(x: Value, y: Value) -> Types:
    """Return the dtypes for a sum, product or norm of ``x`` that writes ``y``."""
    return types("onnx", x.dtype, None, y.dtype)


def floats_of(x: Value, y: Value) -> Types:
    """Return the dtypes like :func:`types_of`, but refuse non-float arithmetic."""
    t = types_of(x, y)
    if not t.is_float:
        raise Unsupported(f"it is defined here for floating-point tensors, not {x.dtype}")
    return t


def require_elements(site: Site) -> None:
    """Refuse sites with empty tensors."""
    for v in (*site.inputs, *site.outputs):
        if v is not None and not v.elements:
            raise Unsupported(f"tensor '{v.name}' of shape {v.shape} has no elements")


def normal_axes(axes: Iterable[int], rank: int) -> tuple[int, ...]:
    """Return dimensions, sorted and non-negative."""
    listed = [int(a) for a in axes]
    if any(not -rank <= a < rank for a in listed) or len({a % rank for a in listed}) != len(listed):
        raise Unsupported(f"expected distinct dimensions in {-rank}..{rank - 1}, got {listed}")
    return tuple(sorted(a % rank for a in listed))


def elementwise(y: Value, value: Callable[[tuple[Index, ...]], Scalar], acc: str) -> Stage:
    """Return the stage that writes ``value(index)`` at every point of ``y``; a scalar has an axis of extent 1."""
    axes = axes_over(y.shape)
    at = indices(axes)
    return Stage(tensor(y), rows_of(axes), at, value(at), None, acc)


def rows_over(x: Value, y: Value, t: Types, reduced: Sequence[int], *, keepdims: bool = False) -> Rows:
    """Return the rows of ``x`` along the ``reduced`` dimensions, with intermediate names prefixed by ``y``'s."""
    return Rows(tensor(x), axes_over(x.shape, reduced), t, f"{y.name}/", keepdims)


def ended(
    y: Value, axes: Sequence[Axis], store: Sequence[Index], body: Scalar, combiner: str, t: Types,
    ending: Callable[[Scalar], Scalar] | None = None,
) -> tuple[Stage, ...]:  # fmt: skip
    """Return a reduction and its ending like :func:`roller.ops.build.ended`; name the intermediate after ``y``."""
    return build.ended(tensor(y), axes, store, body, combiner, t, ending, f"{y.name}/acc")


def bias_of(bias: Value | None, t: Types) -> Callable[[Scalar], Scalar] | None:
    """Return the ending that adds a bias per filter, axis ``f``; ``None`` without a bias."""
    if bias is None:
        return None
    added = t.load(bias.name, (axis_index("f"),))
    return lambda total: Call("add", (total, added))


def windows_of(site: Site, size: Sequence[int], kernel: Sequence[int], *, ceil: bool = False) -> Windows:
    """Return the windows of a convolution or pooling from its attributes."""
    strides, dilations = (_per_dimension(site, name, len(size)) for name in ("strides", "dilations"))
    covered = reaches(kernel, dilations)
    pads = padding(site, size, covered, strides)
    ceil = ceil and (site.attribute("auto_pad", "NOTSET") or "NOTSET") == "NOTSET"
    hanging = [_hanging(*a) for a in zip(size, covered, strides, pads, strict=True)] if ceil else ()
    return windows("onnx", size, kernel, strides, dilations, pads, hanging)


def _per_dimension(site: Site, name: str, rank: int) -> tuple[int, ...]:
    given = tuple(int(v) for v in site.attribute(name, ()) or (1,) * rank)
    if len(given) != rank or min(given, default=1) < 1:
        raise Unsupported(f"attribute '{name}': expected {rank} numbers of at least 1, got {list(given)}")
    return given


def padding(
    site: Site, size: Sequence[int], covered: Sequence[int], strides: Sequence[int]
) -> tuple[tuple[int, int], ...]:
    """Return the padding elements before and after each dimension, from ``auto_pad`` or ``pads``."""
    rank, mode = len(size), site.attribute("auto_pad", "NOTSET") or "NOTSET"
    if mode == "VALID":
        return ((0, 0),) * rank
    if mode in ("SAME_UPPER", "SAME_LOWER"):
        totals = [same_padding(*a) for a in zip(size, covered, strides, strict=True)]
        return tuple((p // 2, p - p // 2) if mode == "SAME_UPPER" else (p - p // 2, p // 2) for p in totals)
    pads = tuple(int(p) for p in site.attribute("pads", ()) or (0,) * (2 * rank))
    if mode != "NOTSET" or len(pads) != 2 * rank:
        raise Unsupported(f"padding: expected {2 * rank} pads or a known auto_pad, got {list(pads)} and '{mode}'")
    return tuple(zip(pads[:rank], pads[rank:], strict=True))


def _hanging(size: int, reach: int, stride: int, pads: tuple[int, int]) -> int:
    """Return the elements by which the last window exceeds the padding; windows inside the padding are dropped."""
    free = size + sum(pads) - reach
    count = -(-free // stride) + 1
    if (count - 1) * stride >= size + pads[0]:
        count -= 1
    return max(0, (count - 1) * stride - free)


def require_shape(y: Value, shape: Sequence[int]) -> None:
    """Refuse a site whose declared result shape differs from the shape that its lowering writes."""
    if tuple(shape) != y.shape:
        raise Unsupported(f"the declared result has shape {y.shape}, its attributes make {tuple(shape)}")
