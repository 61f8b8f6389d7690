"""Predictions and checks of dynamic kernels on CPUs."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import numpy as np

from roller import perf
from roller.compiler.dynamic import price_symbolic_programs, prove_kernel_for_call_sizes
from roller.compiler.dynamic.dynamic_size_box import Sizes
from roller.compiler.dynamic.symbolic_programs import SymbolicKernel, SymbolicProgram
from roller.expr import TensorExpr
from roller.hardware import DeviceSpec
from roller.templates.cpu.decisions import PANEL, decisions_for_device, run_copied_in_vectors
from roller.tile import RProgram

__all__ = ["UNUSED", "fault", "predicted"]

#: Log level for a kernel that is not used at some sizes; the next best is tried.
UNUSED = logging.INFO
#: Number of divisions per index (quotient and remainder) by a dynamic size, which compilers cannot turn into
#: multiplications or vectorize. Each is priced as a division with all other lanes idle.
_DIVISIONS = 2


def fault(kernel: SymbolicKernel, expression: TensorExpr, sizes: Sizes, spec: DeviceSpec) -> str:
    """Return why a kernel cannot be used at these sizes (:mod:`.prove_kernel_for_call_sizes`)."""
    return prove_kernel_for_call_sizes.fault(kernel, expression, sizes, spec.units)


def predicted(programs: Sequence[SymbolicProgram], sizes: Sizes, spec: DeviceSpec) -> np.ndarray:
    """Return predicted seconds, shape ``(programs,)``, including divisions in dynamic code; infinite if unsupported."""
    out = price_symbolic_programs.predicted(programs, sizes, spec)
    per_s = spec.compute.ops_per_cycle_per_unit["special"] / spec.teu.lanes * spec.clock_hz * spec.units
    for n in np.flatnonzero(np.isfinite(out)).tolist():
        if programs[n].tensors_divided_by_sizes:
            elements = _count_elements_found_by_division(
                programs[n].at(sizes), programs[n].tensors_divided_by_sizes, spec
            )
            out[n] += elements * _DIVISIONS / per_s
    return out


def _count_elements_found_by_division(program: RProgram, names: frozenset[str], spec: DeviceSpec) -> float:
    """Return the number of elements per call that are gathered into panels through an index divided by a size."""
    batch = perf.batch_of([program])
    if not batch.traits.reuses:
        return 0.0
    d, total = decisions_for_device(batch, spec), 0.0
    for a in d.staged(PANEL):
        if a.tensor.name not in names or a.tensor.name in program.constants:
            continue
        v = batch.vector_axis
        along = () if v is None else (a.index, a.tensor.shape, a.axis_names[v], int(a.axis_extents[v]))
        if along and not a.bounds and run_copied_in_vectors(*along, int(d.lanes.max())) is not None:
            continue  # whole runs are copied with one division each
        total += float((d.panel_bytes(a) * d.packing_count(a))[0]) / d.held_itemsize_bytes(a)
    return total
