"""Local search around the fastest program: builds, checks and times its neighbours."""

from __future__ import annotations

import math
from time import monotonic
from typing import TYPE_CHECKING

from roller.artifact import KernelArtifact
from roller.compiler.autotune.build_and_measure_candidates import (
    DOUBTFUL,
    TuningContext,
    artifact_with_results,
    build_and_measure,
    candidate_with_record,
)
from roller.compiler.compiled_kernel import CompiledKernel

if TYPE_CHECKING:
    from roller.construction.constructor import Candidate
    from roller.runtime.candidate_records import Record

#: Number of neighbours built and timed at a time.
BATCH = 4
#: Minimum relative gain of a neighbour; less is noise.
MARGIN = 0.01
#: Maximum logarithm of a neighbour's predicted slowdown, in units of the expected error of such predictions.
REACH = 3.0


def refine_by_local_search(shop: TuningContext, kernel: CompiledKernel, seconds: float) -> CompiledKernel:
    """Search around a kernel for ``seconds`` seconds and return the fastest program found."""
    # Each batch of neighbours is timed beside the current best. A winner must win again in the other order; at the end
    # the result is timed against the start. Which neighbours are tried depends only on measured times.
    end = monotonic() + seconds
    start = best = next(c for c in kernel.candidates if c.program == kernel.program)
    artifacts = {best.id: kernel.artifact}
    tried = {c.id: c for c in kernel.candidates}
    known = {str(c.program) for c in kernel.candidates if c.status != "constructed"}
    waiting = untried_neighbours(shop, best, known)
    last_s = 0.0
    while waiting and monotonic() + last_s < end:
        began = monotonic()
        batch, waiting = waiting[:BATCH], waiting[BATCH:]
        known |= {str(c.program) for c in batch}
        winner, artifacts = _time_against_best(shop, best, artifacts, batch, tried)
        if winner.id != best.id:
            waiting = untried_neighbours(shop, winner, known)
        best, last_s = winner, monotonic() - began
    if best.id != start.id:  # many small steps: compare the last with the first
        records = shop.judge({best.id: artifacts[best.id], start.id: kernel.artifact}, True)
        if DOUBTFUL in (records[best.id].status, records[start.id].status):
            return CompiledKernel(kernel.artifact, tuple(tried.values()))  # undecidable: keep the original
        if (_undisturbed_seconds(records[start.id]) or math.inf) < (_undisturbed_seconds(records[best.id]) or math.inf):
            best, artifacts = start, {start.id: kernel.artifact}
        best = tried[best.id] = candidate_with_record(best, records[best.id])
    return CompiledKernel(artifact_with_results(artifacts[best.id], best, kernel.artifact.doubt), tuple(tried.values()))


def untried_neighbours(shop: TuningContext, best: Candidate, known: set[str]) -> list[Candidate]:
    """Return the untried neighbours that may be faster."""
    from roller.construction.neighbours import neighbour_programs
    from roller.perf.expected_errors import kernel_family_key, ranking_error

    own = kernel_family_key(best.program)
    found = neighbour_programs(best.program, shop.expression, shop.spec, shop.options)
    return [
        c
        for c in found
        if str(c.program) not in known
        and math.log(c.estimate.seconds / best.estimate.seconds)
        <= REACH * ranking_error(shop.spec, kernel_family_key(c.program) == own)
    ]


def _time_against_best(
    shop: TuningContext,
    best: Candidate,
    artifacts: dict[str, KernelArtifact],
    batch: list[Candidate],
    tried: dict[str, Candidate],
) -> tuple[Candidate, dict[str, KernelArtifact]]:
    """Measure ``best`` and the batch together, record all results, and return the fastest one with its artifact."""
    records, made = build_and_measure(shop, batch, known=artifacts)
    for c in (best, *batch):
        tried[c.id] = candidate_with_record(c, records[c.id])
    best_s = _undisturbed_seconds(records[best.id])
    if best_s is None:  # it ran before, so this failure is not its own
        tried[best.id] = best
        return best, artifacts
    faster = [tried[c.id] for c in batch if (_undisturbed_seconds(records[c.id]) or math.inf) < best_s * (1 - MARGIN)]
    if not faster:
        return tried[best.id], artifacts
    winner = min(faster, key=lambda c: (c.measured_s, c.id))
    again = shop.judge({i: made[i] for i in (winner.id, best.id)}, True)
    if (_undisturbed_seconds(again[winner.id]) or math.inf) >= (_undisturbed_seconds(again[best.id]) or 0.0):
        return tried[best.id], artifacts
    tried[winner.id] = candidate_with_record(winner, again[winner.id])
    return tried[winner.id], {winner.id: made[winner.id]}


def _undisturbed_seconds(record: Record) -> float | None:
    return None if record.status == DOUBTFUL else record.measured_s
