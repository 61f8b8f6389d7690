"""Two-dimensional pooling."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from roller.errors import ExprError
from roller.expr import Call, Cast, IndexValue, Scalar, Stage, Tensor, TensorExpr, axis_index
from roller.ops.blocked import Blocks, block_of
from roller.ops.build import (
    Channel,
    Types,
    Window,
    extent,
    finish,
    flag,
    indices,
    one_of,
    padding_sides,
    pair,
    reduction,
    spatial,
    types,
    window,
)
from roller.ops.layouts import IMAGES, channels_last, image_axes, image_index
from roller.ops.registry import operator

_KINDS = ("max", "avg")


@operator("MaxPool", "AveragePool", "GlobalAveragePool", "GlobalMaxPool")
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
        As for :func:`roller.ops.conv2d`; a window may not lie wholly in the padding.
    count_include_pad
        Whether an average divides by ``kh * kw`` (also at the border) or by the elements inside.
    layout
        ``"NCHW"``, ``"NHWC"`` or ``"NCHW<b>c"``, as for :func:`roller.ops.conv2d`. Elements of the last block beyond
        ``c`` are pooled like the others, so that zeros stay zeros; an epilogue writes zeros there.
    dtype, acc_dtype, out_dtype, epilogue
        As for :func:`roller.ops.matmul`; ``"bias"`` adds a vector over ``c``.

    Returns
    -------
    TensorExpr
        Axes ``n c ho wo kh kw`` (NHWC: ``n ho wo c kh kw``; blocked: ``n co ho wo ci kh kw``); input ``X``; output
        ``Y``. An average is a sum and a fused division.

    Raises
    ------
    ExprError
        Where an argument is out of range, padding reaches the size of the window, or the layout is unknown.

    Examples
    --------
    >>> import roller
    >>> str(roller.ops.pool2d("max", 1, 4, 8, 8, 2, 2, stride=2))
    'pool2d[n=1 c=4 ho=4 wo=4 kh=2 kw=2] float32'
    """
    where = "pool2d"
    one_of(where, "kind", kind, _KINDS, "kind")
    count_include_pad = flag(where, "count_include_pad", count_include_pad)
    sizes = {"n": n, "c": c, "h": h, "w": w, "kh": kh, "kw": kw}
    n, c, h, w, kh, kw = (extent(where, name, value) for name, value in sizes.items())
    average = kind == "avg"
    t = types(where, dtype, acc_dtype, out_dtype, widens=average)
    if average and not t.is_float:
        raise ExprError(f"{where}: an average needs a floating-point accumulator, got '{t.acc}'. "
                        "Pass acc_dtype='float32'.")  # fmt: skip
    sh, sw = pair(where, "stride", stride)
    top, bottom, left, right = padding_sides(where, padding)
    for name, size, pads in (("kh", kh, (top, bottom)), ("kw", kw, (left, right))):
        if max(pads) >= size:
            raise ExprError(f"{where}: argument 'padding': expected less than {name}={size} on each side, got {pads}. "
                            "A window may not lie wholly in the padding.")  # fmt: skip
    rows = window(where, ("h", "ho", "kh"), h, kh, sh, 1, (top, bottom))
    cols = window(where, ("w", "wo", "kw"), w, kw, sw, 1, (left, right))
    block = block_of(where, layout, IMAGES)
    blocks = Blocks(c, block or 1)
    axes = image_axes(layout, spatial(("n", n), ("c", c), ("ho", rows.out), ("wo", cols.out)))
    at = image_index(layout, (*indices(("n", "c")), rows.index, cols.index))
    shape = channels_last(layout, (n, c, h, w))
    channel: int | Channel = 3 if layout == "NHWC" else 1
    if block:
        axes = spatial(("n", n), ("co", blocks.count), ("ho", rows.out), ("wo", cols.out), ("ci", block))
        at = (*indices(("n", "co")), rows.index, cols.index, axis_index("ci"))
        shape = (n, blocks.count, h, w, block)
        channel = blocks.channel("co", "ci")
    outside = 0.0 if average else t.lowest(-1)
    body = t.load("X", at, rows.guard + cols.guard, outside)
    reduced = reduction(("kh", kh), ("kw", kw))
    out = Tensor("Y", tuple(a.extent for a in axes), t.out)
    stage = Stage(out, (*axes, *reduced), indices(axes), body, "sum" if average else "max", t.acc)
    own = None
    if average:
        if not count_include_pad and (rows.guard or cols.guard):
            count = Call("mul", (_inside(rows, "ho", kh, sh, top, h, t), _inside(cols, "wo", kw, sw, left, w, t)))
            own = partial(_binary, "div", count)
        elif kh * kw > 1:
            own = partial(_binary, "mul", t.const(1.0 / (kh * kw)))
    return finish(where, (Tensor("X", shape, dtype),), (stage,), t, epilogue=epilogue, channel=channel, own=own)


def _binary(fn: str, right: Scalar, left: Scalar) -> Scalar:
    return Call(fn, (left, right))


def _inside(win: Window, axis: str, kernel: int, stride: int, before: int, size: int, t: Types) -> Scalar:
    """Count the elements of a window that lie inside the tensor: ``min(start + kernel, size) - max(start, 0)``."""
    if not win.guard:
        return t.const(kernel)
    start = Cast(t.acc, IndexValue(axis_index(axis, stride, -before)))
    stop = Cast(t.acc, IndexValue(axis_index(axis, stride, kernel - before)))
    return Call("sub", (Call("min", (stop, t.const(size))), Call("max", (start, t.const(0)))))
