"""Whole networks: inference measured on this processor beside ONNX Runtime, predicted for any device.

Predicted is the sum over the kernels of a model, fused as ``roller.compile_model`` fuses them, beside a library's
program of each kernel. Measured is what ``benchmarks.onnx`` measures.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.gpu.statistic import geometric_mean
from benchmarks.suites.operator_sets import CAVEAT, LIBRARY, NEEDS, ROLLER, share
from benchmarks.suites.suite import Request, Section, Suite
from benchmarks.suites.values import MEASURED, PREDICTED, Results, Value
from roller.errors import RollerError

#: Networks of a quick run, at batch 1: those that compile in half a minute.
QUICK = ("light_shufflenet", "light_squeezenet")
#: Batches that are measured; predicted is the first.
BATCHES = (1, 8)


def names(request: Request) -> list[str]:
    """Return the models that are asked for.

    Raises
    ------
    RollerError
        onnx, which writes them, is not installed.
    """
    try:
        from benchmarks.models import MODELS
    except ImportError as error:
        raise RollerError(
            f"models: expected the package onnx, which writes the networks, got '{error}'. pip install 'roller[onnx]'"
        ) from error
    return [name for name in (QUICK if request.quick else MODELS) if request.matches(name)]


def predict(request: Request) -> Iterator[Value]:
    """Yield predicted times of one inference at batch 1: by Roller's kernels, and on a GPU by a library's."""
    from benchmarks.models import build

    for name in names(request):
        path = build(name, request.folder / "onnx" / "models", BATCHES[0])
        yield from _forecasts(name, path, request)


def _forecasts(name: str, path: Path, request: Request) -> Iterator[Value]:
    from roller.insight.onnx_models import forecast_onnx

    policies = {ROLLER: "roller", LIBRARY: "library"} if request.spec.kind == "gpu" else {ROLLER: "roller"}
    for series, policy in policies.items():
        try:
            found = forecast_onnx(path, request.spec, policy=policy)
        except RollerError as error:
            yield Value(name, "time", series, None, "s", PREDICTED, note=str(error))
            continue
        runs = sum(kernel.runs for kernel in found.kernels)
        note = f"{len(found.kernels)} kernels, {runs} runs"
        yield Value(name, "time", series, found.iteration_s, "s", PREDICTED, found.lower_s, found.upper_s, note)


def measure(request: Request) -> Iterator[Value]:
    """Yield measured times of Roller and ONNX Runtime in turn, of compiling, and peaks of memory."""
    from benchmarks.cpu.__main__ import QUICK as FEW_ROUNDS
    from benchmarks.cpu.__main__ import default_threads
    from benchmarks.cpu.environment import restart_with
    from benchmarks.cpu.race import Pace
    from benchmarks.models import build
    from benchmarks.onnx.measure import Settings
    from benchmarks.onnx.measure import measure as measure_model

    threads = default_threads()
    restart_with(threads, "benchmarks")
    work = request.folder / "onnx"
    settings = Settings(threads, FEW_ROUNDS if request.quick else Pace(), work)
    for name in names(request):
        for batch in BATCHES[:1] if request.quick else BATCHES:
            yield from values_of(measure_model(name, batch, settings))
        yield from _forecasts(f"{name}-b{BATCHES[0]}", build(name, work / "models", BATCHES[0]), request)


def values_of(record: Any) -> Iterator[Value]:
    """Yield the values of a record of ``benchmarks.onnx``."""
    if record.reason:
        yield Value(record.id, "time", ROLLER, None, "s", MEASURED, note=record.reason)
        return
    for name, seconds in record.seconds.items():
        yield Value(record.id, "time", _called(name), seconds, "s", MEASURED)
    speed, busy = record.speed, f"others kept {record.foreign:.2f} processors busy"
    yield Value(
        record.id, "speed-up", "ONNX Runtime", speed["median"], "", MEASURED, speed["low"], speed["high"], busy
    )  # fmt: skip
    yield Value(record.id, "compile time", "cold", record.cold_s, "s", MEASURED)
    yield Value(record.id, "compile time", "from the cache", record.warm_s, "s", MEASURED)
    for name, peak in record.peak_bytes.items():
        yield Value(record.id, "peak memory", _called(name), peak, "bytes", MEASURED)
    yield Value(record.id, "largest difference", "ONNX Runtime", record.error, "", MEASURED)


def _called(runtime: str) -> str:
    return ROLLER if runtime == "roller" else "ONNX Runtime"


def speed_ups(results: Results) -> dict[str, float]:
    """Return how many times as fast Roller is: measured against ONNX Runtime, or predicted against the library."""
    raced = results.of("speed-up")
    if raced:
        return {case: v.value or 0.0 for case, v in raced.items()}
    mine, library = (results.of("time", series, PREDICTED) for series in (ROLLER, LIBRARY))
    return {case: (library[case].value or 0.0) / (mine[case].value or 1.0) for case in mine if case in library}


def report(results: Results) -> Iterator[Section]:
    """Yield the times of each model, and the geometric mean of the speed-ups."""
    times, speeds = results.grouped(), speed_ups(results)
    compiled, memory = results.of("compile time", "cold"), results.of("peak memory", ROLLER)
    columns = ["model", *(f"{series}, {kind}, ms" for series, kind in times), "speed-up"]
    if compiled:
        columns += ["compiled in, s", "peak memory, MB"]
    rows = []
    for case in dict.fromkeys(v.case for v in results.values):
        cells = [_interval(found.get(case)) for found in times.values()]
        cells.append(f"{speeds[case]:.3f}" if case in speeds else "-")
        if compiled:
            cells += [_scaled(compiled.get(case), 1.0), _scaled(memory.get(case), 1e-6)]
        rows.append((case, *cells))
    yield "Inference of whole networks", columns, rows
    if speeds:
        values = list(speeds.values())
        ends = f"{min(values):.3f} to {max(values):.3f}"
        yield (
            "Speed-ups", ("models", "geometric mean", "from", "at least as fast"),
            [(str(len(values)), f"{geometric_mean(values):.3f}", ends, share(values))],
        )  # fmt: skip
    busy = [(v.case, v.note) for v in results.values if v.quantity == "speed-up" and v.note]
    if busy:
        yield "Beside other programs, which make any figure doubtful", ("model", "how many"), busy
    lacking = [(v.case, v.series, v.note) for v in results.values if v.value is None]
    if lacking:
        yield "Without a value", ("model", "series", "why"), lacking


def _interval(one: Value | None) -> str:
    if one is None:
        return "-"
    ends = "" if one.low is None or one.high is None else f" ({1e3 * one.low:.4g} to {1e3 * one.high:.4g})"
    return f"{_scaled(one, 1e3)}{ends}"


def _scaled(one: Value | None, factor: float) -> str:
    return "-" if one is None else f"{factor * (one.value or 0):.4g}"


def draw(results: Results, figure: Any) -> None:
    """Draw the times of all models as bars on a log axis, with intervals of predictions."""
    times = results.grouped()
    order: Sequence[str] = list(dict.fromkeys(case for found in times.values() for case in found))
    axes = figure.subplots()
    width = 0.8 / max(1, len(times))
    for n, ((series, kind), found) in enumerate(times.items()):
        shown = [(at, found[case]) for at, case in enumerate(order) if case in found]
        heights = [1e3 * (v.value or 0) for _, v in shown]
        below = [1e3 * ((v.value or 0) - (v.low if v.low is not None else v.value or 0)) for _, v in shown]
        above = [1e3 * ((v.high if v.high is not None else v.value or 0) - (v.value or 0)) for _, v in shown]
        axes.bar(
            [at + (n + 0.5) * width - 0.4 for at, _ in shown], heights, width, yerr=(below, above),
            error_kw={"elinewidth": 0.7}, label=f"{series}, {kind}",
        )  # fmt: skip
    axes.set_xticks(range(len(order)), order, rotation=45, ha="right", fontsize=8)
    axes.set(yscale="log", ylabel="milliseconds of an inference")
    axes.set_title(f"{results.head['device']}: whole networks, batch {BATCHES[0]} unless named", fontsize=9)
    axes.legend(fontsize=8)


SUITE = Suite(
    "models", "Whole networks (ONNX)", f"{NEEDS}, an hour (--quick: minutes)",
    predict, measure, report, draw, CAVEAT,
)  # fmt: skip
