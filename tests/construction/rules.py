"""The alignment rules and limits once more, written from their definition and not from the code under test."""

from __future__ import annotations

import itertools
import math

import numpy as np

from roller.expr import SPATIAL
from roller.hardware import DeviceSpec
from roller.tile import RProgram
from roller.tile.geometry import Geometry
from roller.tile.sliding_windows import row_box, slide_of
from roller.tile.staged_tile_layout import program_layout, window_halo
from tests.tile.instructions import Box, Load, instructions


def thread_counts(program: RProgram) -> dict[str, int]:
    """Threads per axis."""
    register, block = program.tile("register"), program.block_tile
    spread = [a.name for a in program.axes if a.kind == SPATIAL or program.structure == "rows"]
    return {a.name: block[a.name] // register[a.name] if a.name in spread else 1 for a in program.axes}


def fills_units(program: RProgram, spec: DeviceSpec) -> bool:
    """Rule 1: whole TEUs, or whole vectors."""
    if spec.kind == "cpu":
        axis = program.vector_axis
        return axis is not None and program.tile("register")[axis] % program.vector_elements == 0
    return math.prod(thread_counts(program).values()) % spec.teu.lanes == 0


def _rows(box: Box, shape: tuple[int, ...]) -> tuple[list[int], int, bool]:
    """Starts of some rows of a box (elements), their length, and whether they span the last dimension."""
    pitch = [math.prod(shape[d + 1 :]) for d in range(len(shape))]
    coordinates = [[x for x in range(*r) if 0 <= x < n] for r, n in zip(box.ranges, shape, strict=True)]
    d = len(shape) - 1
    length = coordinates[d][-1] - coordinates[d][0] + 1
    spans = len(coordinates[d]) == shape[d]
    while d > 0 and len(coordinates[d]) == shape[d]:
        d -= 1
        length = len(coordinates[d]) * pitch[d]
    some = [sorted({c[0], c[len(c) // 2], c[-1], *c[1:2]}) for c in coordinates[:d]] + [c[:1] for c in coordinates[d:]]
    starts = [sum(x * p for x, p in zip(at, pitch, strict=True)) for at in itertools.product(*some)]
    return starts, length, spans


def whole_transactions(program: RProgram, spec: DeviceSpec, blocks: int = 3) -> bool:
    """Rule 2 on the first blocks: rows are multiples of a transaction or span their dimension; several are aligned."""
    size = spec.memory_layers[-1].transaction_bytes
    tensors = program.expr.tensors
    count = blocks * len(Geometry.of(program.expr).loads)
    for step in itertools.islice((s for s in instructions(program) if isinstance(s, Load)), count):
        if not isinstance(step.region, Box) or not step.region.ranges:
            continue
        tensor = tensors[step.tensor]
        if any(b <= 0 or a >= n for (a, b, _), n in zip(step.region.ranges, tensor.shape, strict=True)):
            continue  # nothing but border
        starts, length, spans = _rows(step.region, tensor.shape)
        if not spans and length * tensor.itemsize_bytes % size:
            return False
        if len(starts) > 1 and any(s * tensor.itemsize_bytes % size for s in starts):
            return False
    return True


def first_warp(program: RProgram, lanes: int) -> dict[str, np.ndarray]:
    """Local coordinates of the first element of every lane of the first warp."""
    names = [program.axis_names[a] for a in Geometry.of(program.expr).order]
    counts = thread_counts(program)
    register = program.tile("register")
    at = np.unravel_index(np.arange(lanes) % math.prod(counts[n] for n in names), [counts[n] for n in names])
    out = {n: np.zeros(lanes, np.int64) for n in program.axis_names}
    for name, thread in zip(names, at, strict=True):
        chunk = program.vector_elements if name == program.vector_axis else 1
        out[name] = thread * (chunk if program.interleaved else register[name])
    return out


def conflict_free(program: RProgram, spec: DeviceSpec) -> bool:
    """Rule 3: the words one read of the first warp asks of one bank are one word."""
    if spec.kind != "gpu" or not program.staged:
        return True
    shared = spec.layer("shared")
    local = first_warp(program, spec.teu.lanes)
    padding = dict(program.storage_padding)
    seen = set()
    for load in program.expr.anchor.loads:
        if load.tensor in seen or load.tensor not in program.staged:
            continue
        seen.add(load.tensor)
        tensor = program.expr.tensors[load.tensor]
        layout = program_layout(program, load)
        if not layout.dims:
            continue
        pitch = layout.pitches(padding.get(load.tensor, 0))
        start = sum(p * np.asarray(i(local)) for p, i in zip(pitch, layout.dims, strict=True)) + np.zeros(
            spec.teu.lanes, np.int64
        )
        last = layout.dims[-1].terms
        vector = len(last) == 1 and last[0].coef == 1 and last[0].axis == program.vector_axis
        width = program.vector_elements if vector else 1
        if program.structure == "window":
            width, start = window_halo(program).width, start - window_halo(program).lead
            assert (start % width == 0).all()
        group = min(spec.teu.lanes, shared.banks) // width  # a wavefront wider than the banks goes in parts
        for first in range(0, spec.teu.lanes, group):
            element = (start[first : first + group, None] + np.arange(width)).ravel()
            words = np.unique(element * tensor.itemsize_bytes // shared.bank_width_bytes)
            if np.bincount(words % shared.banks).max() > 1:
                return False
    return True


def padded_waste(program: RProgram) -> float:
    """Largest padded share of an axis."""
    return max((-a.extent % program.block_tile[a.name]) / a.extent for a in program.axes)


def scratchpad_bytes(program: RProgram) -> int:
    """Bytes code generation allocates for the staged tiles: layouts with their storage padding, all stages.

    Slots of a ring begin where vectors of 16 bytes may, and so do the tiles of a pool, which is one where static memory
    does not hold them.
    """
    padding, tiles = dict(program.storage_padding), []
    for load in {(ld.tensor, ld.index): ld for ld in program.expr.anchor.loads}.values():
        if load.tensor not in program.staged:
            continue
        tensor = program.expr.tensors[load.tensor]
        extents = program_layout(program, load).extents
        rows = math.prod(extents[:-1])
        size = rows * ((extents[-1] if extents else 1) + padding.get(load.tensor, 0)) * tensor.itemsize_bytes
        tiles.append(size if program.stages == 1 else -(-size // 16) * 16 * program.stages)
    return sum(tiles) if sum(tiles) <= 48 * 1024 else sum(-(-t // 16) * 16 for t in tiles)


def operand_words(program: RProgram) -> int:
    """32-bit registers of accumulators and operand fragments of one thread."""
    if program.structure == "window":
        return walking_words(program)
    register = np.array([tuple(program.tile("register").values())])
    g = Geometry.of(program.expr)
    outputs = math.prod(n for n, a in zip(register[0].tolist(), program.axes, strict=True) if a.kind == SPATIAL)
    words = outputs * max(1, g.store.tensor.itemsize_bytes // 4)
    return words + sum(int(a.elements(register)[0]) * max(1, a.tensor.itemsize_bytes // 4) for a in g.loads)


def walking_words(program: RProgram) -> int:
    """32-bit registers of a thread that walks windows: outputs begun and not done, one row, the weights."""
    slide, tile = slide_of(program.expr.anchor), program.tile("register")
    assert slide is not None
    begun, done, live = set(), set(), 0
    for _, pairs in slide.rows(tile[slide.axis]):
        begun |= {i for i, _ in pairs}
        live = max(live, len(begun - done))
        done |= {i for i, k in pairs if k == slide.taps - 1}
    inner = math.prod(tile[a.name] for a in program.axes if a.kind == SPATIAL and a.name != slide.axis)
    weights = sum(math.prod(tile[a] for a in {t.axis for i in ld.index for t in i.terms}) for ld in slide.others)
    return live * inner + row_box(slide, tile).elements + weights
