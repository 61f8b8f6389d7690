"""Two-dimensional convolution with strides, dilation, padding and groups, in NCHW, NHWC and blocked layouts."""

from __future__ import annotations

from collections.abc import Sequence

from roller.errors import ExprError
from roller.expr import Bound, Call, Index, Stage, Tensor, TensorExpr, Term, axis_index
from roller.ops.blocked import ChannelBlocks, parse_block_layout
from roller.ops.image_and_weight_layouts import IMAGES, image_windows, plain_convolution, weights_in_layout
from roller.ops.operator_argument_checks import (
    OperatorDtypes,
    compose_epilogue,
    extent,
    identity_indices,
    make_reduction_axes,
    make_spatial_axes,
    resolve_dtypes,
)
from roller.ops.registry import register_operator
from roller.ops.sliding_windows_and_convolutions import Windows, make_convolution_axes


@register_operator("Conv")
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
    kernel_layout: str = "OIHW",
    *,
    dtype: str = "float32",
    acc_dtype: str | None = None,
    out_dtype: str | None = None,
    epilogue: Sequence[str] | str = (),
) -> TensorExpr:
    """Return the cross-correlation of ``X`` with ``W``, which frameworks call convolution.

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
        Number of channel groups; divides ``c`` and ``f``.
    layout
        ``"NCHW"``, ``"NHWC"``, or ``"NCHW<b>c"`` (such as ``"NCHW16c"``; b is a power of two from 2 to 64) for ``X``
        and the output. In blocked layouts, ``X`` has shape ``(n, ceil(c / b), h, w, b)``, and ``Y`` has the same form
        with ``f`` channels. Elements of the last block beyond ``c`` must be finite and are ignored; elements of ``Y``
        beyond ``f`` are zero, even after an epilogue. With more than one group, either each group consists of whole
        blocks (b divides ``c / groups`` and ``f / groups``), or each block consists of whole groups (``c / groups``
        equals ``f / groups`` and divides b).
    kernel_layout
        Layout of ``W``: ``"OIHW"`` is ``(f, c / groups, kh, kw)``; ``"OHWI"`` and ``"HWIO"`` are common with NHWC
        images, in PyTorch's channels-last format and in TensorFlow and JAX, respectively. Any combination of layouts is
        valid.
    dtype, acc_dtype, out_dtype, epilogue
        See :func:`roller.ops.matmul`; ``"bias"`` adds a vector over ``f``.

    Returns
    -------
    TensorExpr
        Axes ``n f ho wo c kh kw`` (NHWC: ``n ho wo f``, the order of the output; OHWI and HWIO: ``kh kw c``; blocked:
        ``n fo ho wo fi co kh kw ci``); inputs ``X``, ``W``; output ``Y``.

    Raises
    ------
    ExprError
        If an argument is not positive, the kernel exceeds the padded input, groups do not divide the channels, or the
        layout is unknown or its blocks cut through groups.

    Notes
    -----
    Blocked convolutions take weights in a plain layout and pack them; pass the weights as ``constants`` to pack them
    only once. Packing in every call costs more than the layout gains on small images (for 7x7 with 512 channels, the
    time rises from 1.3 ms to 5 ms on one Zen 5 core). Winograd's algorithm (3x3, stride 1) is faster than direct sums
    and is available only in the plain layouts.

    Examples
    --------
    >>> import roller
    >>> str(roller.ops.conv2d(1, 3, 8, 8, 4, 3, 3, stride=2, padding=1))
    'conv2d[n=1 f=4 ho=4 wo=4 c=3 kh=3 kw=3] float32'
    """
    where = "conv2d"
    sizes = {"n": n, "c": c, "h": h, "w": w, "f": f, "kh": kh, "kw": kw, "groups": groups}
    n, c, h, w, f, kh, kw, groups = (extent(where, name, value) for name, value in sizes.items())
    block = parse_block_layout(where, layout, IMAGES)
    for name, channels in (("c", c), ("f", f)):
        if channels % groups:
            raise ExprError(f"{where}: argument 'groups': expected a divisor of {name}={channels}, got {groups}. "
                            f"Change 'groups' or '{name}'.")  # fmt: skip
    t = resolve_dtypes(where, dtype, acc_dtype, out_dtype, widens=True)
    over = image_windows(where, (h, w), (kh, kw), stride, dilation, padding)
    if block:
        return _blocked_convolution(
            where, ChannelBlocks(c, block), ChannelBlocks(f, block), groups, n, over, t, epilogue, kernel_layout
        )
    form = make_convolution_axes(n, f, c // groups, groups, over)
    x = Tensor("X", (n, c, h, w), dtype)
    return plain_convolution(where, form, x, (f, c // groups, kh, kw), t, layout, kernel_layout, epilogue)


def _blocked_input_indices(
    where: str, source: ChannelBlocks, out: ChannelBlocks, groups: int
) -> tuple[Index, Index, int, int]:
    """Return the block index and position index of ``X``'s channels, and the extents of axes ``co`` and ``ci``."""
    b, cg, fg = source.size, source.channels // groups, out.channels // groups
    if groups == 1:  # a partly filled block is read only up to its last channel
        return axis_index("co"), axis_index("ci"), source.count, min(b, cg)
    if cg % b == 0 and fg % b == 0:
        return Index((Term("fo", cg // b, fg // b), Term("co"))), axis_index("ci"), cg // b, b
    if cg == fg and b % cg == 0:
        inner = Index((Term("fi", cg, cg), Term("ci"))) if cg > 1 else axis_index("fi")
        return axis_index("fo"), inner, 1, cg
    raise ExprError(
        f"{where}: argument 'layout': blocks of {b} cut through groups of {cg} input and {fg} output channels. "
        "Use a block that divides both, or one that equal numbers of both divide, or 'NCHW'."
    )


def _blocked_convolution(
    where: str, source: ChannelBlocks, out: ChannelBlocks, groups: int, n: int, over: Windows, t: OperatorDtypes,
    epilogue: Sequence[str] | str, kernel_layout: str,
) -> TensorExpr:  # fmt: skip
    outer, inner, blocks, positions = _blocked_input_indices(where, source, out, groups)
    cg = source.channels // groups
    x = t.load("X", (axis_index("n"), outer, *over.index, inner), over.guard)
    f, c = out.index("fo", "fi"), ChannelBlocks(cg, source.size).index("co", "ci")
    beyond = (Bound(c, 0, cg),) if blocks * positions > cg else ()
    kernel = tuple(a.extent for a in over.kernels)
    shape, at = weights_in_layout(
        where, kernel_layout, (out.channels, cg, *kernel), (f, c, *identity_indices(over.kernels))
    )
    weight = t.load("W", at, tuple(sorted(out.guard(f) + beyond, key=lambda b: at.index(b.index))))
    axes = (*make_spatial_axes(("n", n), ("fo", out.count)), *over.outs, *make_spatial_axes(("fi", out.size)))
    reduced = (*make_reduction_axes(("co", blocks)), *over.kernels, *make_reduction_axes(("ci", positions)))
    y = Tensor("Y", tuple(a.extent for a in axes), t.out)
    stage = Stage(y, (*axes, *reduced), identity_indices(axes), Call("mul", (x, weight)), "sum", t.acc)
    inputs = Tensor("X", (n, source.count, *over.size, source.size), t.storage), Tensor("W", shape, t.storage)
    return compose_epilogue(where, inputs, (stage,), t, epilogue=epilogue, channel=out.channel("fo", "fi"))
