"""The training benchmark (TBD, 2018): throughput, utilisation and memory, measured here or predicted for a device.

The cases are those of ``benchmarks.training``: the first edition's models at batches of published figures. A full
prediction adds the batches of each model's sweep, so that the figure shows throughput against memory. Observations take
minutes more: ``python -m benchmarks.training`` has them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from benchmarks.suites.suite import Request, Section, Suite
from benchmarks.suites.values import MEASURED, PREDICTED, PUBLISHED, Results, Value
from roller.suite.registry import MODELS, models_of

TBD = "TBD"
#: Device of the published figures; a case, a quantity and a framework -> the figure. Shares are of 1.
PUBLISHED_DEVICE = "p4000"
FIGURES: Mapping[tuple[str, str], Mapping[str, float]] = {
    ("faster_rcnn, batch 1", "throughput"): {TBD: 2.3},
    ("faster_rcnn, batch 1", "compute utilisation"): {f"{TBD}, TensorFlow": 0.894, f"{TBD}, MXNet": 0.903},
    ("faster_rcnn, batch 1", "peak utilisation"): {f"{TBD}, TensorFlow": 0.589, f"{TBD}, MXNet": 0.709},
    ("seq2seq, batch 128", "throughput"): {f"{TBD}, TensorFlow": 365.0},
    ("seq2seq, batch 64", "throughput"): {f"{TBD}, MXNet": 229.0},
}  # fmt: skip
#: Models of a quick run that predicts, and of one that measures; seconds of a measuring run.
QUICK, QUICK_HERE = ("seq2seq", "faster_rcnn", "a3c"), ("a3c", "ncf", "seq2seq")
BUDGET_S, QUICK_BUDGET_S = 540.0, 30.0
OURS = "Roller"


def predict(request: Request) -> Iterator[Value]:
    """Yield predictions of published cases, of sweeps of the batch and of several devices; published figures beside."""
    from benchmarks.training import CASES, NETWORKS
    from roller.suite.prediction import predict as predictions

    for name, batches in CASES.items():
        if not request.matches(name) or (request.quick and name not in QUICK):
            continue
        chosen = batches if request.quick or None in batches else tuple(sorted({*batches, *MODELS[name].batches}))
        for one in predictions(models_of([name]), [request.spec], chosen):
            yield from _values_of(one.to_dict(), PREDICTED, request.spec.name)
    if not request.quick and request.matches(NETWORKS):
        yield from _clusters(request)


def _clusters(request: Request) -> Iterator[Value]:
    from benchmarks.training import NETWORKS
    from roller.suite.studies import cluster_study
    from roller.suite.tracing import trace_workload

    model = MODELS[NETWORKS]
    workload = model.workload()
    step = trace_workload(model.name, workload, device=request.spec)
    rows = list(cluster_study(model, workload.units_per_sample, step, request.spec))
    alone = rows[0].throughput
    for row in rows:
        times = row.throughput / alone if row.throughput and alone else None
        yield Value(f"{NETWORKS}, {row.cluster}", "times one device", OURS, times, "", PREDICTED, note=row.reason)


def measure(request: Request) -> Iterator[Value]:
    """Yield measurements of the models in their reduced sizes on this processor, by the quick rule of sampling."""
    from roller.suite.measuring import measure as measurements
    from roller.suite.sampling import QUICK as RULE

    asked = [name for name in (QUICK_HERE if request.quick else MODELS) if request.matches(name)]
    failures = list[Value]()
    budget_s = QUICK_BUDGET_S if request.quick else BUDGET_S
    found = measurements(
        models_of(asked) if asked else (), rule=RULE, budget_s=budget_s, seed=request.seed,
        failed=lambda name, error: failures.append(
            Value(name, "throughput", OURS, None, "", MEASURED, note=str(error))
        ),
    )  # fmt: skip
    for one in found:
        yield from _values_of(one.to_dict(), MEASURED, "")
    yield from failures


def _values_of(row: Mapping[str, Any], kind: str, device: str) -> Iterator[Value]:
    """Yield the values of a prediction or a measurement, and the published ones of the same case."""
    from benchmarks.training import feature_map_share

    case = f"{row['model']}, batch {row['batch']}"
    reason = "it does not fit" if not row["fits"] else "unstable" if row["throughput_per_s"] is None else ""
    yield Value(
        case, "throughput", OURS, row["throughput_per_s"], f"{row['unit']}/s", kind, row["throughput_lower_per_s"],
        row["throughput_upper_per_s"], reason,
    )  # fmt: skip
    if not reason:
        yield Value(case, "compute utilisation", OURS, row["compute_utilisation"], "", kind)
        yield Value(case, "peak utilisation", OURS, row["peak_share"], "", kind)
        yield Value(case, "memory", OURS, row["total_bytes"], "B", kind)
        yield Value(case, "feature maps, share of memory", OURS, feature_map_share(row), "", kind)
    if device == PUBLISHED_DEVICE:
        for (of, quantity), figures in FIGURES.items():
            unit = f"{row['unit']}/s" if quantity == "throughput" else ""
            for series, figure in figures.items() if of == case else ():
                yield Value(case, quantity, series, figure, unit, PUBLISHED)


def sections(results: Results) -> Iterator[Section]:
    """Yield a row for each model and batch, the published figures, and several devices."""
    ours = {(v.case, v.quantity): v for v in results.values if v.series == OURS}
    rows = []
    for v in (v for v in results.values if v.series == OURS and v.quantity == "throughput"):
        shares = [ours.get((v.case, q)) for q in ("compute utilisation", "peak utilisation",
                                                 "feature maps, share of memory")]  # fmt: skip
        memory = ours.get((v.case, "memory"))
        rows.append((
            v.case, v.note if v.value is None else f"{v.value:,.4g} {v.unit}",
            "-" if v.low is None or v.high is None else f"{v.low:,.4g} to {v.high:,.4g}",
            *("-" if s is None or s.value is None else f"{100 * s.value:.1f} %" for s in shares),
            "-" if memory is None or memory.value is None else f"{memory.value / 2**20:,.0f}",
        ))  # fmt: skip
    kinds = ", ".join(dict.fromkeys(v.kind for v in results.values if v.series == OURS))
    if rows:
        columns = ("model, batch", "throughput", "between", "active", "of peak", "feature maps", "memory, MiB")
        yield f"Training, {kinds}", columns, rows
    published = [
        (v.case, v.quantity, v.series, f"{v.value:.4g}",
         "-" if (own := ours.get((v.case, v.quantity))) is None or own.value is None else f"{own.value:.4g}")
        for v in results.values if v.kind == PUBLISHED
    ]  # fmt: skip
    if published:
        yield "Published figures beside", ("case", "what", "whose", "published", "predicted here"), published
    clusters = [(v.case, v.note if v.value is None else f"{v.value:.2f}")
                for v in results.values if v.quantity == "times one device"]  # fmt: skip
    if clusters:
        yield "Several devices, predicted", ("case", "throughput, times one device"), clusters


def draw(results: Results, figure: Any) -> None:
    """Draw the throughput of each model, relative to its best batch, against the memory of the process."""
    axes = figure.subplots()
    speeds, memory = results.of("throughput", OURS), results.of("memory", OURS)
    kind = next((v.kind for v in speeds.values()), PREDICTED)
    curves: dict[str, list[tuple[float, float, str]]] = {}
    for case, v in speeds.items():
        if case in memory:
            model, _, batch = case.partition(", batch ")
            curves.setdefault(model, []).append((memory[case].value / 2**30, v.value or 0.0, batch))  # type: ignore[operator]
    for model, points in curves.items():
        best = max(speed for _, speed, _ in points)
        xs, ys = [x for x, _, _ in sorted(points)], [100 * y / best for _, y, _ in sorted(points)]
        axes.plot(xs, ys, marker="o", markersize=4, linewidth=1, label=model)
        for x, y, batch in points:
            axes.annotate(batch, (x, 100 * y / best), fontsize=6, xytext=(3, -8), textcoords="offset points")
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter("{x:g}")
    axes.set(xlabel="peak memory of the process, GiB", ylabel="throughput, % of the model's best")
    axes.set_ylim(0, 110)
    axes.set_title(f"{results.head['device']}: throughput against memory, {kind}; batches at the marks", fontsize=9)
    axes.legend(fontsize=7, loc="center left", bbox_to_anchor=(1.0, 0.5))


CAVEAT = (
    "Published figures were measured with frameworks of 2017 and 2018; predictions assume current PyTorch libraries."
)
SUITE = Suite(
    "training", "Training of the benchmark's models (TBD, 2018)", "PyTorch, this processor alone, minutes", predict,
    measure, sections, draw, CAVEAT,
)  # fmt: skip
