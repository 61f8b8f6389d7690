"""What lowerings share: types and axes of a site's values, sliding windows of any rank, endings of reductions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from roller.errors import ExprError
from roller.expr import REDUCTION, Axis, Bound, Const, Index, Load, Scalar, Stage, Tensor
from roller.model.steps import Value
from roller.onnx.lowering import Site, Unsupported
from roller.ops.build import Types, indices, rows_of, types, window


def tensor(value: Value, dtype: str | None = None, part: str = "") -> Tensor:
    """Return a value as the tensor a stage writes; ``part`` names an intermediate one beside it."""
    return Tensor(f"{value.name}/{part}" if part else value.name, value.shape, dtype or value.dtype)


def types_of(x: Value, y: Value) -> Types:
    """Return the dtypes of a sum, product or norm of ``x`` that writes ``y``."""
    return types("onnx", x.dtype, None, y.dtype)


def floats_of(x: Value, y: Value) -> Types:
    """Return the dtypes as :func:`types_of`, where arithmetic must be floating point.

    Raises
    ------
    Unsupported
        Where it is not.
    """
    t = types_of(x, y)
    if not t.is_float:
        raise Unsupported(f"it is defined here for floating-point tensors, not {x.dtype}")
    return t


def require_elements(site: Site) -> None:
    """Refuse sites with empty tensors: no loop of a kernel has no points.

    Raises
    ------
    Unsupported
        Where an input or output has no elements.
    """
    for v in (*site.inputs, *site.outputs):
        if v is not None and not v.elements:
            raise Unsupported(f"tensor '{v.name}' of shape {v.shape} has no elements")


def normal_axes(axes: Iterable[int], rank: int) -> tuple[int, ...]:
    """Return dimensions, sorted and not negative.

    Raises
    ------
    Unsupported
        Where one is out of range or named twice.
    """
    listed = [int(a) for a in axes]
    if any(not -rank <= a < rank for a in listed) or len({a % rank for a in listed}) != len(listed):
        raise Unsupported(f"expected distinct dimensions in {-rank}..{rank - 1}, got {listed}")
    return tuple(sorted(a % rank for a in listed))


def point_axes(shape: Sequence[int]) -> tuple[Axis, ...]:
    """Return axes ``d0 d1 ...`` over a shape."""
    return tuple(Axis(f"d{d}", e) for d, e in enumerate(shape))


def walk_axes(shape: Sequence[int], reduced: Sequence[int], prefix: str = "k") -> tuple[Axis, ...]:
    """Return axes over a shape: ``d0 d1 ...``, and reduction axes ``k1 k2 ...`` over the ``reduced`` dimensions."""
    return tuple(Axis(f"{prefix}{d}", e, REDUCTION) if d in reduced else Axis(f"d{d}", e) for d, e in enumerate(shape))


def elementwise(y: Value, value: Callable[[tuple[Index, ...]], Scalar], acc: str) -> Stage:
    """Return the stage that writes ``value(index)`` at every point of ``y``; a scalar has an axis of extent 1."""
    axes = point_axes(y.shape)
    at = indices(axes)
    return Stage(tensor(y), rows_of(axes), at, value(at), None, acc)


def ended(
    y: Value, axes: Sequence[Axis], store: Sequence[Index], body: Scalar, combiner: str, t: Types,
    ending: Callable[[Scalar], Scalar] | None = None,
) -> tuple[Stage, ...]:  # fmt: skip
    """Return a reduction and, where it has an ``ending``, the element-wise stage over the same points after it.

    This is the form the builders of :mod:`roller.ops` write: the sum stays in accumulator precision, and the result
    is converted once.
    """
    axes, store = tuple(axes), tuple(store)
    if not any(a.kind != REDUCTION for a in axes):
        axes = (*rows_of(()), *axes)
    if ending is None:
        return (Stage(tensor(y), axes, store, body, combiner, t.acc),)
    total = tensor(y, t.acc, "acc")
    first = Stage(total, axes, store, body, combiner, t.acc)
    return first, Stage(tensor(y), first.spatial_axes, store, ending(Load(total.name, store)), None, t.acc)


def broadcast(value: Value, store: Sequence[Index], shape: Sequence[int]) -> tuple[Index, ...]:
    """Return where an operand is read at a point of a result it broadcasts to, as NumPy does."""
    mine = store[len(store) - len(value.shape) :]
    sizes = shape[len(shape) - len(value.shape) :]
    return tuple(i if e == n else Index() for i, e, n in zip(mine, value.shape, sizes, strict=True))


@dataclass(frozen=True)
class Slide:
    """Windows along the dimensions behind batch and channel.

    Parameters
    ----------
    outs, kernels
        Axes of the result (spatial) and of a window (reduction).
    index, guard
        Where a point of a window is read.
    pads, strides, dilations
        Per dimension; pads before and after (elements).
    """

    outs: tuple[Axis, ...]
    kernels: tuple[Axis, ...]
    index: tuple[Index, ...]
    guard: tuple[Bound, ...]
    pads: tuple[tuple[int, int], ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]


def names_of(rank: int) -> tuple[str, ...]:
    """Return a letter per dimension behind batch and channel: ``h w``, ``d h w``."""
    return tuple("dhw"[-rank:]) if rank <= 3 else tuple(f"s{d}" for d in range(rank))


def slide(site: Site, size: Sequence[int], kernel: Sequence[int], *, ceil: bool = False) -> Slide:
    """Return the windows of a convolution or pooling by its attributes.

    Parameters
    ----------
    size, kernel
        Elements of the image and of the window per dimension.
    ceil
        Whether a last window may hang over the padding (``ceil_mode``).

    Raises
    ------
    Unsupported
        Where attributes have another rank or the window exceeds the padded image.
    """
    rank = len(size)
    strides = _per_dimension(site, "strides", rank)
    dilations = _per_dimension(site, "dilations", rank)
    reaches = [d * (k - 1) + 1 for d, k in zip(dilations, kernel, strict=True)]
    pads = padding(site, size, reaches, strides)
    extra = [_hanging(*a) if ceil else 0 for a in zip(size, reaches, strides, pads, strict=True)]
    try:
        windows = [
            window("onnx", (f"dimension {2 + i}", f"{name}o", f"k{name}"), size[i], kernel[i], strides[i],
                   dilations[i], (pads[i][0], pads[i][1] + extra[i]))
            for i, name in enumerate(names_of(rank))
        ]  # fmt: skip
    except ExprError as err:
        raise Unsupported(str(err)) from err
    return Slide(
        tuple(Axis(f"{n}o", w.out) for n, w in zip(names_of(rank), windows, strict=True)),
        tuple(Axis(f"k{n}", k, REDUCTION) for n, k in zip(names_of(rank), kernel, strict=True)),
        tuple(w.index for w in windows),
        tuple(b for w in windows for b in w.guard),
        pads, strides, dilations,
    )  # fmt: skip


def _per_dimension(site: Site, name: str, rank: int) -> tuple[int, ...]:
    given = tuple(int(v) for v in site.attribute(name, ()) or (1,) * rank)
    if len(given) != rank or min(given, default=1) < 1:
        raise Unsupported(f"attribute '{name}': expected {rank} numbers of at least 1, got {list(given)}")
    return given


def padding(
    site: Site, size: Sequence[int], reaches: Sequence[int], strides: Sequence[int]
) -> tuple[tuple[int, int], ...]:
    """Return elements of padding before and after each dimension, by ``auto_pad`` or ``pads``.

    Raises
    ------
    Unsupported
        Where ``auto_pad`` is unknown or ``pads`` have another rank.
    """
    rank, mode = len(size), site.attribute("auto_pad", "NOTSET") or "NOTSET"
    if mode == "VALID":
        return ((0, 0),) * rank
    if mode in ("SAME_UPPER", "SAME_LOWER"):
        totals = [max(0, (-(-n // s) - 1) * s + r - n) for n, r, s in zip(size, reaches, strides, strict=True)]
        return tuple((p // 2, p - p // 2) if mode == "SAME_UPPER" else (p - p // 2, p // 2) for p in totals)
    pads = tuple(int(p) for p in site.attribute("pads", ()) or (0,) * (2 * rank))
    if mode != "NOTSET" or len(pads) != 2 * rank:
        raise Unsupported(f"padding: expected {2 * rank} pads or a known auto_pad, got {list(pads)} and '{mode}'")
    return tuple(zip(pads[:rank], pads[rank:], strict=True))


def _hanging(size: int, reach: int, stride: int, pads: tuple[int, int]) -> int:
    """Return the elements by which a last window hangs over the padding; one that starts there is dropped."""
    free = size + sum(pads) - reach
    count = -(-free // stride) + 1
    if (count - 1) * stride >= size + pads[0]:
        count -= 1
    return max(0, (count - 1) * stride - free)


def require_shape(y: Value, shape: Sequence[int]) -> None:
    """Refuse a site whose declared result has another shape than its lowering writes.

    Raises
    ------
    Unsupported
        Where they differ.
    """
    if tuple(shape) != y.shape:
        raise Unsupported(f"the declared result has shape {y.shape}, its attributes make {tuple(shape)}")


def const_of(value: float, dtype: str) -> Const:
    """Return a literal of a dtype."""
    return Const(float(value) if "float" in dtype else int(value), dtype)
