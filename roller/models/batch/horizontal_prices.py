"""What packing has to know of a model's kernels, from predictions: whether packs could beat what runs side by side."""

from __future__ import annotations

import sys
from collections.abc import Mapping

from roller.hardware import DeviceSpec
from roller.models.graph.chunks import chunked
from roller.models.graph.coschedule import Predict, lanes_of, with_company
from roller.models.graph.horizontal import Kind, Machine, PackCosts, Packing, packed
from roller.models.graph.side_by_side import LEAST_GAIN, Outcome
from roller.models.graph.steps import Program
from roller.perf.estimate import Estimate

#: Chunks of a kernel that waits for a whole sequence: launches are shared, so that a chunk per step costs none.
_PARTS = (10, sys.maxsize)
#: Terms of an estimate without which nothing is known of a kernel beside others.
_NEEDED = {"blocks", "threads", "registers", "scratchpad_bytes", "launch_s", "compute_s", "dram_bytes"}


def packable(program: Program, spec: DeviceSpec, predict: Predict, rival: Outcome) -> Packing | None:
    """Return a program with packs where one is predicted to be faster than what runs side by side on streams."""
    if not spec.traits.blocks:
        return None
    best: Packing | None = None
    for variant in (program, *chunked(program, _PARTS)):
        company = with_company(variant)
        if not company:
            continue
        whole = predict(variant.kernels, None)
        shared = {k: variant.kernels[k] for k in sorted(company)}
        for units in (None, *(u for _, u in lanes_of(spec))):
            found = packed(variant, costs_of(whole, whole if units is None else predict(shared, units), spec, units))
            if found.packs and (best is None or found.seconds < best.seconds):
                best = found
    return best if best is not None and best.seconds < (1.0 - LEAST_GAIN) * rival.together_s else None


def costs_of(
    whole: Mapping[str, Estimate], share: Mapping[str, Estimate], spec: DeviceSpec, units: int | None
) -> PackCosts:
    """Return predictions as packing takes them; ``share`` are those of kernels constructed for ``units``."""
    kinds = {key: kind for key, e in share.items() if (kind := kind_of(e, spec, units)) is not None}
    copies = spec.memory_layers[-1].bandwidth_bytes_per_s / 2
    return PackCosts(machine_of(spec), kinds, {k: e.seconds for k, e in whole.items()}, units, copies)


def machine_of(spec: DeviceSpec) -> Machine:
    """Return what a GPU gives a launch."""
    lim, shared = spec.limits, spec.layer("shared")
    assert lim.blocks_per_unit and lim.threads_per_unit and lim.registers_per_unit  # the schema requires them of a GPU
    return Machine(
        spec.units, spec.execution.launch_s, lim.blocks_per_unit, lim.threads_per_unit, lim.registers_per_unit,
        shared.capacity_bytes, shared.reserved_bytes or 0, spec.teu.lanes,
    )  # fmt: skip


def kind_of(estimate: Estimate, spec: DeviceSpec, units: int | None = None) -> Kind | None:
    """Return what a kernel takes as packs count it; ``None`` where its estimate does not say."""
    terms = estimate.terms
    if not terms.keys() >= _NEEDED:
        return None
    launch_s = spec.execution.launch_s
    part = min(terms["blocks"], units or spec.units) / spec.units
    l2, memory = spec.layer("l2").bandwidth_bytes_per_s, spec.memory_layers[-1].bandwidth_bytes_per_s
    return Kind(
        estimate.seconds - terms["launch_s"], max(1, round(terms["launch_s"] / launch_s)), terms["blocks"],
        terms["threads"], terms["registers"], terms["scratchpad_bytes"], terms.get("waves", 1.0),
        (terms["compute_s"] * part, terms.get("copy_s", 0.0) * part),
        (terms["dram_bytes"] / memory, terms.get("l2_bytes", 0.0) / l2),
    )  # fmt: skip
