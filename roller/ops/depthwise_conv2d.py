"""Depthwise convolution: every channel has kernels of its own."""

from __future__ import annotations

from collections.abc import Sequence

from roller.errors import ExprError
from roller.expr import Call, Index, Stage, Tensor, TensorExpr, Term, axis_index
from roller.ops.blocked import Blocks, block_of
from roller.ops.build import extent, finish, indices, padding_sides, pair, reduction, spatial, types, window
from roller.ops.layouts import IMAGES, channels_last, image_axes, image_index, weights
from roller.ops.registry import operator


@operator()
def depthwise_conv2d(
    n: int,
    c: int,
    h: int,
    w: int,
    kh: int,
    kw: int,
    stride: int | tuple[int, int] = 1,
    padding: int | tuple[int, ...] = 0,
    dilation: int | tuple[int, int] = 1,
    multiplier: int = 1,
    layout: str = "NCHW",
    kernel_layout: str = "OIHW",
    *,
    dtype: str = "float32",
    acc_dtype: str | None = None,
    out_dtype: str | None = None,
    epilogue: Sequence[str] | str = (),
) -> TensorExpr:
    """Return the depthwise convolution of ``X (n, c, h, w)`` with ``W (c * multiplier, 1, kh, kw)``.

    Parameters
    ----------
    n, c, h, w, kh, kw
        Batch, input channels, height, width, kernel height and width.
    stride, padding, dilation
        As for :func:`roller.ops.conv2d`.
    multiplier
        Output channels per input channel: output ``c`` reads channel ``c // multiplier``.
    layout
        ``"NCHW"``, ``"NHWC"`` or ``"NCHW<b>c"``, as for :func:`roller.ops.conv2d`; a multiplier must divide b.
    kernel_layout
        Of ``W``: ``"OIHW"``, ``"OHWI"`` ``(c * multiplier, kh, kw, 1)`` or ``"HWIO"`` ``(kh, kw, 1, c * multiplier)``.
    dtype, acc_dtype, out_dtype, epilogue
        As for :func:`roller.ops.matmul`; ``"bias"`` adds a vector over ``c``.

    Returns
    -------
    TensorExpr
        Axes ``n c ho wo kh kw`` (NHWC: ``n ho wo c kh kw``; blocked: ``n co ho wo ci kh kw``); inputs ``X``,
        ``W``; output ``Y``.

    Raises
    ------
    ExprError
        Where an argument is not positive, the kernel exceeds the padded input, or the layout is unknown or its blocks
        hold part of an input channel's outputs.

    Examples
    --------
    >>> import roller
    >>> str(roller.ops.depthwise_conv2d(1, 4, 8, 8, 3, 3, padding=1))
    'depthwise_conv2d[n=1 c=4 ho=8 wo=8 kh=3 kw=3] float32'
    """
    where = "depthwise_conv2d"
    sizes = {"n": n, "c": c, "h": h, "w": w, "kh": kh, "kw": kw, "multiplier": multiplier}
    n, c, h, w, kh, kw, multiplier = (extent(where, name, value) for name, value in sizes.items())
    t = types(where, dtype, acc_dtype, out_dtype, widens=True)
    (sh, sw), (dh, dw) = pair(where, "stride", stride), pair(where, "dilation", dilation)
    top, bottom, left, right = padding_sides(where, padding)
    rows = window(where, ("h", "ho", "kh"), h, kh, sh, dh, (top, bottom))
    cols = window(where, ("w", "wo", "kw"), w, kw, sw, dw, (left, right))
    out_channels = c * multiplier
    block = block_of(where, layout, IMAGES)
    if block:
        axes = spatial(("n", n), ("co", -(-out_channels // block)), ("ho", rows.out), ("wo", cols.out), ("ci", block))
        outer, inner = _blocked_source(where, block, multiplier)
        at: tuple[Index, ...] = (axis_index("n"), outer, rows.index, cols.index, inner)
        out_blocks = Blocks(out_channels, block)
        channel = out_blocks.index("co", "ci")
        x = t.load("X", at, rows.guard + cols.guard)
        kernel_index, guard = (channel, Index(), *indices(("kh", "kw"))), out_blocks.guard(channel)
        shape: tuple[int, ...] = (n, -(-c // block), h, w, block)
    else:
        axes = image_axes(layout, spatial(("n", n), ("c", out_channels), ("ho", rows.out), ("wo", cols.out)))
        source = axis_index("c") if multiplier == 1 else Index((Term("c", 1, multiplier),)) if c > 1 else Index()
        at = image_index(layout, (axis_index("n"), source, rows.index, cols.index))
        x = t.load("X", at, rows.guard + cols.guard)
        kernel_index, guard = (axis_index("c"), Index(), *indices(("kh", "kw"))), ()
        shape = channels_last(layout, (n, c, h, w))
    kernel_shape, kernel_index = weights(where, kernel_layout, (out_channels, 1, kh, kw), kernel_index)
    kernel = t.load("W", kernel_index, guard)
    out = Tensor("Y", tuple(a.extent for a in axes), t.out)
    reduced = reduction(("kh", kh), ("kw", kw))
    stage = Stage(out, (*axes, *reduced), indices(axes), Call("mul", (x, kernel)), "sum", t.acc)
    inputs = (Tensor("X", shape, dtype), Tensor("W", kernel_shape, dtype))
    bias_over = Blocks(out_channels, block).channel("co", "ci") if block else 3 if layout == "NHWC" else 1
    return finish(where, inputs, (stage,), t, epilogue=epilogue, channel=bias_over)


def _blocked_source(where: str, block: int, multiplier: int) -> tuple[Index, Index]:
    """Return block and position of the channel that output ``ci`` of block ``co`` reads."""
    if block % multiplier:
        raise ExprError(f"{where}: argument 'multiplier': expected a divisor of the block of {block} channels, got "
                        f"{multiplier}. Use another block, or layout='NCHW'.")  # fmt: skip
    if multiplier == 1:
        return axis_index("co"), axis_index("ci")
    part = block // multiplier
    return Index((Term("co", 1, multiplier),)), Index((Term("co", part, 1, multiplier), Term("ci", 1, multiplier)))
