"""Reconstructs the growth steps that led to a program, and the choices made by predicted time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from roller.hardware import DeviceSpec
from roller.templates.common.growth_trace import GrowthStep, GrowthTrace
from roller.templates.common.options import ConstructOptions
from roller.templates.gpu.matrix.candidates import grow_matrix_blocks, matrix_forms
from roller.templates.gpu.tiled.candidates import blocks, grow_register_tiles
from roller.tile.geometry import Geometry
from roller.tile.program import RProgram
from roller.tile.winograd_batched_product import tiled_product_of_program

_WINOGRAD = "Micro-kernels of the transformed product and sizes of tasks are enumerated; the model's price chooses."


@dataclass(frozen=True)
class ConstructionStep:
    """One growth step of construction, which enlarges a tile along one axis."""

    layer: str  #: Layer of the tile: ``"register"``, or ``"shared"`` for the threads of a block
    #: Enlarged axis, and its extent before and after: elements of a register tile, or threads (or groups) of a block.
    axis: str
    before: int
    after: int
    score: float  #: Data reuse score: bytes of traffic saved per byte of footprint
    others: tuple[tuple[str, float], ...]  #: ``((axis, score), ...)`` of the alternatives

    def to_dict(self) -> dict[str, Any]:
        """Return JSON-ready data."""
        return {**vars(self), "others": [list(o) for o in self.others]}


@dataclass(frozen=True)
class ConstructionHistory:
    """The growth steps of a program, and sentences on the other choices."""

    steps: tuple[ConstructionStep, ...]
    words: tuple[str, ...]


def reconstruct_construction(program: RProgram, spec: DeviceSpec, options: ConstructOptions) -> ConstructionHistory:
    """Return how a program was constructed, by repeating its construction with the same functions."""
    inner = tiled_product_of_program(program) or program
    words = []
    if inner is not program:
        words.append(f"It multiplies transformed tiles: the steps are those of the batched product {inner.expr}.")
    if spec.traits.blocks and inner.traits.reuses and inner.fragment is None:
        return _reconstruct_tiled_construction(inner, spec, options, words)
    if spec.traits.blocks and inner.fragment is not None:
        return _reconstruct_matrix_construction(inner, spec, options, words)
    known = spec.traits.module_for("templates", "construction_steps").ENUMERATED
    words.append(_WINOGRAD if inner.traits.output_side else known[inner.structure])
    return ConstructionHistory((), tuple(words))


def _reconstruct_tiled_construction(
    program: RProgram, spec: DeviceSpec, options: ConstructOptions, words: list[str]
) -> ConstructionHistory:
    g, names = Geometry.of(program.expr), program.axis_names
    register, block = (np.array(t) for t in (program.tiles[0][1], program.tiles[-1][1]))
    seen, of_blocks = GrowthTrace(), GrowthTrace()
    found = grow_register_tiles(g, spec, seen)
    blocks(g, spec, found, options, of_blocks)
    first = seen.road(register.tolist())
    threads = np.where(g.spatial, block // register, 1)
    second = _state_before_rounding(of_blocks, register, threads)
    if first is None or second is None:
        return ConstructionHistory(
            (), (*words, "Construction did not come by these tiles: its growth visits few of all there are.")
        )
    state, more = second
    steps = _steps_with_axis_names("register", first, names, 0) + _steps_with_axis_names(
        "shared", more, names, len(names)
    )
    start = state if not more else more[0].before
    seed = dict(zip(names, start[len(names) :], strict=True))
    lanes = f"Blocks start from one TEU's {spec.teu.lanes} lanes"
    words.append(f"{lanes}, spread over the axes in every way; here {_format_thread_spread(seed)}.")
    last = np.array(more[-1].after if more else start)[len(names) :]
    if (last != threads).any():
        whole = dict(zip(names, threads.tolist(), strict=True))
        words.append(f"Threads were rounded up to whole TEUs: {_format_thread_spread(whole)}.")
    return ConstructionHistory(steps, (*words, *_sentences_on_priced_choices(program)))


def _state_before_rounding(
    growth: GrowthTrace, register: np.ndarray, threads: np.ndarray
) -> tuple[tuple[int, ...], tuple[GrowthStep, ...]] | None:
    """Return the state before rounding threads up to whole TEUs, and the steps that led to it; ``None`` if unknown."""
    rows = np.unique(np.concatenate([np.concatenate([r.states, r.table.reshape(-1, r.states.shape[1])])
                                     for r in growth.rounds]), axis=0)  # fmt: skip
    a = len(register)
    near = rows[(rows[:, :a] == register).all(axis=1) & (rows[:, a:] <= threads).all(axis=1)]
    near = near[(near[:, a:] != threads).sum(axis=1) <= 1]
    for row in sorted(near.tolist(), key=lambda r: -int(np.prod(r[a:]))):
        road = growth.road(row)
        if road is not None:
            return tuple(row), road
    return None


def _reconstruct_matrix_construction(
    program: RProgram, spec: DeviceSpec, options: ConstructOptions, words: list[str]
) -> ConstructionHistory:
    g, names = Geometry.of(program.expr), program.axis_names
    register, block = (np.array(t) for t in (program.tiles[0][1], program.tiles[-1][1]))
    f = program.fragment
    assert f is not None
    axes = tuple(names.index(a) for a in program.matrix_axes)
    form = next(x for x in matrix_forms(g, spec) if x.fragment == f and x.axes == axes)
    seen = GrowthTrace()
    grow_matrix_blocks(g, spec, form, options, seen)
    groups = np.ones_like(block)
    groups[list(axes[:2])] = (block // register)[list(axes[:2])]
    road = seen.road([*register, *groups])
    words.append(
        f"Tiles of a group of {f.threads} threads are whole fragments of '{f.name}' ({f.m} x {f.n} x {f.k}): every "
        "number of them along m and n that fits the registers is tried."
    )
    if road is None:
        return ConstructionHistory(
            (), (*words, "Growth by groups did not come by this block.", *_sentences_on_priced_choices(program))
        )
    return ConstructionHistory(
        _steps_with_axis_names("shared", road, names, len(names)), (*words, *_sentences_on_priced_choices(program))
    )


def _sentences_on_priced_choices(program: RProgram) -> list[str]:
    step = ", ".join(f"{a}={program.block_tile[a]}" for a in program.reduction_steps)
    found = [f"The reduction step ({step}) is a branch, not a score: it saves almost no traffic; the price chose it."]
    every = (("stages", program.stages), ("split_k", program.split_k), ("raster", program.raster))
    chosen = [f"{n}={v}" for n, v in every if v > 1]
    if chosen:
        found.append(f"Tried for the most promising tiles and chosen by price: {', '.join(chosen)}.")
    return found


def _steps_with_axis_names(
    layer: str, road: Sequence[GrowthStep], names: Sequence[str], first: int
) -> tuple[ConstructionStep, ...]:
    """Return growth steps with axis names; the layer's columns start at ``first``."""

    def axis(column: int) -> str:
        return names[column - first if column >= first else column]

    return tuple(
        ConstructionStep(layer, axis(e.column), e.before[e.column], e.after[e.column], e.score,
             tuple((axis(c), s) for c, s in e.others))
        for e in road
    )  # fmt: skip


def _format_thread_spread(threads: dict[str, int]) -> str:
    return " x ".join(f"{n} along {a}" for a, n in threads.items() if n > 1) or "one"
