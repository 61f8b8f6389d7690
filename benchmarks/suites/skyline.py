"""Skyline's fit (UIST 2020): time and memory of a step over its batch by a line through three batches.

The line is the one that the live page and a profile's report draw; each other batch is forecast on its own. On this
processor both the three batches and the others are measured.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from benchmarks.common import HERE
from benchmarks.suites.suite import Request, Section, Suite
from benchmarks.suites.values import MEASURED, PREDICTED, PUBLISHED, Results, Value
from roller.errors import RollerError
from roller.insight.step_profile.batch_curve import BatchLine, BatchPoint, fit_batch_line

EXAMPLES = HERE.parent / "examples" / "training"
#: The published models -> the batches in the code from which the published lines start.
STARTS: Mapping[str, tuple[int, ...]] = {"resnet50": (8, 16, 32), "transformer": (32, 64, 80), "gnmt": (32, 64, 80)}
#: Model and start of a quick run.
QUICK = ("gnmt", 64)
#: Batches on this processor: those of the line, and others.
HERE_LINE, HERE_OTHERS, HERE_QUICK = (2, 4, 6), (1, 8, 12, 16), (1, 8)
#: Other batches that an error is of: the six nearest ones, as many as were published.
COUNTED = 6
#: Errors of throughput and of memory, mean and largest, of all three models on an RTX 2070.
PUBLISHED_ERRORS = {
    ("throughput", "mean error"): 0.037, ("throughput", "largest error"): 0.10,
    ("memory", "mean error"): 0.0019, ("memory", "largest error"): 0.011,
}  # fmt: skip
SKYLINE, FORECAST, STEP = "Skyline", "forecast", "step"


def predict(request: Request) -> Iterator[Value]:
    """Yield forecasts of batches, the lines beside them, their errors, and the largest batch of each model."""
    from roller.insight.step_profile.profiling import profile

    asked = {QUICK[0]: QUICK[1:]} if request.quick else STARTS
    for model, starts in asked.items():
        if not request.matches(model):
            continue
        for start in starts:
            curve = profile(EXAMPLES / f"{model}.py", request.spec, batch=start).batch_curve()
            name = f"line from {start}"
            if start == starts[0]:
                yield from _points(model, FORECAST, curve.computed, PREDICTED)
                note = "" if curve.largest else "not even one sample fits, or the device has no limit"
                yield Value(model, "largest batch", FORECAST, curve.largest or None, "", PREDICTED, note=note)
            if curve.line is None:
                yield Value(model, "throughput, mean error", name, None, "", PREDICTED, note=curve.notes[0])
                continue
            yield from _lines(model, name, curve.line, curve.computed, start, PREDICTED)
    yield from _published()


def measure(request: Request) -> Iterator[Value]:
    """Yield measured steps of a few batches, the line through three of them, and its errors at the others."""
    from roller.insight.measured_step import measure_step

    for model in (QUICK[0],) if request.quick else STARTS:
        if not request.matches(model):
            continue
        points = list[BatchPoint]()
        for batch in sorted((*HERE_LINE, *(HERE_QUICK if request.quick else HERE_OTHERS))):
            try:
                found = measure_step(EXAMPLES / f"{model}.py", batch=batch, budget_s=3 if request.quick else 20)
            except RollerError as error:
                yield Value(f"{model}, batch {batch}", "time", STEP, None, "s", MEASURED, note=str(error))
                continue
            took_s, peak, case = found.iteration_s, found.process_peak_bytes, f"{model}, batch {batch}"
            if not found.is_stable:
                reason = " ".join(found.notes) or "unstable"
                yield Value(case, "time", STEP, None, "s", MEASURED, note=reason)
                continue
            points.append(BatchPoint(batch, took_s, batch / took_s, peak, peak, fits=True))
            yield Value(case, "time", STEP, took_s, "s", MEASURED, found.lower_s, found.upper_s)
            yield Value(case, "memory", STEP, peak, "B", MEASURED)
        chosen = [p for p in points if p.batch in HERE_LINE]
        if len(chosen) == len(HERE_LINE):
            yield from _lines(
                model, f"line from {HERE_LINE[0]}", fit_batch_line(chosen), points, HERE_LINE[0], MEASURED
            )
    yield from _published()


def _points(model: str, series: str, points: Sequence[BatchPoint], kind: str) -> Iterator[Value]:
    for p in points:
        if p.fits:
            yield Value(f"{model}, batch {p.batch}", "time", series, p.iteration_s, "s", kind)
            yield Value(f"{model}, batch {p.batch}", "memory", series, p.allocated_bytes, "B", kind)


def _lines(
    model: str, series: str, line: BatchLine, points: Sequence[BatchPoint], start: int, kind: str
) -> Iterator[Value]:
    """Yield the line at every batch, and its errors at the six nearest other ones."""
    through = f"Through {', '.join(map(str, line.batches))}."
    fitting = [p for p in points if p.fits]
    for p in fitting:
        case = f"{model}, batch {p.batch}"
        yield Value(case, "time", series, line.iteration_s(p.batch), "s", PREDICTED, note=through)
        yield Value(case, "memory", series, line.allocated_bytes(p.batch), "B", PREDICTED, note=through)
    others = sorted(
        (p for p in fitting if p.batch not in line.batches), key=lambda p: abs(math.log(p.batch / start))
    )[:COUNTED]  # fmt: skip
    note = f"At {', '.join(str(p.batch) for p in sorted(others))}."
    speeds = [abs(line.throughput(p.batch) / p.throughput - 1) for p in others]
    sizes = [abs(line.allocated_bytes(p.batch) / p.allocated_bytes - 1) for p in others]
    for quantity, errors in (("throughput", speeds), ("memory", sizes)):
        for name, pick in (("mean error", statistics.fmean), ("largest error", max)):
            yield Value(model, f"{quantity}, {name}", series, pick(errors) if errors else None, "", kind, note=note)


def _published() -> Iterator[Value]:
    for (quantity, name), error in PUBLISHED_ERRORS.items():
        yield Value("all three", f"{quantity}, {name}", SKYLINE, error, "", PUBLISHED, note="six batches each")


def sections(results: Results) -> Iterator[Section]:
    """Yield the errors of the lines, the largest batches, and every batch beside the first line."""
    whose = dict.fromkeys((v.case, v.series) for v in results.values if "error" in v.quantity)
    columns = [f"{quantity}, {name}" for quantity, name in PUBLISHED_ERRORS]
    found = {(v.case, v.series, v.quantity): v for v in results.values}
    rows = []
    for case, series in whose:
        values = [found.get((case, series, column)) for column in columns]
        cells = ["-" if v is None or v.value is None else f"{100 * v.value:.2f} %" for v in values]
        rows.append((case, series, *cells, next((v.note for v in values if v is not None), "")))
    yield "Errors of the line", ("model", "line", *columns, ""), rows
    largest = [v for v in results.values if v.quantity == "largest batch"]
    if largest:
        yield "Largest batches, predicted", ("model", "batch"), [(v.case, f"{v.value or v.note}") for v in largest]
    for model, series in _curves(results):
        names = [series, *(s for m, s in whose if m == model)]
        batches = dict.fromkeys(v.case for v in results.values if v.case.startswith(f"{model}, "))
        yield (
            f"{model}: {series} and lines, ms, and MiB",
            ("batch", *(f"{n}, {unit}" for unit in ("ms", "MiB") for n in names)),
            [
                (
                    case.rpartition(" ")[2],
                    *(_cell(found.get((case, n, "time")), 1e3) for n in names),
                    *(_cell(found.get((case, n, "memory")), 2**-20) for n in names),
                )
                for case in batches
            ],
        )  # fmt: skip


def _cell(value: Value | None, scale: float) -> str:
    return "-" if value is None or value.value is None else f"{scale * value.value:.5g}"


def _curves(results: Results) -> dict[tuple[str, str], None]:
    return dict.fromkeys(
        (v.case.partition(",")[0], v.series)
        for v in results.values
        if v.series in (FORECAST, STEP) and v.quantity == "time"
    )


def draw(results: Results, figure: Any) -> None:
    """Draw throughput over the batch: every batch that was forecast or measured, and the lines."""
    curves = list(_curves(results))
    panels = figure.subplots(1, len(curves), squeeze=False)[0]
    for (model, series), axes in zip(curves, panels, strict=True):
        lines: dict[str, list[tuple[int, float]]] = {}
        for v in results.values:
            if v.quantity == "time" and v.case.startswith(f"{model}, ") and v.value:
                batch = int(v.case.rpartition(" ")[2])
                lines.setdefault(v.series, []).append((batch, batch / v.value))
        for name, points in lines.items():
            own = name == series
            kind = f", {MEASURED if series == STEP else PREDICTED}" if own else ""
            axes.plot(*zip(*sorted(points), strict=True), marker="o" if own else "", markersize=4,
                      linestyle="none" if own else "-", linewidth=1, label=f"{name}{kind}")  # fmt: skip
        axes.set_xscale("log", base=2)
        axes.xaxis.set_major_formatter("{x:g}")
        axes.tick_params(axis="x", labelsize=8)
        axes.set(xlabel="batch", ylabel="samples/s" if axes is panels[0] else "")
        axes.set_title(f"{model}, {results.head['device']}", fontsize=9)
        axes.legend(fontsize=7)


CAVEAT = (
    "The line is the one that a profile draws; the batches beside it are forecast by the same model, so that an error "
    "says how far the line is from the forecast. Skyline's were of measured steps on an RTX 2070."
)
SUITE = Suite(
    "skyline", "Time and memory over the batch by a line (Skyline, UIST 2020)", "PyTorch, this processor alone",
    predict, measure, sections, draw, CAVEAT,
)  # fmt: skip
