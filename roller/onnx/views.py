"""Contiguous parts of a value are views of it: they cost nothing, and equal readers of several parts share a kernel.

A step of an unrolled recurrent layer reads its row of the whole sequence. As an offset inside the kernel that reads it,
every step would be another kernel; as a view the steps are one.
"""

from __future__ import annotations

from roller.expr import DTYPE_BYTES, Index, Load
from roller.onnx.fusing import element_wise
from roller.onnx.lowered import Computed, Lowering, Part, Viewed

#: First bytes of views are multiples of this: kernels may read their inputs in vectors as wide.
_ALIGN_BYTES = 64


def view_parts(low: Lowering) -> None:
    """Replace movement that takes one piece of its source, as it is, by views, in place.

    Movement of what one element-wise kernel makes for it alone stays: that kernel then makes no more than the piece.
    """
    readers: dict[str, int] = {}
    for part in low.parts:
        for name in part.inputs:
            readers[name] = readers.get(name, 0) + 1
    made = {o: p for p in low.parts for o in p.outputs}

    def alone(source: str) -> bool:
        maker = made.get(source)
        fusable = isinstance(maker, Computed) and element_wise(maker) is not None
        return fusable and readers[source] == 1 and source not in low.graph.outputs

    def viewed(part: Part) -> Part:
        offset = piece(part) if isinstance(part, Computed) else None
        if offset is None or not isinstance(part, Computed) or alone(part.inputs[0]):
            return part
        return Viewed(part.inputs[0], part.outputs[0], offset, part.nodes)

    low.parts = [viewed(p) for p in low.parts]


def piece(part: Computed) -> int | None:
    """Return the element of its source that a part's output begins with, ``None`` where it is no aligned piece of it.

    Parameters
    ----------
    part
        A part that loads its output's elements, unconverted and each inside the source, is meant.
    """
    stage = element_wise(part)
    if stage is None or not isinstance(stage.body, Load) or stage.body.guard:
        return None
    load, source = stage.body, part.reads[0]
    extents = stage.extents
    if source.dtype != stage.output.dtype or stage.output.elements == source.elements:
        return None
    read, start = _address(load.index, source.shape)
    written, zero = _address(stage.store, stage.output.shape)
    moving = [a for a, e in extents.items() if e > 1]
    if read is None or written is None or zero or any(read.get(a, 0) != written.get(a, 0) for a in moving):
        return None
    return start if start * DTYPE_BYTES[source.dtype] % _ALIGN_BYTES == 0 else None


def _address(index: tuple[Index, ...], shape: tuple[int, ...]) -> tuple[dict[str, int] | None, int]:
    """Return elements per step of every axis, ``None`` where an axis is divided, and the first element."""
    steps: dict[str, int] = {}
    first, pitch = 0, 1
    for i, extent in zip(reversed(index), reversed(shape), strict=True):
        if not i.is_affine:
            return None, 0
        for t in i.terms:
            steps[t.axis] = steps.get(t.axis, 0) + t.coef * pitch
        first, pitch = first + i.const * pitch, pitch * extent
    return steps, first
