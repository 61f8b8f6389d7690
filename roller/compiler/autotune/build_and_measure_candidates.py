"""Builds and measures the candidates of one expression, and records the results."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from roller.artifact import DOUBT, TIED, KernelArtifact
from roller.errors import counted
from roller.expr import TensorExpr
from roller.hardware import DeviceSpec

if TYPE_CHECKING:
    from roller.construction.constructor import Candidate
    from roller.runtime.build_pool import BuildResult
    from roller.runtime.candidate_records import Record
    from roller.templates.common.options import ConstructOptions

_LOG = logging.getLogger(__name__)

#: Status of a candidate whose timing was disturbed in every attempt.
DOUBTFUL = "doubtful"


@dataclass(frozen=True)
class TuningContext:
    """Functions to build and measure the candidates of one expression."""

    expression: TensorExpr
    spec: DeviceSpec
    options: ConstructOptions
    make: Callable[[Candidate], KernelArtifact]  #: Lowers and builds one candidate in a worker process
    #: Checks built artifacts by candidate id, times them if its second argument is true, and returns their records.
    judge: Callable[[Mapping[str, KernelArtifact], bool], Mapping[str, Record]]
    #: Builds candidates by id, given whether they will be timed; ``None`` builds in worker processes of this machine.
    build: Callable[[Mapping[str, Candidate], bool], Mapping[str, BuildResult[KernelArtifact]]] | None = None
    #: Positions that ``top_k="auto"`` times, the likeliest first, if more than predictions is known; empty means those
    #: of :func:`roller.construction.worth_timing.positions_of_candidates_to_time`.
    first: tuple[int, ...] = ()


def build_and_measure(
    shop: TuningContext,
    candidates: Sequence[Candidate],
    timed: bool = True,
    known: Mapping[str, KernelArtifact] | None = None,
) -> tuple[dict[str, Record], dict[str, KernelArtifact]]:
    """Build and measure candidates; return their records and their artifacts, both keyed by candidate id."""
    from roller.runtime.build_pool import build_all, build_all_without_fork

    jobs = {c.id: c for c in candidates}
    level = logging.INFO if shop.build is None else logging.DEBUG  # a whole model logs its candidates together
    _LOG.log(level, "%s: building %s", shop.expression.name, counted(len(jobs), "candidate"))
    if shop.build is not None:
        built = dict(shop.build(jobs, timed))
    elif timed:
        built = build_all(jobs, shop.make, reuse=True) if len(jobs) > 1 else build_all_without_fork(jobs, shop.make)
    else:  # a compiler crash rejects a candidate, a slow machine must not
        built = build_all(jobs, shop.make, timeout_s=float("inf"))
    artifacts = dict(known or {}) | {i: r.value for i, r in built.items() if r.value is not None}
    records = {i: r.record for i, r in built.items()}
    doing = "checking and timing" if timed else "checking"
    _LOG.log(level, "%s: %s %s", shop.expression.name, doing, counted(len(artifacts), "candidate"))
    records.update(shop.judge(artifacts, timed))
    return records, artifacts


def artifact_with_results(
    artifact: KernelArtifact, candidate: Candidate, doubt: str = "", tied: str = ""
) -> KernelArtifact:
    """Return the artifact with its candidate's estimate, time, and reasons for doubt or a tie."""
    build = {k: v for k, v in artifact.build.items() if k not in (DOUBT, TIED)}
    if doubt or candidate.status == DOUBTFUL:
        build[DOUBT] = doubt or candidate.reason
    elif tied:
        build[TIED] = tied
    return replace(artifact, estimate=candidate.estimate.to_dict(), measured_s=candidate.measured_s, build=build)


def candidate_with_record(candidate: Candidate, record: Record) -> Candidate:
    """Return the candidate with the status, time and reason from its record."""
    return replace(candidate, status=record.status, measured_s=record.measured_s, reason=record.reason or None)
