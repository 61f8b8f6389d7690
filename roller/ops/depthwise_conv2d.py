"""Depthwise convolution: every channel has kernels of its own."""

from __future__ import annotations

from collections.abc import Sequence

from roller.expr import Call, Index, Stage, Tensor, TensorExpr, Term, axis_index
from roller.ops.build import extent, finish, indices, padding_sides, pair, reduction, spatial, types, window
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
    dtype, acc_dtype, out_dtype, epilogue
        As for :func:`roller.ops.matmul`; ``"bias"`` adds a vector over ``c``.

    Returns
    -------
    TensorExpr
        Axes ``n c ho wo kh kw``; inputs ``X``, ``W``; output ``Y``.

    Raises
    ------
    ExprError
        Where an argument is not positive or the kernel exceeds the padded input.

    Examples
    --------
    >>> import roller
    >>> str(roller.ops.depthwise_conv2d(1, 4, 8, 8, 3, 3, padding=1))
    'depthwise_conv2d[n=1 c=4 ho=8 wo=8 kh=3 kw=3]'
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
    if multiplier == 1:
        channel = axis_index("c")
    else:
        channel = Index((Term("c", 1, multiplier),)) if c > 1 else Index()
    x = t.load("X", (axis_index("n"), channel, rows.index, cols.index), rows.guard + cols.guard)
    kernel = t.load("W", (axis_index("c"), Index(), *indices(("kh", "kw"))))
    axes = spatial(("n", n), ("c", out_channels), ("ho", rows.out), ("wo", cols.out))
    out = Tensor("Y", tuple(a.extent for a in axes), t.out)
    reduced = reduction(("kh", kh), ("kw", kw))
    stage = Stage(out, (*axes, *reduced), indices(axes), Call("mul", (x, kernel)), "sum", t.acc)
    inputs = (Tensor("X", (n, c, h, w), dtype), Tensor("W", (out_channels, 1, kh, kw), dtype))
    return finish(where, inputs, (stage,), t, epilogue=epilogue, channel=1)
