"""Depthwise convolution: each channel has its own kernels."""

from __future__ import annotations

from collections.abc import Sequence

from roller.errors import ExprError
from roller.expr import Call, Index, Stage, Tensor, TensorExpr, Term, axis_index
from roller.ops.blocked import ChannelBlocks, parse_block_layout
from roller.ops.image_and_weight_layouts import IMAGES, image_windows, plain_convolution, weights_in_layout
from roller.ops.operator_argument_checks import (
    compose_epilogue,
    extent,
    identity_indices,
    make_spatial_axes,
    resolve_dtypes,
)
from roller.ops.registry import register_operator
from roller.ops.sliding_windows_and_convolutions import make_convolution_axes


@register_operator()
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
        See :func:`roller.ops.conv2d`.
    multiplier
        Output channels per input channel: output channel ``c`` reads input channel ``c // multiplier``.
    layout
        ``"NCHW"``, ``"NHWC"`` or ``"NCHW<b>c"`` (see :func:`roller.ops.conv2d`); ``multiplier`` must divide b.
    kernel_layout
        Layout of ``W``: ``"OIHW"``, ``"OHWI"`` ``(c * multiplier, kh, kw, 1)`` or ``"HWIO"``
        ``(kh, kw, 1, c * multiplier)``.
    dtype, acc_dtype, out_dtype, epilogue
        See :func:`roller.ops.matmul`; ``"bias"`` adds a vector over ``c``.

    Returns
    -------
    TensorExpr
        Axes ``n c ho wo kh kw`` (NHWC: ``n ho wo c kh kw``; blocked: ``n co ho wo ci kh kw``); inputs ``X``,
        ``W``; output ``Y``.

    Raises
    ------
    ExprError
        If an argument is not positive, the kernel exceeds the padded input, the layout is unknown, or ``multiplier``
        does not divide its block size.

    Examples
    --------
    >>> import roller
    >>> str(roller.ops.depthwise_conv2d(1, 4, 8, 8, 3, 3, padding=1))
    'depthwise_conv2d[n=1 c=4 ho=8 wo=8 kh=3 kw=3] float32'
    """
    where = "depthwise_conv2d"
    sizes = {"n": n, "c": c, "h": h, "w": w, "kh": kh, "kw": kw, "multiplier": multiplier}
    n, c, h, w, kh, kw, multiplier = (extent(where, name, value) for name, value in sizes.items())
    t = resolve_dtypes(where, dtype, acc_dtype, out_dtype, widens=True)
    over = image_windows(where, (h, w), (kh, kw), stride, dilation, padding)
    block = parse_block_layout(where, layout, IMAGES)
    out = ChannelBlocks(c * multiplier, block or 1)
    form = make_convolution_axes(n, out.channels, 1, c, over, depthwise=True, filter_axis="c")
    if not block:
        x = Tensor("X", (n, c, h, w), dtype)
        return plain_convolution(where, form, x, (out.channels, 1, kh, kw), t, layout, kernel_layout, epilogue)
    axes = (*make_spatial_axes(("n", n), ("co", out.count)), *over.outs, *make_spatial_axes(("ci", block)))
    outer, inner = _blocked_input_indices(where, block, multiplier)
    channel = out.index("co", "ci")
    image = t.load("X", (axis_index("n"), outer, *over.index, inner), over.guard)
    shape, at = weights_in_layout(where, kernel_layout, (out.channels, 1, kh, kw), (channel, *form.weight[1:]))
    body = Call("mul", (image, t.load("W", at, out.guard(channel))))
    y = Tensor("Y", tuple(a.extent for a in axes), t.out)
    stage = Stage(y, (*axes, *over.kernels), identity_indices(axes), body, "sum", t.acc)
    inputs = Tensor("X", (n, ChannelBlocks(c, block).count, h, w, block), dtype), Tensor("W", shape, dtype)
    return compose_epilogue(where, inputs, (stage,), t, epilogue=epilogue, channel=out.channel("co", "ci"))


def _blocked_input_indices(where: str, block: int, multiplier: int) -> tuple[Index, Index]:
    """Return the block and the position of the input channel that output channel ``ci`` of block ``co`` reads."""
    if block % multiplier:
        raise ExprError(f"{where}: argument 'multiplier': expected a divisor of the block of {block} channels, got "
                        f"{multiplier}. Use another block, or layout='NCHW'.")  # fmt: skip
    if multiplier == 1:
        return axis_index("co"), axis_index("ci")
    part = block // multiplier
    return Index((Term("co", 1, multiplier),)), Index((Term("co", part, 1, multiplier), Term("ci", 1, multiplier)))
