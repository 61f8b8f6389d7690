"""The ways to a kernel: the fastest of all, of those worth timing, the first that is correct, the first that lowers."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from roller.artifact import DOUBT, TIED, KernelArtifact
from roller.compiler.compiled_kernel import CompiledKernel
from roller.errors import BuildError, NoCandidateError, counted
from roller.expr import TensorExpr
from roller.hardware import DeviceSpec

if TYPE_CHECKING:
    from roller.compiler.autotune.proving import Verdict
    from roller.compiler.autotune.selection import Selection
    from roller.construction.constructor import Candidate
    from roller.runtime.build_pool import BuildResult
    from roller.runtime.records import Record
    from roller.templates.common.options import ConstructOptions

_LOG = logging.getLogger(__name__)

#: Status of a candidate whose time others disturbed to the end.
DOUBTFUL = "doubtful"


@dataclass(frozen=True)
class Workshop:
    """Where the candidates of one expression are made and judged.

    Parameters
    ----------
    expression, spec
        What they compute, and the device they were constructed for.
    options
        How they were constructed.
    make
        Lowers and builds one candidate; called in processes of their own.
    judge
        Checks built artifacts by candidate id, and times them where its second argument says so; a record per id.
    build
        Makes candidates by id and says whether they will be timed; in processes of this machine when ``None``.
    first
        Positions of the candidates that ``top_k="auto"`` times, where more is known of them than their predictions: the
        likeliest one comes first. Empty for :func:`roller.construction.worth_timing.worth_timing`.
    """

    expression: TensorExpr
    spec: DeviceSpec
    options: ConstructOptions
    make: Callable[[Candidate], KernelArtifact]
    judge: Callable[[Mapping[str, KernelArtifact], bool], Mapping[str, Record]]
    build: Callable[[Mapping[str, Candidate], bool], Mapping[str, BuildResult[KernelArtifact]]] | None = None
    first: tuple[int, ...] = ()


def wanted(
    candidates: Sequence[Candidate], spec: DeviceSpec, options: ConstructOptions, how: Selection
) -> tuple[int, ...]:
    """Return the positions of the candidates that :func:`choose` makes first, and only, unless they fail."""
    if how.deterministic:
        return (0,)
    if options.top_k != "auto":
        return tuple(range(len(candidates)))
    from roller.construction.worth_timing import worth_timing

    return worth_timing(candidates, spec)


def choose(shop: Workshop, candidates: Sequence[Candidate], how: Selection) -> CompiledKernel:
    """Return the kernel of the candidates as asked: by measurement, by prediction alone, or what a search finds."""
    if how.deterministic:
        return first_correct(shop, candidates)
    kernel = (automatic if shop.options.top_k == "auto" else fastest)(shop, candidates)
    if how.refine_s:
        from roller.compiler.autotune.refine import refine

        return refine(shop, kernel, how.refine_s)
    return kernel


def fastest(shop: Workshop, candidates: Sequence[Candidate]) -> CompiledKernel:
    """Make all candidates in parallel, check and time what was built; return the fastest with the fate of each."""
    records, artifacts = try_all(shop, candidates)
    outcome = tuple(with_record(c, records[c.id]) for c in candidates)
    timed = [c for c in outcome if c.measured_s is not None]
    if not timed:
        raise none_survived(shop.expression, shop.spec, outcome)
    best, doubt = _best(timed)
    return CompiledKernel(finished(artifacts[best.id], best, doubt, records[best.id].tied), outcome)


def _best(timed: Sequence[Candidate]) -> tuple[Candidate, str]:
    """Return the fastest candidate and, where some could not be timed undisturbed, why the choice is in doubt.

    Times of different disturbances cannot be compared: where none was settled, the best prediction is taken.
    """
    measured = [c for c in timed if c.status != DOUBTFUL]
    doubtful = [c for c in timed if c.status == DOUBTFUL]
    if not doubtful:
        return min(measured, key=lambda c: (c.measured_s, c.id)), ""
    whole = [c for c in measured if c.status == "measured"]
    best = min(whole, key=lambda c: (c.measured_s, c.id)) if whole else doubtful[0]
    how = "ranked by the times of the others" if whole else "ranked by prediction"
    number = "its time is" if len(timed) == 1 else f"{len(doubtful)} of {len(timed)} times are"
    return best, f"{number} doubtful, {how}: {(doubtful[0].reason or '').rstrip('.')}"


def automatic(shop: Workshop, candidates: Sequence[Candidate]) -> CompiledKernel:
    """Time the candidates the model cannot tell from its favourite; none where it is sure of that one.

    The others are tried only where none of those survives. A candidate that was not tried stays ``constructed``.
    """
    from roller.construction.worth_timing import worth_timing

    chosen = shop.first or worth_timing(candidates, shop.spec)
    if len(chosen) == 1:
        return first_correct(shop, candidates, chosen[0])
    wanted = [candidates[n] for n in chosen]
    rest = [c for c in candidates if c not in wanted]
    try:
        kernel = fastest(shop, wanted)
    except NoCandidateError:
        if not rest:
            raise
        return fastest(shop, candidates)
    tried = {c.id: c for c in kernel.candidates}
    return CompiledKernel(kernel.artifact, tuple(tried.get(c.id, c) for c in candidates))


def first_correct(shop: Workshop, candidates: Sequence[Candidate], first: int = 0) -> CompiledKernel:
    """Return the best prediction that builds and is correct; nothing is timed, and no clock decides anything.

    ``first`` is the position of the one that is tried before the others.
    """
    outcome = list(candidates)
    for n in sorted(range(len(candidates)), key=lambda n: (n != first, n)):
        c = candidates[n]
        records, artifacts = try_all(shop, [c], timed=False)
        outcome[n] = with_record(c, records[c.id])
        if outcome[n].status == "checked":
            return CompiledKernel(finished(artifacts[c.id], outcome[n]), tuple(outcome))
    raise none_survived(shop.expression, shop.spec, outcome)


def first_lowered(
    expression: TensorExpr,
    spec: DeviceSpec,
    candidates: Sequence[Candidate],
    lower: Callable[[Candidate], KernelArtifact],
    prove: Callable[[Candidate, KernelArtifact], tuple[KernelArtifact, Verdict]] | None = None,
) -> CompiledKernel:
    """Return the best prediction that lowers, for a device that is not here; those before it keep their reasons."""
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
        return CompiledKernel(finished(artifact, c), tuple(outcome), reachable=False)
    raise none_survived(expression, spec, outcome)


def try_all(
    shop: Workshop,
    candidates: Sequence[Candidate],
    timed: bool = True,
    known: Mapping[str, KernelArtifact] | None = None,
) -> tuple[dict[str, Record], dict[str, KernelArtifact]]:
    """Make and judge candidates."""
    from roller.runtime.build_pool import build_all, build_here

    jobs = {c.id: c for c in candidates}
    level = logging.INFO if shop.build is None else logging.DEBUG  # those of a whole model are told of together
    _LOG.log(level, "%s: building %s", shop.expression.name, counted(len(jobs), "candidate"))
    if shop.build is not None:
        built = dict(shop.build(jobs, timed))
    elif timed:
        built = build_all(jobs, shop.make, reuse=True) if len(jobs) > 1 else build_here(jobs, shop.make)
    else:  # a crash of the compiler is a reason to take the next one, a slow machine is none
        built = build_all(jobs, shop.make, timeout_s=float("inf"))
    artifacts = dict(known or {}) | {i: r.value for i, r in built.items() if r.value is not None}
    records = {i: r.record for i, r in built.items()}
    doing = "checking and timing" if timed else "checking"
    _LOG.log(level, "%s: %s %s", shop.expression.name, doing, counted(len(artifacts), "candidate"))
    records.update(shop.judge(artifacts, timed))
    return records, artifacts


def finished(artifact: KernelArtifact, candidate: Candidate, doubt: str = "", tied: str = "") -> KernelArtifact:
    """Return the artifact with what was predicted and measured of its candidate.

    ``doubt`` and ``tied`` say why its time may be wrong, and why it has no rank among those that were measured.
    """
    build = {k: v for k, v in artifact.build.items() if k not in (DOUBT, TIED)}
    if doubt or candidate.status == DOUBTFUL:
        build[DOUBT] = doubt or candidate.reason
    elif tied:
        build[TIED] = tied
    return replace(artifact, estimate=candidate.estimate.to_dict(), measured_s=candidate.measured_s, build=build)


def none_survived(expression: TensorExpr, spec: DeviceSpec, outcome: Sequence[Candidate]) -> NoCandidateError:
    """Return the error that groups the reasons of all candidates."""
    from roller.runtime.records import Record, grouped_reasons

    records = [Record(c.id, c.status, c.reason or "") for c in outcome]
    alike = len(records) > 1 and len({(r.status, r.reason) for r in records}) == 1  # so would others
    remedy = "" if alike else " Try a larger top_k, or report the expression."
    return NoCandidateError(
        f"{expression.name} on {spec.name}: none of {len(records)} candidates survived: "
        f"{grouped_reasons(records).rstrip('.')}.{remedy}",
        tuple(c.program.digest for c in outcome if c.status == "wrong"),
    )


def with_record(candidate: Candidate, record: Record) -> Candidate:
    """Return the candidate with what became of it."""
    return replace(candidate, status=record.status, measured_s=record.measured_s, reason=record.reason or None)
