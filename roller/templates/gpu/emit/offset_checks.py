"""Limits of 32-bit offsets: the kernels' index arithmetic is 32 bits wide and must not wrap around."""

from __future__ import annotations

from collections.abc import Iterable

from roller.errors import BuildError
from roller.expr import OFFSET_ELEMENTS, Stage, Tensor
from roller.tile import RProgram

#: Number of threads along an axis without a tile in the program; see
#: :mod:`roller.templates.gpu.emit.choose_stage_templates`.
_DEFAULT_TILE = 256


def check_tensor_sizes(kind: str, tensors: Iterable[Tensor]) -> None:
    """Raise an error if 32-bit offsets cannot address all elements of a tensor."""
    for t in tensors:
        if t.elements >= OFFSET_ELEMENTS:
            _raise_offset_error(f"{kind} '{t.name}'", "fewer than 2**31 elements", t.elements)


def check_offsets_fit_32_bits(program: RProgram) -> None:
    """Raise an error if a program's tensors, axes or indices exceed 32 bits."""
    # Threads beyond the end of an axis compare their position with its extent, and index the anchor's loads there:
    # extents count as padded to whole block tiles. A position that wraps around would be negative and would therefore
    # appear to be within the extent.
    check_tensor_sizes("tensor", program.expr.tensors.values())
    anchor = program.expr.anchor
    for stage in program.expr.stages:
        own, walked = _padded_extents(stage, program), {a.name for a in stage.reduction_axes}
        for name, extent in own.items():
            # TVM's simplification computes the end of the last block; loops over a reduction have no such number.
            if extent > OFFSET_ELEMENTS - (name not in walked):
                _raise_offset_error(
                    f"axis '{name}' of '{stage.name}', padded to whole tiles", "fewer than 2**31 elements", extent
                )
        for load in anchor.loads if stage is anchor else ():
            last = max((index.range(own)[1] for index in load.index), default=0)
            if last >= OFFSET_ELEMENTS:
                _raise_offset_error(f"indices of '{load.tensor}' over whole tiles", "less than 2**31", last)


def _padded_extents(stage: Stage, program: RProgram) -> dict[str, int]:
    """Return a stage's extents, padded to what its blocks cover; each part of a split reduction covers whole steps."""
    out = {}
    for a in stage.axes:
        tile = program.block_tile.get(a.name, _DEFAULT_TILE)
        parts = 1 if stage is not program.expr.anchor or a in stage.spatial_axes else program.split_k
        steps = -(-a.extent // tile)
        out[a.name] = -(-steps // parts) * parts * tile
    return out


def _raise_offset_error(what: str, expected: str, got: int) -> None:
    raise BuildError(
        f"cuda: {what}: expected {expected}, got {got}. Split the operator: offsets in the kernel are 32 bits wide."
    )
