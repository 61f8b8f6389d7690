"""Loops over the window taps that lie inside the image for at least one output of a register tile."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from roller.te.compat import tirx
from roller.te.emit_tvm_expressions import Expr
from roller.templates.cpu.emit.axis_tiling_plans import SpatialPlan, program_decisions
from roller.templates.cpu.emit.tir_loop_constructors import int32_index
from roller.templates.cpu.window_clipping import WindowSlide, partly_computed_axes, slides_over_padding
from roller.tile import RProgram


@dataclass(frozen=True)
class ClippedWindow:
    """A window of ``taps`` whose range depends on the position of the register tile along ``output``."""

    slide: WindowSlide
    output: SpatialPlan
    taps: int


def clipped_windows(program: RProgram, spatial: Sequence[SpatialPlan]) -> Mapping[str, ClippedWindow]:
    """Return the windows that a program's micro-kernels compute only in part, keyed by axis name."""
    d, names = program_decisions(program), program.axis_names
    passed, plans = partly_computed_axes(d.live[0]), {s.name: s for s in spatial}
    return {
        names[s.tap]: ClippedWindow(s, plans[names[s.output]], program.axes[s.tap].extent)
        for s in slides_over_padding(d.batch.geometry)
        if s.tap in passed
    }


def first_tap_and_tap_count(skipped: ClippedWindow, env: Mapping[str, Any]) -> tuple[Expr, Expr]:
    """Return the first tap, and the number of taps, that the register tile at ``env`` computes."""
    s, begin, taps = skipped.slide, env[skipped.output.name], int32_index(skipped.taps)
    last = begin + (skipped.output.tile - 1)
    first = tirx.min(tirx.max(-tirx.floordiv(s.step * last - s.low, int32_index(s.gap)), int32_index(0)), taps)
    end = tirx.floordiv(s.high - 1 - s.step * begin, int32_index(s.gap)) + 1
    return first, tirx.max(tirx.min(end, taps) - first, int32_index(0))
