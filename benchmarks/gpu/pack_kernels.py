"""Kernels for several cards of one architecture: constructed for each, built once where the programs are equal."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, cast

import roller
from benchmarks.gpu.cards import write_order
from benchmarks.gpu.variants import variants
from roller.cli.bundle import build_operators, bundle_header, lower_and_build_operator
from roller.compiler.autotune.prove_on_emulator import ProofBudget
from roller.compiler.pipeline import lower
from roller.errors import ArtifactError
from roller.expr import TensorExpr
from roller.hardware import DeviceSpec
from roller.runtime.bundle_format import OperatorEntry, write_bundle
from roller.templates.common.options import ConstructOptions
from roller.tile import RProgram
from roller_runtime.core.processor_features_and_count import usable_processors

#: A candidate: its id, its program, its estimate as plain data.
Candidate = tuple[str, RProgram, Mapping[str, Any]]
#: Candidates of a card in its order: its own id, the id in the bundle, the estimate.
Order = list[tuple[str, str, Mapping[str, Any]]]


@dataclass(frozen=True)
class Making:
    """How kernels are made.

    Parameters
    ----------
    specs
        The cards, of one architecture; kernels are lowered for the first.
    workers
        Processes at a time.
    binaries
        Whether kernels are built here.
    prove_s
        Seconds in which they are proved on the emulator.
    """

    specs: tuple[DeviceSpec, ...]
    workers: int | None = None
    binaries: bool = True
    prove_s: float = 0.0

    def share_s(self, count: int) -> float:
        """Return the seconds of proving of one of so many operators."""
        return self.prove_s * (self.workers or usable_processors()) / max(1, count)


@dataclass(frozen=True)
class _Job:
    """The kernels of one expression to construct or take over, to lower and to build."""

    id: str
    making: Making
    prove_s: float
    row: Mapping[str, Any] | None = None
    top_k: int = 0
    expression: TensorExpr | None = None
    given: tuple[tuple[Candidate, ...], ...] = ()


@dataclass(frozen=True)
class Made:
    """A bundle that was written.

    Parameters
    ----------
    checksum
        Of the bundle.
    operators
        Its entries.
    orders
        Candidates by operator, of every card.
    failed
        Why operators have no kernel, by id.
    """

    checksum: str
    operators: tuple[OperatorEntry, ...]
    orders: tuple[Mapping[str, Order], ...]
    failed: Mapping[str, str]

    @property
    def kernels(self) -> int:
        """How many kernels there are."""
        return sum(len(e.candidates) for e in self.operators)


def one_architecture(specs: Sequence[DeviceSpec]) -> None:
    """Refuse cards that do not run the same binaries.

    Raises
    ------
    ArtifactError
        Where there are several architectures, or one is no GPU.
    """
    for spec in specs:
        if spec.kind != "gpu":
            raise ArtifactError(f"--device: expected specs of GPUs, got '{spec.name}'. `roller devices` lists them.")
    archs = {(s.target["language"], s.target["arch"]) for s in specs}
    if len(archs) > 1:
        told = ", ".join(f"{s.name} ({s.target['arch']})" for s in specs)
        raise ArtifactError(f"--device: expected cards of one architecture, got {told}. Make a pack for each.")


def make_operators(folder: Path, rows: Sequence[tuple[Mapping[str, Any], int]], making: Making) -> Made:
    """Construct, lower and build the best candidates of rows of operators, and write them as one bundle.

    Parameters
    ----------
    folder
        Must not exist.
    rows
        As :func:`roller.ops.from_spec` takes them, with an ``id``; and how many candidates of each.
    making
        How.

    Raises
    ------
    BuildError
        Where nothing could be built.
    """
    share_s = making.share_s(len(rows))
    jobs = {str(row["id"]): _Job(str(row["id"]), making, share_s, row=row, top_k=top_k) for row, top_k in rows}
    return _written(folder, jobs, making, ConstructOptions(top_k=max((k for _, k in rows), default=1)))


def make_variants(folder: Path, making: Making, wanted: Callable[[str], bool], notes: list[str]) -> Made | None:
    """Lower and build every form of every template on small expressions; ``None`` where none is wanted.

    Parameters
    ----------
    folder
        Must not exist.
    making
        How.
    wanted
        Whether an expression is, by its id.
    notes
        Receives what was refused.
    """
    found = [[w for w in variants(spec) if wanted(w.id)] for spec in making.specs]
    for w in found[0]:
        notes += [f"{w.id} {name}: {reason.splitlines()[0]}" for name, reason in w.refused]
    share_s, jobs = making.share_s(len(found[0])), {}
    for same in zip(*found, strict=True):
        given = tuple(tuple((v.id, v.program, v.estimate.to_dict()) for v in w.variants) for w in same)
        if any(given):
            jobs[same[0].id] = _Job(same[0].id, making, share_s, expression=same[0].expression, given=given)
    if not jobs:
        return None
    made = _written(folder, jobs, making, ConstructOptions())
    notes += [f"{name}: {reason}" for name, reason in made.failed.items()]
    notes += [f"{e.id} {name}: {reason.splitlines()[0]}" for e in made.operators for name, reason in e.failed]
    return made


def _written(folder: Path, jobs: Mapping[str, _Job], making: Making, options: ConstructOptions) -> Made:
    built = build_operators(jobs, cast("Any", _built), making.workers)
    done = [cast("Any", r.value) for r in built.values() if r.value is not None]
    header = bundle_header(making.specs[0], options)
    manifest = write_bundle(folder, header, [(entry, data) for entry, data, _ in done])
    orders = []
    for n, spec in enumerate(making.specs):
        orders.append({entry.id: order[n] for entry, _, order in done})
        write_order(folder, spec.name, manifest["checksum"], spec.to_dict(), orders[-1])
    failed = {name: r.record.reason.splitlines()[0] for name, r in built.items() if r.value is None}
    return Made(manifest["checksum"], tuple(entry for entry, _, _ in done), tuple(orders), failed)


def _built(job: _Job) -> tuple[OperatorEntry, bytes, list[Order]]:
    """Construct, lower and build one operator for all cards."""
    specs = job.making.specs
    expression, given = job.expression, list(job.given)
    if job.row is not None:
        expression = roller.ops.from_spec(job.row)
        found = (roller.construct(expression, s.emitted, options=ConstructOptions(top_k=job.top_k)) for s in specs)
        given = [tuple((c.id, c.program, c.estimate.to_dict()) for c in candidates) for candidates in found]
    assert expression is not None
    shared, orders = merged(given)
    prove = ProofBudget(job.prove_s, partial(lower, spec=specs[0])) if job.prove_s else None
    flops = job.row.get("flops") if job.row is not None else None
    entry, data = lower_and_build_operator(job.id, expression, shared, specs[0], job.making.binaries, flops, prove)
    kept = set(entry.candidates)
    return entry, data, [[x for x in order if x[1] in kept] for order in orders]


def merged(given: Sequence[Sequence[Candidate]]) -> tuple[list[Candidate], list[Order]]:
    """Return every program once, the cards' best first, and the order of each card.

    Parameters
    ----------
    given
        Candidates of each card, best first.
    """
    shared: dict[RProgram, Candidate] = {}
    orders: list[Order] = []
    for rank in range(max(map(len, given), default=0)):
        for candidates in given:
            if rank < len(candidates):
                shared.setdefault(candidates[rank][1], candidates[rank])
    for candidates in given:
        orders.append([(own, shared[program][0], estimate) for own, program, estimate in candidates])
    return list(shared.values()), orders
