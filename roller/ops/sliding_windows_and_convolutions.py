"""Sliding windows of any rank, and convolutions as sums of products over windows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from roller.errors import ExprError
from roller.expr import REDUCTION, Axis, Bound, Index, Term, axis_index
from roller.ops.operator_argument_checks import identity_indices

Pads = tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class Windows:
    """Windows along the spatial dimensions (all but batch and channel)."""

    #: Axes of the result (spatial) and of a window (reduction).
    outs: tuple[Axis, ...]
    kernels: tuple[Axis, ...]
    #: Input index of a window's point, and the bounds check on it.
    index: tuple[Index, ...]
    guard: tuple[Bound, ...]
    guarded: tuple[bool, ...]  #: Whether windows extend beyond the tensor, per dimension
    #: Extent of each dimension, and the padding before and after it, in elements.
    size: tuple[int, ...]
    pads: Pads
    strides: tuple[int, ...]
    dilations: tuple[int, ...]


def spatial_dimension_names(rank: int) -> tuple[str, ...]:
    """Return one name per spatial dimension: ``w``, ``h w``, ``d h w``, or ``s0 s1 ...`` for more than three."""
    return tuple("dhw"[-rank:]) if rank <= 3 else tuple(f"s{d}" for d in range(rank))


def dilated_window_extents(kernel: Sequence[int], dilations: Sequence[int]) -> tuple[int, ...]:
    """Return the extent of a dilated window per dimension, in elements."""
    return tuple(d * (k - 1) + 1 for k, d in zip(kernel, dilations, strict=True))


def same_padding_total(size: int, reach: int, stride: int) -> int:
    """Return the total padding, in elements, that yields ``ceil(size / stride)`` windows."""
    return max(0, (-(-size // stride) - 1) * stride + reach - size)


def guarded_window_index(out: Axis, kernel: Axis, size: int, stride: int, dilation: int, before: int
          ) -> tuple[Index, tuple[Bound, ...]]:  # fmt: skip
    """Return the index ``stride * out + dilation * kernel - before``, and a bound if it may leave the dimension."""
    index = Index((*axis_index(out.name, stride).terms, *axis_index(kernel.name, dilation).terms), -before)
    low, high = index.range({out.name: out.extent, kernel.name: kernel.extent})
    return index, (Bound(index, 0, size),) if low < 0 or high >= size else ()


def make_windows(
    where: str, size: Sequence[int], kernel: Sequence[int], strides: Sequence[int], dilations: Sequence[int],
    pads: Sequence[tuple[int, int]], hanging: Sequence[int] = (),
) -> Windows:  # fmt: skip
    """Return the windows of a convolution or pooling."""
    outs, kernels, places = [], [], []
    covered = dilated_window_extents(kernel, dilations)
    for i, name in enumerate(spatial_dimension_names(len(size))):
        padded = size[i] + sum(pads[i]) + (hanging[i] if hanging else 0)
        if covered[i] > padded:
            raise ExprError(
                f"{where}: argument 'k{name}': the kernel covers {covered[i]} elements along '{name}', but the padded "
                f"input has only {padded}. Enlarge '{name}' or the padding, or use a smaller kernel or dilation."
            )
        outs.append(Axis(f"{name}o", (padded - covered[i]) // strides[i] + 1))
        kernels.append(Axis(f"k{name}", kernel[i], REDUCTION))
        places.append(guarded_window_index(outs[i], kernels[i], size[i], strides[i], dilations[i], pads[i][0]))
    return Windows(
        tuple(outs), tuple(kernels), tuple(at for at, _ in places), tuple(b for _, g in places for b in g),
        tuple(bool(g) for _, g in places), tuple(size), tuple(pads), tuple(strides), tuple(dilations),
    )  # fmt: skip


@dataclass(frozen=True)
class ConvolutionAxes:
    """The axes and operand indices of a convolution, with channels first in every layout."""

    #: Axes ``n f <points>`` of the result and ``c <window>`` of the sum.
    points: tuple[Axis, ...]
    reduced: tuple[Axis, ...]
    image: tuple[Index, ...]
    guard: tuple[Bound, ...]
    weight: tuple[Index, ...]  #: Index into the weights ``(f, c, <window>)``


def make_convolution_axes(
    n: int, filters: int, channels: int, groups: int, over: Windows, *, depthwise: bool = False, filter_axis: str = "f"
) -> ConvolutionAxes:
    """Return the axes and operand indices of a convolution."""
    per_group = filters // groups
    points = (Axis("n", n), Axis(filter_axis, filters), *over.outs)
    if depthwise:
        source = Index((Term(filter_axis, 1, per_group),)) if groups > 1 else Index()
        summed, inner = over.kernels, Index()
        source = axis_index(filter_axis) if per_group == 1 else source
    else:
        group = () if groups == 1 else (Term(filter_axis, channels, per_group),)
        source, inner = Index((*group, Term("c"))), axis_index("c")
        summed = (Axis("c", channels, REDUCTION), *over.kernels)
    weight = (axis_index(filter_axis), inner, *identity_indices(over.kernels))
    return ConvolutionAxes(points, summed, (axis_index("n"), source, *over.index), over.guard, weight)
