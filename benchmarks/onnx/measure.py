"""One model at one batch: compiled cold and warm, compared, raced with ONNX Runtime, weighed; all in one record."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

import roller
from benchmarks.cpu.environment import foreign_s, load_average
from benchmarks.cpu.race import Pace, race, settle
from benchmarks.models import build, random_feeds
from benchmarks.onnx.child import onnx_session

ROLLER, PEER = "roller", "onnxruntime"
#: Seconds a child may take: cold compiles of the largest models on a busy machine.
_CHILD_S = 1800.0


@dataclass(frozen=True)
class Settings:
    """What a record depends on besides its model; ``work`` holds models, caches and what was compiled."""

    threads: int
    pace: Pace = field(default_factory=Pace)
    work: Path = Path("build/onnx")


@dataclass
class Record:
    """One model at one batch; ``reason`` says why it failed and is empty where it ran.

    ``error`` is the largest difference of an output's element, relative to that element or to the root of the output's
    mean square, whichever is larger. ``peak_bytes`` is resident memory of a process that loads the model and runs it.
    ``cold_processor_s`` is what processes of the cold compile computed, all processors together.
    ``foreign`` is how many processors others kept busy during the race: above a few percent, distrust the ratio.
    """

    id: str
    model: str
    batch: int
    load: float = 0.0
    error: float | None = None
    seconds: dict[str, float] = field(default_factory=dict)
    speed: dict[str, float] = field(default_factory=dict)
    peak_bytes: dict[str, int] = field(default_factory=dict)
    cold_s: float | None = None
    warm_s: float | None = None
    cold_processor_s: float | None = None
    kernels: int = 0
    steps: int = 0
    restless: int = 0
    foreign: float = 0.0
    reason: str = ""

    @property
    def ratio(self) -> float | None:
        """How many times as fast as ONNX Runtime; ``None`` where it was not timed."""
        return self.speed.get("median")

    @property
    def memory(self) -> float | None:
        """Peak of memory over ONNX Runtime's."""
        return self.peak_bytes[ROLLER] / self.peak_bytes[PEER] if len(self.peak_bytes) == 2 else None


def measure(model: str, batch: int, settings: Settings, sizes: dict[str, Any] | None = None) -> Record:
    """Measure one model; a failure is a record with a reason.

    Parameters
    ----------
    model, batch, sizes
        As for :func:`benchmarks.models.build`.
    """
    record = Record(f"{model}-b{batch}", model, batch, load=load_average())
    path = build(model, settings.work / "models", batch, **(sizes or {}))
    place = settings.work / record.id
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir(parents=True)
    feeds = random_feeds(path)
    np.savez(place / "feeds.npz", **feeds)
    try:
        _compile(path, place, record)
        _weigh(path, place, settings, record)
        _race(path, place, feeds, settings, record)
    except (roller.RollerError, ChildError) as err:
        record.reason = f"{type(err).__name__}: {err}"
    finally:
        shutil.rmtree(place, ignore_errors=True)
    return record


class ChildError(Exception):
    """A process ended badly: the last lines it wrote."""


def _child(arguments: Sequence[str], **environ: str) -> dict[str, Any]:
    command = [sys.executable, "-m", "benchmarks.onnx.child", *arguments]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=_CHILD_S, check=False, env={**os.environ, **environ}
    )
    if done.returncode:
        raise ChildError(" ".join(done.stderr.strip().splitlines()[-3:]) or f"exit code {done.returncode}")
    found: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return found


def _compile(path: Path, place: Path, record: Record) -> None:
    """Compile into an empty cache, and again from the full one: each in a process of its own."""
    cache = str(place / "cache")
    cold = _child(["compile", str(path), str(place / "saved")], ROLLER_CACHE_DIR=cache)
    warm = _child(["compile", str(path)], ROLLER_CACHE_DIR=cache)
    record.cold_s, record.warm_s, record.cold_processor_s = cold["seconds"], warm["seconds"], cold["processor_s"]
    record.kernels, record.steps = cold["kernels"], cold["steps"]


def _weigh(path: Path, place: Path, settings: Settings, record: Record) -> None:
    for runtime, what in ((ROLLER, place / "saved"), (PEER, path)):
        found = _child(["peak", runtime, str(what), str(place / "feeds.npz"), str(settings.threads)])
        record.peak_bytes[runtime] = found["bytes"]


def _race(path: Path, place: Path, feeds: dict[str, np.ndarray], settings: Settings, record: Record) -> None:
    """Compare the results, then time both in turn; both write into arrays that are there already."""
    session, peer = roller.load_model(place / "saved"), onnx_session(path, settings.threads)
    expected = peer.run(None, feeds)
    out = [np.empty_like(a) for a in expected]
    made = session.run(None, feeds)
    record.error = max((difference(a, b) for a, b in zip(made, expected, strict=True)), default=0.0)
    binding = peer.io_binding()
    for name, array in feeds.items():
        binding.bind_cpu_input(name, array)
    for described, array in zip(peer.get_outputs(), [np.empty_like(a) for a in expected], strict=True):
        binding.bind_output(described.name, "cpu", 0, array.dtype, array.shape, array.ctypes.data)
        out.append(array)  # the binding holds its address only
    mine = tuple(out[: len(expected)])
    contenders = {
        ROLLER: lambda: session.run(feeds, out=mine[0] if len(mine) == 1 else mine),
        PEER: lambda: peer.run_with_iobinding(binding),
    }
    settle(settings.pace.settle_s)
    others_s, start = foreign_s(), time.perf_counter()
    outcome = race(contenders, settings.pace)
    record.foreign = max(0.0, foreign_s() - others_s) / (time.perf_counter() - start)
    record.seconds = {n: outcome.median_s(n) for n in outcome.times}
    record.speed, record.restless = asdict(outcome.ratio(PEER, ROLLER)), outcome.restless


def difference(found: np.ndarray, expected: np.ndarray) -> float:
    """Return the largest difference relative to the element, or to the root of the mean square where that is larger.

    Examples
    --------
    >>> difference(np.array([1.0, 2.0]), np.array([1.0, 2.2])) < 0.1
    True
    """
    a, b = np.asarray(found, np.float64), np.asarray(expected, np.float64)
    if a.shape != b.shape or not np.isfinite(a).all():
        return float("inf")
    scale = np.maximum(np.abs(b), np.sqrt(np.mean(b * b))) if b.size else b
    return float(np.max(np.abs(a - b) / np.maximum(scale, 1e-30), initial=0.0))
