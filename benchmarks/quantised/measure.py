"""One variant of a model: compiled, compared with ONNX Runtime and its float32 model, raced in blocks of calls."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

import roller
from benchmarks.cpu.environment import foreign_s
from benchmarks.cpu.race import Pace, race, settle
from benchmarks.models import build, random_feeds
from benchmarks.onnx.child import onnx_session
from benchmarks.onnx.measure import PEER, ROLLER, difference
from benchmarks.quantised.variants import variant

#: Blocks of calls per runtime, seconds each, and the longest pause between two of them: idle threads of one runtime
#: disturb the other where they alternate call by call.
PACE = Pace(rounds=9, turn_s=0.3, settle_s=2.0)
#: Fields of sizes of quick runs.
QUICK: dict[str, dict[str, Any]] = {"bert_base": {"layers": 2}, "bert_large": {"layers": 2}}


@dataclass
class Record:
    """One variant at one batch; ``reason`` says why it failed and is empty where it ran.

    ``error`` and ``peer_error`` are the largest differences of roller's and ONNX Runtime's outputs from the float32
    model's, ``apart`` that between the two, all relative to the element or to the root of the output's mean square.
    ``differing`` is the share of elements of the outputs that are not the same number.
    """

    id: str
    model: str
    variant: str
    batch: int
    apart: float = 0.0
    error: float = 0.0
    peer_error: float = 0.0
    differing: float = 0.0
    seconds: dict[str, float] = field(default_factory=dict)
    speed: dict[str, float] = field(default_factory=dict)
    of_float32: float | None = None
    compile_s: float = 0.0
    kernels: int = 0
    steps: int = 0
    foreign: float = 0.0
    reason: str = ""


def measure(model: str, kind: str, batch: int, threads: int, pace: Pace = PACE, *, work: Path, quick: bool = False,
            **told: Any) -> Record:  # fmt: skip
    """Measure one variant; a failure is a record with a reason.

    Parameters
    ----------
    model, batch
        As for :func:`benchmarks.models.build`.
    kind
        One of :data:`benchmarks.quantised.variants.VARIANTS`.
    threads
        Of both runtimes.
    work
        Folder of models.
    quick
        Whether models are of the sizes of :data:`QUICK`.
    **told
        As for :func:`roller.compile_model`.
    """
    source = build(model, work, batch, **(QUICK.get(model, {}) if quick else {}))
    path = variant(source, kind)
    record = Record(f"{path.stem}", model, kind, batch)
    feeds = random_feeds(path)
    before = time.perf_counter()
    try:
        session = roller.compile_model(path, threads=threads, progress=False, **told)
    except roller.RollerError as err:
        record.reason = f"{type(err).__name__}: {err}"
        return record
    record.compile_s = time.perf_counter() - before
    record.kernels, record.steps = len(session.kernels), len(session.plan.program.steps)
    peer = onnx_session(path, threads)
    made, expected = session.run(None, feeds), peer.run(None, feeds)
    record.apart = max(difference(a, b) for a, b in zip(made, expected, strict=True))
    differing = sum(int(np.count_nonzero(a != b)) for a, b in zip(made, expected, strict=True))
    record.differing = differing / sum(a.size for a in made)
    wide = onnx_session(source, threads).run(None, random_feeds(source))
    record.error = max(difference(a, b) for a, b in zip(made, wide, strict=True))
    record.peer_error = max(difference(a, b) for a, b in zip(expected, wide, strict=True))
    contenders = {ROLLER: lambda: session.run(None, feeds), PEER: lambda: peer.run(None, feeds)}
    settle(pace.settle_s)
    others_s, start = foreign_s(), time.perf_counter()
    outcome = race(contenders, pace)
    record.foreign = max(0.0, foreign_s() - others_s) / (time.perf_counter() - start)
    record.seconds = {n: outcome.median_s(n) for n in outcome.times}
    record.speed = asdict(outcome.ratio(PEER, ROLLER))
    return record
