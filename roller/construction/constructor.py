"""Constructs candidates: grows programs from templates, then ranks, lays out and identifies them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

from roller.construction.ranking import best_programs
from roller.errors import NoCandidateError, RollerError
from roller.expr import TensorExpr
from roller.hardware import DeviceSpec
from roller.perf.estimate import Estimate
from roller.perf.tile_batch import TileBatch
from roller.templates.common.forms import canonical_forms
from roller.templates.common.library_kernel_limits import POLICIES
from roller.templates.common.options import TEMPLATE_VERSION, ConstructOptions
from roller.templates.gpu import find_matrix_product, to_matrix_product_batch
from roller.templates.gpu.common.vector_widths import vector_elements_per_axis
from roller.templates.registry import programs_of
from roller.tile.alignment import broken_rules, precompute_fills_transactions
from roller.tile.geometry import Ints
from roller.tile.matrix_operands import least_conflict_padding, program_operands
from roller.tile.program import RProgram
from roller.tile.staged_tile_layout import lane_reads, least_conflict_storage_padding, thread_read_ratio
from roller_runtime.core.display import one_line_repr, seconds_text


@dataclass(frozen=True)
class Candidate:
    """A constructed program, its estimate, and the outcome of building and timing it.

    Parameters
    ----------
    id
        Hash of expression, device spec, program, template version and options.
    program, estimate
        The rProgram and its prediction.
    status
        ``"constructed"`` (not tried), ``"measured"``, ``"checked"`` (correct, not timed) or another value of
        :data:`roller.runtime.candidate_records.STATUSES`.
    measured_s
        Median measured time in seconds, or ``None`` if the program was not timed.
    reason
        Reason for a failure, or ``None``.
    proved
        Result of the emulation that replaces an absent device: ``"emulated"`` or ``"not proved (reason)"``; empty if
        the program was not emulated.
    """

    id: str
    program: RProgram
    estimate: Estimate
    status: str = "constructed"
    measured_s: float | None = None
    reason: str | None = None
    proved: str = ""

    def __repr__(self) -> str:
        measured = "" if self.measured_s is None else f"measured {seconds_text(self.measured_s)}"
        times = ", ".join(t for t in (measured, f"predicted {seconds_text(self.estimate.seconds)}") if t)
        status = self.status if self.program.emitted else f"{self.status}, not emitted"
        return one_line_repr("Candidate", f"{status}: {times}", str(self.program))


def construct_candidates(expr: TensorExpr, spec: DeviceSpec, options: ConstructOptions) -> tuple[Candidate, ...]:
    """Construct ``options.count`` distinct programs (or fewer if there are no more) by growing tiles, best first."""
    if POLICIES[options.policy] is not None and not spec.traits.blocks:
        raise RollerError(f"ConstructOptions.policy: expected 'roller' on {spec.name}, which is no GPU. Leave it out.")
    target = spec_of_device_share(spec, options)
    constants = tuple(expr.inputs[n].name for n in options.constants_of(expr))
    share = replace(options, pool=max(options.count, options.pool // len(canonical_forms(expr, options))))
    batches = list(programs_of(expr, target, share))
    batches = [replace(b, constants=constants) for b in batches] if constants else batches
    best = best_programs([b for b in batches if len(b)], target, options.count, partial(program_from_row, spec=target))
    if not best:
        raise nothing_fits_error(expr, spec, options)
    return make_candidates(best, expr, spec, options)


def nothing_fits_error(expr: TensorExpr, spec: DeviceSpec, options: ConstructOptions) -> NoCandidateError:
    """Return the error for an expression without a program that fits the device."""
    fixed = "" if expr.allow_padding else ", or replace the expression by one with allow_padding=True"
    return NoCandidateError(
        f"{expr.name} on {spec.name}: expected at least one program, none fits the device and the padding allowed "
        f"(epsilon={options.epsilon}, allow_padding={expr.allow_padding}). "
        f"Raise ConstructOptions.epsilon{fixed}."
    )


def make_candidates(
    programs: Sequence[tuple[RProgram, Estimate]], expr: TensorExpr, spec: DeviceSpec, options: ConstructOptions
) -> tuple[Candidate, ...]:
    """Return programs as candidates, each with the alignment rules that it relaxes and with its identifier."""
    parts = [expr.key, spec.content_key, TEMPLATE_VERSION, options.identity(expr)]
    identity = hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()
    target = spec_of_device_share(spec, options)
    precompute_fills_transactions([p for p, _ in programs], target)
    return tuple(_make_candidate(identity, p, e, target, options.epsilon) for p, e in programs)


def spec_of_device_share(spec: DeviceSpec, options: ConstructOptions) -> DeviceSpec:
    """Return the share of the device that ``options.units`` selects, or the whole device if it is ``None``."""
    return spec if options.units is None else spec.share(options.units)


def _make_candidate(
    identity: str, program: RProgram, estimate: Estimate, spec: DeviceSpec, epsilon: float
) -> Candidate:
    named = replace(program, relaxed=broken_rules(program, spec, epsilon))
    return Candidate(hashlib.sha256(f"{identity}/{named}".encode()).hexdigest()[:16], named, estimate)


def program_from_row(batch: TileBatch, i: int, spec: DeviceSpec) -> RProgram:
    """Return row ``i`` of a batch as a program, including its vectors and storage padding."""
    g, product = batch.geometry, find_matrix_product(batch)
    if product is not None:
        return product.outer(
            program_from_row(to_matrix_product_batch(batch, product), i, spec), g.expr, batch.structure
        )
    fast, slow = [layer.name for layer in spec.memory_layers if layer.tiled][:: 1 if batch.panel is None else 2][:2]
    tiles = [(fast, _int_tuple(batch.register[i])), (slow, _int_tuple(batch.block[i]))]
    if batch.panel is not None:
        tiles.insert(1, (spec.memory_layers[1].name, _int_tuple(batch.panel[i])))
    rowwise = spec.traits.blocks and batch.traits.spreads_reductions
    axis, elements = _choose_vector(batch, i, spec)
    # Neighbouring threads take neighbouring vectors; staged programs choose by the cost of their reads.
    apart = rowwise or (spec.traits.blocks and not batch.traits.reduces)
    program = RProgram(
        g.expr, spec.kind, batch.structure, tuple(tiles), (), batch.staged, axis, elements, apart,
        int(batch.split_k[i]), constants=batch.constants, nontemporal=batch.nontemporal,
        stages=_value_of_row(batch.stages, i),
        raster=_value_of_row(batch.raster, i), fragment=batch.fragment, matrix_axes=batch.matrix_axes,
    )  # fmt: skip
    if spec.traits.blocks and batch.staged and not rowwise:  # rowwise threads read only their own data
        program = _choose_layout(program, spec)
    return program


def _value_of_row(values: int | Ints, i: int) -> int:
    return values if isinstance(values, int) else int(values[i])


def _int_tuple(row: Ints) -> tuple[int, ...]:
    return tuple(int(x) for x in row)


def _choose_vector(batch: TileBatch, i: int, spec: DeviceSpec) -> tuple[str | None, int]:
    """Return the vector axis (``None`` for scalars) and the number of elements per vector."""
    g = batch.geometry
    if batch.vector_axis is not None:
        lanes = spec.teu.lanes * 4 // max(4, g.store.tensor.itemsize_bytes)
        return g.names[batch.vector_axis], lanes
    if not spec.traits.blocks:
        return None, 1
    elements = vector_elements_per_axis(batch)[i]
    axis = int(elements.argmax())
    return (g.names[axis], int(elements[axis])) if elements[axis] > 1 else (None, 1)


def _choose_layout(program: RProgram, spec: DeviceSpec) -> RProgram:
    """Return the program with the thread order and the storage padding that minimize the cost of one TEU's reads."""
    shared = spec.layer("shared")
    banks, width = shared.banks or spec.teu.lanes, shared.bank_width_bytes or 4
    if program.fragment is not None and program.fragment.reads_scratchpad:
        return program  # its tiles are swizzled
    if program.fragment is not None:
        read = program_operands(program)
        parted = [(x.tensor.name, least_conflict_padding(x, program.fragment, banks, width)[0]) for x in read]
        return replace(program, storage_padding=tuple((t, pad) for t, pad in parted if pad))
    options = []
    vector_elements_per_axis = program.traits.reduces  # column reads avoid conflicts only with rows of odd length
    for interleaved in (False,) if program.traits.slides_windows else (True, False):  # strips are contiguous
        trial = replace(program, interleaved=interleaved)
        reads = lane_reads(trial, spec.teu.lanes)
        chosen = {
            t: least_conflict_storage_padding(r, banks, width, vector_elements_per_axis) for t, r in reads.items()
        }
        pads = {t: pad for t, (pad, _) in chosen.items()}
        spread = thread_read_ratio(trial)
        cost = sum(degree * spread[t] for t, (_, degree) in chosen.items())
        options.append((cost, sum(pads.values()), not interleaved, pads, reads))
        if cost == len(reads) and not any(pads.values()):
            break  # optimal: no conflicts, no padding, no repeated reads
    _, _, contiguous, pads, reads = min(options, key=lambda o: o[:3])
    padding = tuple((t, p) for t, p in pads.items() if p)
    return replace(program, interleaved=not contiguous, storage_padding=padding).reading(reads)
