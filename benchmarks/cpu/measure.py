"""One operator: choose the batch, compile, compare the results, race; everything in one record."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

import roller
from benchmarks.cpu.cases import Case, largest_batch, weights
from benchmarks.cpu.environment import foreign_s, load_average
from benchmarks.cpu.peers import Peer, Prepared, Skipped
from benchmarks.cpu.race import Pace, Race, race, settle, warm_s
from roller.compiler import pipeline
from roller.runtime.random_inputs import random_inputs

ROLLER = "roller"
#: Seed of the inputs of the race; candidates were checked with another.
_SEED = 20220711
#: A peer's result may differ from Roller's checked one by so much of the largest element: sums in another order.
_AGREE = 1e-3


@dataclass(frozen=True)
class Settings:
    """What a record depends on besides the operator."""

    threads: int
    top_k: int = 10
    pace: Pace = field(default_factory=Pace)
    regret: bool = False
    regret_k: int = 50
    constant_weights: bool = False


@dataclass
class Record:
    """One operator; ``reason`` says why it failed and is empty where it is correct.

    ``foreign`` is how many processors others kept busy during the race: above a few percent, distrust the ratios.
    """

    id: str
    set: str
    kind: str
    batch: int | None = None
    expression: str = ""
    load: float = 0.0
    seconds: dict[str, float] = field(default_factory=dict)
    ratios: dict[str, dict[str, float]] = field(default_factory=dict)
    skipped: dict[str, str] = field(default_factory=dict)
    best_peer: str = ""
    restless: int = 0
    foreign: float = 0.0
    predicted_s: float | None = None
    compile_s: float | None = None
    top_k_s: float | None = None
    regret: float | None = None
    regret_of: int = 0
    program: str = ""
    reason: str = ""

    @property
    def ratio(self) -> float | None:
        """How many times as fast as the best peer; ``None`` where there is none."""
        return self.ratios[self.best_peer]["median"] if self.best_peer else None


def measure(case: Case, peers: Sequence[Peer], settings: Settings) -> Record:
    """Measure one operator; a failure of Roller is a record with a reason."""
    record = Record(case.id, case.set, case.kind, load=load_average())
    prepared: dict[int | None, dict[str, Prepared]] = {}

    def best_peer_s(batch: int | None) -> float:
        prepared.clear()  # one batch's arrays at a time
        prepared[batch] = _prepare(case, batch, peers, record.skipped)
        times = []
        for one in prepared[batch].values():
            settle(settings.pace.settle_s)
            times.append(warm_s(one.call))
        return min(times, default=float("inf"))

    record.batch = largest_batch(case.batches, best_peer_s)
    expr = case.expression(record.batch)
    record.expression = str(expr)
    contenders = prepared.get(record.batch) or _prepare(case, record.batch, peers, record.skipped)
    try:
        mine = _compile(case, expr, record, settings)
    except roller.RollerError as err:
        record.reason = f"{type(err).__name__}: {err}"
        return record
    _compare(contenders, mine, record)
    others_s, start = foreign_s(), time.perf_counter()
    outcome = race({n: c.call for n, c in ((ROLLER, mine), *contenders.items())}, settings.pace)
    record.foreign = max(0.0, foreign_s() - others_s) / (time.perf_counter() - start)
    return _with_times(record, outcome, [*contenders])


def _prepare(case: Case, batch: int | None, peers: Sequence[Peer], skipped: dict[str, str]) -> dict[str, Prepared]:
    expr = case.expression(batch)
    arrays, shape = random_inputs(expr, _SEED), expr.output_tensors[0].shape
    found = {}
    for peer in peers:
        try:
            found[peer.name] = peer.prepare(case.row, arrays, shape)
        except Skipped as reason:
            skipped[peer.name] = str(reason)
    return found


def _compile(case: Case, expr: roller.TensorExpr, record: Record, settings: Settings) -> Prepared:
    """Compile the best candidate for its time alone, then the best ``top_k`` for the kernel that races."""
    arrays = random_inputs(expr, _SEED)
    fixed = weights(case.row, len(arrays)) if settings.constant_weights else range(0)
    constants = {expr.inputs[n].name: arrays[n] for n in fixed}
    options = roller.ConstructOptions(constants=tuple(constants))
    settle(settings.pace.settle_s)
    start = time.perf_counter()
    first = roller.construct(expr, device="cpu", top_k=1, options=options)[0]
    pipeline.lower(first.program, expr, roller.hardware.load_spec("cpu"))
    record.compile_s = time.perf_counter() - start
    start = time.perf_counter()
    kernel = roller.compile(expr, device="cpu", top_k=settings.top_k, constants=constants, cache=False)
    record.top_k_s = time.perf_counter() - start
    record.predicted_s, record.program = kernel.estimate.seconds, str(kernel.program)
    many = kernel
    if settings.regret and settings.regret_k > settings.top_k:
        many = roller.compile(expr, device="cpu", top_k=settings.regret_k, constants=constants, cache=False)
    record.regret, record.regret_of = regret(many.candidates)
    run, out = kernel.launcher.bind(*(a for n, a in enumerate(arrays) if n not in fixed))
    return Prepared(run, lambda: out)


def regret(candidates: Sequence[Any]) -> tuple[float | None, int]:
    """Return the first candidate's time over the best one's, and how many were timed; ``None`` where it failed."""
    timed = [c.measured_s for c in candidates if c.measured_s is not None]
    if not timed or candidates[0].measured_s is None:
        return None, len(timed)
    return candidates[0].measured_s / min(timed), len(timed)


def _compare(contenders: dict[str, Prepared], mine: Prepared, record: Record) -> None:
    """Drop the peers that compute something else than Roller's kernel, which was checked when it was compiled."""
    mine.call()
    expected = mine.result().astype(np.float64)
    scale = max(float(np.abs(expected).max()), 1e-30)
    for name in list(contenders):
        contenders[name].call()
        found = contenders[name].result()
        if found.shape != expected.shape or not np.abs(found - expected).max() <= _AGREE * scale:
            record.skipped[name] = (
                f"computes something else: {found.shape}, or off by more than {_AGREE} of the largest"
            )
            del contenders[name]


def _with_times(record: Record, outcome: Race, names: list[str]) -> Record:
    record.seconds = {n: outcome.median_s(n) for n in outcome.times}
    record.ratios = {n: asdict(outcome.ratio(n, ROLLER)) for n in names}
    record.best_peer = outcome.best(names) if names else ""
    record.restless = outcome.restless
    return record
