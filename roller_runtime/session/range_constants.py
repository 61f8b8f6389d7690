"""Packs the constants of a model with dynamic sizes: once for each layout that one of an operator's kernels reads."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from roller_runtime.plan.execution_plan import Plan
from roller_runtime.plan.program_steps import ParallelGroup, Run, Step
from roller_runtime.session.cpu_kernel_loading import LoadedKernel
from roller_runtime.session.packed_constants import Constants, PanelKey, flatten_lanes, pack_constants
from roller_runtime.session.range_plan import RangeKernel, variant_key


def _index_of_first_same_layout(several: Sequence[RangeKernel]) -> Callable[[RangeKernel], int]:
    """Return a function that maps a kernel to the index of the first kernel with the same layout of constants."""
    layouts = [k.layout for k in several]
    return lambda kernel: layouts.index(kernel.layout)


def pack_all_layouts(
    largest: Plan, kernels: Mapping[str, Sequence[RangeKernel]], loaded: Mapping[str, LoadedKernel]
) -> Constants:
    """Pack the constants of the plan at the largest sizes; ``loaded`` contains all kernels by variant key."""
    firsts = {k: list(dict.fromkeys(map(_index_of_first_same_layout(x), x))) for k, x in kernels.items()}
    arrays, panels = dict[str, np.ndarray](), dict[PanelKey, tuple[np.ndarray, ...]]()
    for turn in range(max(map(len, firsts.values()), default=1)):

        def choose_variant(step: Step, turn: int = turn) -> Step:
            if isinstance(step, ParallelGroup):
                return replace(step, lanes=tuple(tuple(map(choose_variant, lane)) for lane in step.lanes))
            if not isinstance(step, Run):
                return step
            return replace(step, kernel=variant_key(step.kernel, firsts[step.kernel][turn]))

        steps = largest.program.steps
        if turn:
            steps = tuple(s for s in flatten_lanes(steps) if isinstance(s, Run) and turn < len(firsts[s.kernel]))
        program = replace(largest.program, steps=tuple(map(choose_variant, steps)))
        made = pack_constants(replace(largest, program=program), loaded)
        arrays |= made.arrays
        panels |= made.panels
    for run in flatten_lanes(largest.program.steps):
        if isinstance(run, Run):
            several = kernels[run.kernel]
            for n, kernel in enumerate(several):
                inputs = tuple(run.inputs[c] for c in kernel.code.constants)
                held = panels.get((variant_key(run.kernel, _index_of_first_same_layout(several)(kernel)), inputs))
                if held is not None:
                    panels[variant_key(run.kernel, n), inputs] = held
    return Constants(arrays, panels)
