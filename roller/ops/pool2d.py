"""Two-dimensional pooling."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from roller.errors import ExprError
from roller.expr import Call, Cast, IndexValue, Scalar, Tensor, TensorExpr, axis_index
from roller.ops.blocked import ChannelBlocks, parse_block_layout
from roller.ops.image_and_weight_layouts import (
    IMAGES,
    channel_dimension,
    image_axes_in_layout,
    image_indices_in_layout,
    image_windows,
    order_dims_by_layout,
)
from roller.ops.operator_argument_checks import (
    EpilogueChannel,
    OperatorDtypes,
    check_choice,
    check_flag,
    compose_epilogue,
    extent,
    identity_indices,
    make_spatial_axes,
    reduction_and_ending_stages,
    resolve_dtypes,
)
from roller.ops.registry import register_operator
from roller.ops.sliding_windows_and_convolutions import Windows

_KINDS = ("max", "avg")


@register_operator("MaxPool", "AveragePool", "GlobalAveragePool", "GlobalMaxPool")
def pool2d(
    kind: str,
    n: int,
    c: int,
    h: int,
    w: int,
    kh: int,
    kw: int,
    stride: int | tuple[int, int] = 1,
    padding: int | tuple[int, ...] = 0,
    count_include_pad: bool = True,
    layout: str = "NCHW",
    *,
    dtype: str = "float32",
    acc_dtype: str | None = None,
    out_dtype: str | None = None,
    epilogue: Sequence[str] | str = (),
) -> TensorExpr:
    """Return the maximum or the average of each ``kh x kw`` window of ``X (n, c, h, w)``.

    Parameters
    ----------
    kind
        ``"max"`` or ``"avg"``.
    n, c, h, w, kh, kw
        Batch, channels, height, width, window height and width.
    stride, padding
        See :func:`roller.ops.conv2d`; no window may lie wholly in the padding.
    count_include_pad
        Whether an average divides by ``kh * kw`` even at the border; otherwise it divides by the number of elements
        inside the input.
    layout
        ``"NCHW"``, ``"NHWC"`` or ``"NCHW<b>c"`` (see :func:`roller.ops.conv2d`). Elements of the last block beyond
        ``c`` are pooled like the others, so zeros stay zeros; an epilogue writes zeros there.
    dtype, acc_dtype, out_dtype, epilogue
        See :func:`roller.ops.matmul`; ``"bias"`` adds a vector over ``c``.

    Returns
    -------
    TensorExpr
        Axes ``n c ho wo kh kw`` (NHWC: ``n ho wo c kh kw``; blocked: ``n co ho wo ci kh kw``); input ``X``; output
        ``Y``. An average is computed as a sum and a fused division.

    Raises
    ------
    ExprError
        If an argument is out of range, the padding of a side is not smaller than the window, or the layout is unknown.

    Examples
    --------
    >>> import roller
    >>> str(roller.ops.pool2d("max", 1, 4, 8, 8, 2, 2, stride=2))
    'pool2d[n=1 c=4 ho=4 wo=4 kh=2 kw=2] float32'
    """
    where = "pool2d"
    check_choice(where, "kind", kind, _KINDS, "kind")
    count_include_pad = check_flag(where, "count_include_pad", count_include_pad)
    sizes = {"n": n, "c": c, "h": h, "w": w, "kh": kh, "kw": kw}
    n, c, h, w, kh, kw = (extent(where, name, value) for name, value in sizes.items())
    average = kind == "avg"
    t = resolve_dtypes(where, dtype, acc_dtype, out_dtype, widens=average)
    if average and not t.is_float:
        raise ExprError(f"{where}: an average needs a floating-point accumulator, got '{t.acc}'. "
                        "Pass acc_dtype='float32'.")  # fmt: skip
    over = image_windows(where, (h, w), (kh, kw), stride, 1, padding)
    for kernel, pads in zip(over.kernels, over.pads, strict=True):
        if max(pads) >= kernel.extent:
            raise ExprError(f"{where}: argument 'padding': expected less than {kernel.name}={kernel.extent} on each "
                            f"side, got {pads}. A window may not lie wholly in the padding.")  # fmt: skip
    block = parse_block_layout(where, layout, IMAGES)
    blocks = ChannelBlocks(c, block or 1)
    axes = image_axes_in_layout(layout, (*make_spatial_axes(("n", n), ("c", c)), *over.outs))
    at = image_indices_in_layout(layout, (*identity_indices(("n", "c")), *over.index))
    shape = order_dims_by_layout(layout, (n, c, h, w))
    channel: int | EpilogueChannel = channel_dimension(layout)
    if block:
        axes = (*make_spatial_axes(("n", n), ("co", blocks.count)), *over.outs, *make_spatial_axes(("ci", block)))
        at = (*identity_indices(("n", "co")), *over.index, axis_index("ci"))
        shape = (n, blocks.count, h, w, block)
        channel = blocks.channel("co", "ci")
    body = t.load("X", at, over.guard, 0.0 if average else t.padding_value(-1))
    out = Tensor("Y", tuple(a.extent for a in axes), t.out)
    combiner, ending = ("sum", _average_ending(over, count_include_pad, t)) if average else ("max", None)
    stages = reduction_and_ending_stages(out, (*axes, *over.kernels), identity_indices(axes), body, combiner, t, ending)
    return compose_epilogue(where, (Tensor("X", shape, dtype),), stages, t, epilogue=epilogue, channel=channel)


def _average_ending(over: Windows, count_include_pad: bool, t: OperatorDtypes) -> Callable[[Scalar], Scalar] | None:
    """Return the function that maps a window's sum to its average, or ``None`` for one-element windows."""
    if not count_include_pad and over.guard:
        count = Call("mul", tuple(_count_elements_inside(over, d, t) for d in range(len(over.outs))))
        return lambda total: Call("div", (total, count))
    points = math.prod(a.extent for a in over.kernels)
    return None if points == 1 else lambda total: Call("mul", (total, t.const(1.0 / points)))


def _count_elements_inside(over: Windows, d: int, t: OperatorDtypes) -> Scalar:
    """Return how many elements of a window lie inside the tensor: ``min(start + kernel, size) - max(start, 0)``."""
    kernel, before = over.kernels[d].extent, over.pads[d][0]
    if not over.guarded[d]:
        return t.const(kernel)
    start, stop = (
        Cast(t.acc, IndexValue(axis_index(over.outs[d].name, over.strides[d], at))) for at in (-before, kernel - before)
    )
    return Call("sub", (Call("min", (stop, t.const(over.size[d]))), Call("max", (start, t.const(0)))))
