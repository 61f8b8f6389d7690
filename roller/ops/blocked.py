"""The blocked layout ``NCHW<b>c``, shape ``[N, ceil(C / b), H, W, b]``, and operators that convert to and from it."""

from __future__ import annotations

import re
from dataclasses import dataclass

from roller.errors import ExprError, did_you_mean, shown
from roller.expr import Axis, Bound, Index, Load, Stage, Tensor, TensorExpr, Term, axis_index
from roller.ops.operator_argument_checks import (
    EpilogueChannel,
    check_shape,
    extent,
    identity_indices,
    make_spatial_axes,
    resolve_dtypes,
)
from roller.ops.registry import register_operator

#: Maximum block size: 64 one-byte elements fill a cache line and the widest vector register.
_LARGEST = 64
_BLOCKED = re.compile(r"NCHW(\d{1,9})c")


@dataclass(frozen=True)
class ChannelBlocks:
    """The channels of a tensor, divided into ``count`` blocks of ``size`` channels each."""

    channels: int
    size: int

    @property
    def count(self) -> int:
        """Number of blocks, including a partly filled last one."""
        return -(-self.channels // self.size)

    @property
    def has_tail(self) -> bool:
        """Whether the last block is partly filled."""
        return self.channels % self.size != 0

    def index(self, outer: str, inner: str) -> Index:
        """Return the index of the channel at position ``inner`` of block ``outer``."""
        return Index((Term(outer, self.size), Term(inner)))

    def guard(self, index: Index) -> tuple[Bound, ...]:
        """Return the bound that excludes the tail of the last block; empty if there is no tail."""
        return (Bound(index, 0, self.channels),) if self.has_tail else ()

    def channel(self, outer: str, inner: str) -> EpilogueChannel:
        """Return the channel index with which an epilogue reads its bias."""
        return EpilogueChannel(self.channels, self.index(outer, inner), self.has_tail)


def parse_block_layout(where: str, layout: str, plain: tuple[str, ...]) -> int:
    """Return the number of channels per block of ``layout``, or 0 if it is one of the ``plain`` layouts."""
    if isinstance(layout, str) and layout in plain:
        return 0
    match = _BLOCKED.fullmatch(layout) if isinstance(layout, str) else None
    if match is None:
        names = [*plain, "NCHW8c", "NCHW16c"]
        hint = did_you_mean(layout, names) if isinstance(layout, str) else ""
        raise ExprError(
            f"{where}: argument 'layout': unknown layout {shown(layout)}{hint or '.'} "
            f"Use one of {list(plain)}, or 'NCHW<b>c' with b channels per block, such as 'NCHW16c'."
        )
    return _check_block_size(where, "layout", int(match[1]))


def _check_block_size(where: str, argument: str, size: int) -> int:
    if size < 2 or size > _LARGEST or size & (size - 1):
        raise ExprError(f"{where}: argument '{argument}': expected a block of a power of two from 2 to {_LARGEST} "
                        f"channels, got {size}. Use the elements of one vector, for example 16.")  # fmt: skip
    return size


@register_operator()
def to_blocked(n: int, c: int, h: int, w: int, block: int = 16, *, dtype: str = "float32") -> TensorExpr:
    """Convert ``X (n, c, h, w)`` to the layout ``NCHW<block>c``; the tail of the last block is filled with zeros.

    Parameters
    ----------
    n, c, h, w
        Batch, channels, height, width.
    block
        Channels per block, a power of two from 2 to 64.
    dtype
        Dtype of the input and the output.

    Returns
    -------
    TensorExpr
        Axes ``n co h w ci``; output ``Y (n, ceil(c / block), h, w, block)``.

    Raises
    ------
    ExprError
        If an extent is not positive, or the block is not a power of two from 2 to 64.

    Examples
    --------
    >>> import roller
    >>> roller.ops.to_blocked(1, 20, 7, 7, block=16).output_tensors[0].shape
    (1, 2, 7, 7, 16)
    """
    where = "to_blocked"
    n, c, h, w = check_shape(where, (n, c, h, w))
    blocks = ChannelBlocks(c, _check_block_size(where, "block", extent(where, "block", block)))
    t = resolve_dtypes(where, dtype, dtype, dtype)
    axes = make_spatial_axes(("n", n), ("co", blocks.count), ("h", h), ("w", w), ("ci", blocks.size))
    channel = blocks.index("co", "ci")
    body = t.load("X", (axis_index("n"), channel, *identity_indices(("h", "w"))), blocks.guard(channel))
    return _layout_copy_operator(where, Tensor("X", (n, c, h, w), dtype), axes, body)


@register_operator()
def from_blocked(n: int, c: int, h: int, w: int, block: int = 16, *, dtype: str = "float32") -> TensorExpr:
    """Convert ``X`` from the layout ``NCHW<block>c`` to ``(n, c, h, w)``; the tail of the last block is dropped.

    Parameters
    ----------
    n, c, h, w, block, dtype
        See :func:`to_blocked`; ``X`` has shape ``(n, ceil(c / block), h, w, block)``.

    Returns
    -------
    TensorExpr
        Axes ``n c h w``; output ``Y (n, c, h, w)``.

    Raises
    ------
    ExprError
        If an extent is not positive, or the block is not a power of two from 2 to 64.

    Examples
    --------
    >>> import roller
    >>> roller.ops.from_blocked(1, 20, 7, 7, block=16).inputs[0].shape
    (1, 2, 7, 7, 16)
    """
    where = "from_blocked"
    n, c, h, w = check_shape(where, (n, c, h, w))
    blocks = ChannelBlocks(c, _check_block_size(where, "block", extent(where, "block", block)))
    t = resolve_dtypes(where, dtype, dtype, dtype)
    outer, inner = Index((Term("c", 1, blocks.size),)), Index((Term("c", 1, 1, blocks.size),))
    if c <= blocks.size:
        outer, inner = Index(), axis_index("c")
    body = t.load("X", (axis_index("n"), outer, *identity_indices(("h", "w")), inner))
    axes = make_spatial_axes(("n", n), ("c", c), ("h", h), ("w", w))
    return _layout_copy_operator(where, Tensor("X", (n, blocks.count, h, w, blocks.size), dtype), axes, body)


def _layout_copy_operator(where: str, source: Tensor, axes: tuple[Axis, ...], body: object) -> TensorExpr:
    assert isinstance(body, Load)
    out = Tensor("Y", tuple(a.extent for a in axes), source.dtype)
    stage = Stage(out, axes, identity_indices(axes), body, None, source.dtype)
    return TensorExpr(where, (source,), (stage,), (out.name,))
