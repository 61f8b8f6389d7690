"""Selection strategies: the fastest candidate, the fastest worth timing, the first correct, the first that lowers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
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
from roller.errors import BuildError, NoCandidateError
from roller.expr import TensorExpr
from roller.hardware import DeviceSpec

if TYPE_CHECKING:
    from roller.compiler.autotune.prove_on_emulator import ProofVerdict
    from roller.compiler.autotune.selection_settings import Selection
    from roller.construction.constructor import Candidate
    from roller.templates.common.options import ConstructOptions


def positions_to_try_first(
    candidates: Sequence[Candidate], spec: DeviceSpec, options: ConstructOptions, how: Selection
) -> tuple[int, ...]:
    """Return the positions of the candidates that :func:`choose_kernel` tries first; it tries others if these fail."""
    if how.deterministic:
        return (0,)
    if options.top_k != "auto":
        return tuple(range(len(candidates)))
    from roller.construction.worth_timing import positions_of_candidates_to_time

    return positions_of_candidates_to_time(candidates, spec)


def choose_kernel(shop: TuningContext, candidates: Sequence[Candidate], how: Selection) -> CompiledKernel:
    """Select a kernel by measurement or prediction, and improve it by a local search if requested."""
    if how.deterministic:
        return choose_first_correct(shop, candidates)
    kernel = (choose_automatically if shop.options.top_k == "auto" else choose_fastest)(shop, candidates)
    if how.refine_s:
        from roller.compiler.autotune.refine import refine_by_local_search

        return refine_by_local_search(shop, kernel, how.refine_s)
    return kernel


def choose_fastest(shop: TuningContext, candidates: Sequence[Candidate]) -> CompiledKernel:
    """Build all candidates in parallel, check and time them, and return the fastest with the status of each."""
    records, artifacts = build_and_measure(shop, candidates)
    outcome = tuple(candidate_with_record(c, records[c.id]) for c in candidates)
    timed = [c for c in outcome if c.measured_s is not None]
    if not timed:
        raise no_survivor_error(shop.expression, shop.spec, outcome)
    best, doubt = _fastest_timed_candidate(timed)
    return CompiledKernel(artifact_with_results(artifacts[best.id], best, doubt, records[best.id].tied), outcome)


def _fastest_timed_candidate(timed: Sequence[Candidate]) -> tuple[Candidate, str]:
    # Times under different disturbances cannot be compared: with no undisturbed time the best prediction wins.
    measured = [c for c in timed if c.status != DOUBTFUL]
    doubtful = [c for c in timed if c.status == DOUBTFUL]
    if not doubtful:
        return min(measured, key=lambda c: (c.measured_s, c.id)), ""
    whole = [c for c in measured if c.status == "measured"]
    best = min(whole, key=lambda c: (c.measured_s, c.id)) if whole else doubtful[0]
    how = "ranked by the times of the others" if whole else "ranked by prediction"
    number = "its time is" if len(timed) == 1 else f"{len(doubtful)} of {len(timed)} times are"
    return best, f"{number} doubtful, {how}: {(doubtful[0].reason or '').rstrip('.')}"


def choose_automatically(shop: TuningContext, candidates: Sequence[Candidate]) -> CompiledKernel:
    """Choose among candidates that the model cannot distinguish from its favourite; a single one is not timed."""
    from roller.construction.worth_timing import positions_of_candidates_to_time

    # The others are tried only if none of these survives; untried candidates stay ``constructed``.
    chosen = shop.first or positions_of_candidates_to_time(candidates, shop.spec)
    if len(chosen) == 1:
        return choose_first_correct(shop, candidates, chosen[0])
    positions_to_try_first = [candidates[n] for n in chosen]
    rest = [c for c in candidates if c not in positions_to_try_first]
    try:
        kernel = choose_fastest(shop, positions_to_try_first)
    except NoCandidateError:
        if not rest:
            raise
        return choose_fastest(shop, candidates)
    tried = {c.id: c for c in kernel.candidates}
    return CompiledKernel(kernel.artifact, tuple(tried.get(c.id, c) for c in candidates))


def choose_first_correct(shop: TuningContext, candidates: Sequence[Candidate], first: int = 0) -> CompiledKernel:
    """Return the best-predicted candidate that builds and is correct, without timing; try position ``first`` first."""
    outcome = list(candidates)
    for n in sorted(range(len(candidates)), key=lambda n: (n != first, n)):
        c = candidates[n]
        records, artifacts = build_and_measure(shop, [c], timed=False)
        outcome[n] = candidate_with_record(c, records[c.id])
        if outcome[n].status == "checked":
            return CompiledKernel(artifact_with_results(artifacts[c.id], outcome[n]), tuple(outcome))
    raise no_survivor_error(shop.expression, shop.spec, outcome)


def choose_first_lowered(
    expression: TensorExpr,
    spec: DeviceSpec,
    candidates: Sequence[Candidate],
    lower: Callable[[Candidate], KernelArtifact],
    prove: Callable[[Candidate, KernelArtifact], tuple[KernelArtifact, ProofVerdict]] | None = None,
) -> CompiledKernel:
    """Return the best-predicted candidate that lowers, for an absent device; failed ones record the reason."""
    outcome = list(candidates)
    for n, c in enumerate(candidates):
        try:
            artifact = lower(c)
        except BuildError as err:
            outcome[n] = replace(c, status="failed", reason=str(err))
            continue
        if prove is not None:
            artifact, verdict = prove(c, artifact)
            if verdict.wrong:
                outcome[n] = replace(c, status="wrong", reason=verdict.wrong)
                continue
            outcome[n] = replace(c, proved=verdict.proved)
        return CompiledKernel(artifact_with_results(artifact, c), tuple(outcome), reachable=False)
    raise no_survivor_error(expression, spec, outcome)


def no_survivor_error(expression: TensorExpr, spec: DeviceSpec, outcome: Sequence[Candidate]) -> NoCandidateError:
    """Return the error that groups the reasons why all candidates failed."""
    from roller.runtime.candidate_records import Record, grouped_reasons

    records = [Record(c.id, c.status, c.reason or "") for c in outcome]
    alike = len(records) > 1 and len({(r.status, r.reason) for r in records}) == 1  # others would fail too
    remedy = "" if alike else " Try a larger top_k, or report the expression."
    return NoCandidateError(
        f"{expression.name} on {spec.name}: none of {len(records)} candidates survived: "
        f"{grouped_reasons(records).rstrip('.')}.{remedy}",
        tuple(c.program.digest for c in outcome if c.status == "wrong"),
    )
