"""Two-dimensional convolution: strides, dilation, any padding, groups, NCHW and NHWC."""

from __future__ import annotations

from collections.abc import Sequence

from roller.errors import ExprError, did_you_mean
from roller.expr import Call, Index, Stage, Tensor, TensorExpr, Term
from roller.ops.build import extent, finish, indices, padding_sides, pair, reduction, spatial, types, window
from roller.ops.registry import operator

_LAYOUTS = ("NCHW", "NHWC")


@operator("Conv")
def conv2d(
    n: int,
    c: int,
    h: int,
    w: int,
    f: int,
    kh: int,
    kw: int,
    stride: int | tuple[int, int] = 1,
    padding: int | tuple[int, ...] = 0,
    dilation: int | tuple[int, int] = 1,
    groups: int = 1,
    layout: str = "NCHW",
    *,
    dtype: str = "float32",
    acc_dtype: str | None = None,
    out_dtype: str | None = None,
    epilogue: Sequence[str] | str = (),
) -> TensorExpr:
    """Return the cross-correlation of ``X`` with ``W`` that frameworks call convolution.

    Parameters
    ----------
    n, c, h, w
        Batch, input channels, height, width.
    f, kh, kw
        Output channels, kernel height and width.
    stride, dilation
        An int or an ``(h, w)`` pair.
    padding
        An int, an ``(h, w)`` pair, or ``(top, bottom, left, right)``; padded elements are zero.
    groups
        Channel groups; divides ``c`` and ``f``.
    layout
        ``"NCHW"`` or ``"NHWC"`` for ``X`` and the output; ``W`` is ``(f, c / groups, kh, kw)`` in both.
    dtype, acc_dtype, out_dtype, epilogue
        As for :func:`roller.ops.matmul`; ``"bias"`` adds a vector over ``f``.

    Returns
    -------
    TensorExpr
        Axes ``n f ho wo c kh kw`` (NHWC: ``n ho wo f c kh kw``, the order of the output); output ``Y``.

    Raises
    ------
    ExprError
        Where an argument is not positive, the kernel exceeds the padded input, or groups do not divide.

    Examples
    --------
    >>> import roller
    >>> str(roller.ops.conv2d(1, 3, 8, 8, 4, 3, 3, stride=2, padding=1))
    'conv2d[n=1 f=4 ho=4 wo=4 c=3 kh=3 kw=3]'
    """
    where = "conv2d"
    sizes = {"n": n, "c": c, "h": h, "w": w, "f": f, "kh": kh, "kw": kw, "groups": groups}
    n, c, h, w, f, kh, kw, groups = (extent(where, name, value) for name, value in sizes.items())
    if layout not in _LAYOUTS:
        hint = did_you_mean(str(layout), _LAYOUTS) or "."
        raise ExprError(f"{where}: argument 'layout': unknown layout {layout!r}{hint} "
                        f"Use one of {list(_LAYOUTS)}.")  # fmt: skip
    for name, channels in (("c", c), ("f", f)):
        if channels % groups:
            raise ExprError(f"{where}: argument 'groups': expected a divisor of {name}={channels}, got {groups}. "
                            f"Change 'groups' or '{name}'.")  # fmt: skip
    t = types(where, dtype, acc_dtype, out_dtype, widens=True)
    (sh, sw), (dh, dw) = pair(where, "stride", stride), pair(where, "dilation", dilation)
    top, bottom, left, right = padding_sides(where, padding)
    rows = window(where, ("h", "ho", "kh"), h, kh, sh, dh, (top, bottom))
    cols = window(where, ("w", "wo", "kw"), w, kw, sw, dw, (left, right))
    cg = c // groups
    channel = Index((Term("c"),)) if groups == 1 else Index((Term("f", cg, f // groups), Term("c")))
    nhwc = layout == "NHWC"
    source = (n, h, w, c) if nhwc else (n, c, h, w)
    at = (*indices("n"), rows.index, cols.index, channel) if nhwc else (*indices("n"), channel, rows.index, cols.index)
    body = Call("mul", (t.load("X", at, rows.guard + cols.guard), t.load("W", indices(("f", "c", "kh", "kw")))))
    axes = spatial(("n", n), ("f", f), ("ho", rows.out), ("wo", cols.out))
    if nhwc:
        axes = (axes[0], axes[2], axes[3], axes[1])
    out = Tensor("Y", tuple(a.extent for a in axes), t.out)
    reduced = reduction(("c", cg), ("kh", kh), ("kw", kw))
    stage = Stage(out, (*axes, *reduced), indices(axes), body, "sum", t.acc)
    inputs = (Tensor("X", source, dtype), Tensor("W", (f, cg, kh, kw), dtype))
    return finish(where, inputs, (stage,), t, epilogue=epilogue, channel=3 if nhwc else 1)
