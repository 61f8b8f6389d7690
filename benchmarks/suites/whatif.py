"""Daydream's what-ifs (USENIX ATC 2020): changes of a training step, really made here, or predicted for a device.

On this processor ten changes are predicted from a profile, made and measured (``benchmarks.whatif_cpu``). For a GPU the
published what-ifs are predicted for the published models, in our traces of them, beside the published figures.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from benchmarks.common import reference
from benchmarks.suites.suite import Request, Section, Suite
from benchmarks.suites.values import COUNTED, MEASURED, PREDICTED, PUBLISHED, Results, Value
from roller.errors import RollerError
from roller.hardware import DeviceSpec
from roller.insight.step.graph import StepGraph
from roller.insight.whatif.predict import what_if
from roller.insight.whatif.task_selection import compute_tasks
from roller.insight.whatif.whatifs import AMP, DDP, FusedOptimizer, ParameterServer, RestructuredNorm

MODEL, FACTORS = "price of the model", "published factors"
DAYDREAM, DAYDREAM_REAL, NEUSIGHT = "Daydream", "Daydream, really made", "NeuSight"
#: The device that the published figures are of, but for those of P3.
PUBLISHED_DEVICE, P3_DEVICE = "rtx2080ti", "p4000"
#: Models of a quick run.
QUICK = ("densenet121", "bert_large")
AMP_CHANGE, ADAM, NORM = "AMP", "fused Adam", "restructured batch norm"
#: Gains below it are rounding: 0.
ROUNDING = 1e-9
#: Model and change -> series and gain (share of the step that is saved), as published, and a note.
GAINS: Mapping[tuple[str, str], tuple[tuple[str, float | None, str], ...]] = {
    ("bert_large", AMP_CHANGE): ((DAYDREAM, 0.172, "error below 3 %"),),
    ("bert_large", ADAM): ((DAYDREAM, 0.387, "error below 7 %"),),
    ("gnmt", ADAM): ((DAYDREAM, None, "published only as below 10 %"),),
    ("densenet121", NORM): ((DAYDREAM, 0.127, ""), (DAYDREAM_REAL, 0.07, "its authors: 17.5 %")),
}
#: Why the published rule of fused Adam gains nothing: it removes the gaps between kernels alone.
NO_GAIN = (
    "The published rule keeps the sum of the removed kernels' times and saves the gaps between them, which a traced "
    "step lacks"
)
#: Share of the update in a step, and its kernels.
UPDATES: Mapping[str, tuple[float, int]] = {"bert_base": (0.30, 2633), "bert_large": (0.45, 5164)}
#: What published errors are of.
OF_ALL, OF_AMP_AND_ADAM = "all predictions", "AMP and fused Adam, all models"
OF_DDP, OF_P3 = "DDP, most models", "P3, 4 x P4000"
#: Published errors, mean or largest, of what cannot be measured here.
ERRORS: Mapping[str, tuple[str, float]] = {
    OF_ALL: ("mean error", 0.08), OF_AMP_AND_ADAM: ("largest error", 0.13),
    OF_DDP: ("largest error", 0.10), OF_P3: ("largest error", 0.162),
}  # fmt: skip
#: DDP on the published cluster: four machines with four devices each, and its networks in Gb/s.
DEVICES, NETWORKS_GBITS = 16, (10, 20, 40)
#: P3 on four machines; the bandwidths are ours around the published 15 to 20 Gb/s.
P3_MODELS, P3_SERVERS, P3_GBITS = ("vgg19", "resnet50"), 4, (5, 10, 15, 20)
#: Model, device and its number, of the published steps of data parallel training (``reference/model_ddp_h100.csv``).
GPT2 = ("gpt2_large", "h100", 4)


def predict(request: Request) -> Iterator[Value]:
    """Yield the published what-ifs of the published models, predicted for a device."""
    from benchmarks.insight import networks

    for model in QUICK if request.quick else networks.NETWORKS:
        if not request.matches(model):
            continue
        step = networks.trace(model, request.spec)
        yield from _of_model(model, step.graph(request.spec), int(step.options["batch"]), request)
    if request.spec.name == GPT2[1] and not request.quick and request.matches(GPT2[0]):
        yield from _gpt2(request.spec)
    for case, (quantity, error) in ERRORS.items():
        yield Value(case, quantity, DAYDREAM, error, "", PUBLISHED)
        yield Value(case, quantity, "Roller", None, "", PREDICTED, note="an error needs a measurement")


def _of_model(model: str, graph: StepGraph, batch: int, request: Request) -> Iterator[Value]:
    changes: dict[str, dict[str, Callable[[], Any]]] = {
        AMP_CHANGE: {MODEL: lambda: AMP(dtype="fp16"), FACTORS: lambda: AMP(dtype="fp16", prices="factor")}
    }
    uses_adam = "adam" in graph_optimizer(model)
    if uses_adam:
        changes[ADAM] = {MODEL: FusedOptimizer, FACTORS: lambda: FusedOptimizer(prices="factor")}
    if (model, NORM) in GAINS:
        changes[NORM] = {FACTORS: RestructuredNorm}
    for change, ways in changes.items():
        for series, make in ways.items():
            why_none = NO_GAIN if (change, series) == (ADAM, FACTORS) else ""
            yield _gain(f"{model}, {change}", series, graph, (make(),), f"batch {batch}", why_none)
        if request.spec.name == PUBLISHED_DEVICE:
            for series, gain, note in GAINS.get((model, change), ()):
                yield Value(f"{model}, {change}", "gain", series, gain, "", PUBLISHED, note=note)
    if model in UPDATES:
        yield from _update(model, graph, request.spec)
    if not request.quick:
        yield from _networks(model, graph)


def graph_optimizer(model: str) -> str:
    """Return the kind of a model's optimizer."""
    from benchmarks.insight import networks

    return networks.NETWORKS[model].optimizer


def _gain(case: str, series: str, graph: StepGraph, changes: Sequence[Any], note: str, why_none: str = "") -> Value:
    try:
        answer = what_if(graph, *changes)
    except RollerError as error:
        return Value(case, "gain", series, None, "", PREDICTED, note=str(error))
    low, high = (1 - end / answer.baseline_us for end in (answer.upper_us, answer.lower_us))
    gain = answer.gain
    if abs(gain) < ROUNDING:
        gain, note = 0.0, f"{note}. {why_none}" if why_none else note
    return Value(case, "gain", series, gain, "", PREDICTED, low, high, note)


def _update(model: str, graph: StepGraph, spec: DeviceSpec) -> Iterator[Value]:
    """Yield how much of a step the update is, and its kernels."""
    one = len(graph.iterations) or 1
    answer = what_if(graph, FusedOptimizer(prices="factor"))
    rows = {row.name: row for row in answer.phases_before}
    share = rows["optimizer"].share if "optimizer" in rows else None
    yield Value(model, "share of the update", "Roller", share, "", PREDICTED)
    yield Value(model, "kernels of the update", "Roller", len(compute_tasks(graph, "optimizer")) / one, "", COUNTED)
    if spec.name == PUBLISHED_DEVICE:
        yield Value(model, "share of the update", DAYDREAM, UPDATES[model][0], "", PUBLISHED)
        yield Value(model, "kernels of the update", DAYDREAM, UPDATES[model][1], "", PUBLISHED)


def _networks(model: str, graph: StepGraph) -> Iterator[Value]:
    """Yield the step on sixteen devices over three networks, and P3 against the plain parameter server."""
    for gbits in NETWORKS_GBITS:
        case = f"{model}, DDP on {DEVICES}, {gbits} Gb/s"
        yield _times(case, MODEL, graph, DDP(DEVICES, bandwidth=gbits * 1e9 / 8))
    for gbits in P3_GBITS if model in P3_MODELS else ():
        case, link = f"{model}, P3 on {P3_SERVERS}, {gbits} Gb/s", {"servers": P3_SERVERS, "bandwidth": gbits * 1e9 / 8}
        plain = _times(case, "plain parameter server", graph, ParameterServer(slice_bytes=1e12, priority=False, **link))
        own = _times(case, "P3", graph, ParameterServer(**link))
        yield from (plain, own)
        gain = 1 - own.value / plain.value if own.value and plain.value else None
        yield Value(case, "gain", "P3", gain, "", PREDICTED, note=own.note or plain.note)


def _times(case: str, series: str, graph: StepGraph, change: Any) -> Value:
    try:
        answer = what_if(graph, change)
    except RollerError as error:
        return Value(case, "step, times one device", series, None, "", PREDICTED, note=str(error))
    low, middle, high = (us / answer.baseline_us for us in (answer.lower_us, answer.iteration_us, answer.upper_us))
    return Value(case, "step, times one device", series, middle, "", PREDICTED, low, high)


def _gpt2(spec: DeviceSpec) -> Iterator[Value]:
    from benchmarks.insight import models

    name, _, devices = GPT2
    case, graph = f"{name}, DDP on {devices} by the device's own link", models.trace(name, batch=1).graph(spec)
    yield _times(case, MODEL, graph, DDP(devices))
    yield Value(case, "step, times one device", NEUSIGHT, published_ddp(devices), "", PUBLISHED)


def published_ddp(devices: int) -> float:
    """Return the published step on several devices over that on one."""
    steps = {int(row["devices"]): float(row["step_ms"]) for row in reference("model_ddp_h100")}
    return steps[devices] / steps[1]


def measure(request: Request) -> Iterator[Value]:
    """Yield the changes of ``benchmarks.whatif_cpu``: predicted from a profile, really made, and measured."""
    from benchmarks import whatif_cpu

    errors: dict[str, list[float]] = {}
    asked = ("fused Adam", "SGD", "freeze half") if request.quick else tuple(whatif_cpu.LIMITS)
    models = [case.name for case in whatif_cpu.CASES if not request.quick or case.name == "perceptron"]
    for row in whatif_cpu.compared(1.0 if request.quick else 4.0, asked, [m for m in models if request.matches(m)]):
        case = f"{row.model}, {row.change}"
        yield Value(case, "time", "before", row.before_s, "s", MEASURED)
        yield Value(case, "time", "changed", row.after_s, "s", MEASURED)
        yield Value(case, "time", "changed", row.predicted_s, "s", PREDICTED)
        errors.setdefault(row.change, []).append(abs(row.error))
    for change, own in errors.items():
        yield Value(change, "mean error", "Roller", statistics.fmean(own), "", MEASURED, note=f"{len(own)} models")
    every = [error for own in errors.values() for error in own]
    if every:
        yield Value(OF_ALL, "mean error", "Roller", statistics.fmean(every), "", MEASURED)
    for case, (quantity, error) in ERRORS.items():
        yield Value(case, quantity, DAYDREAM, error, "", PUBLISHED)


def sections(results: Results) -> Iterator[Section]:
    """Yield a table for each quantity: what was found, whose it is, and its kind."""
    changed = [v for v in results.values if v.quantity == "time" and v.series == "changed"]
    if changed:
        times = {(v.case, v.series, v.kind): v.value or 0.0 for v in results.values if v.quantity == "time"}
        yield (
            "Changed steps", ("model, change", "before, ms", "predicted, ms", "measured, ms", "error"),
            [
                (case, *(f"{1e3 * t:.4g}" for t in (times[case, "before", MEASURED], by_model, real)),
                 f"{100 * (by_model / real - 1):+.1f} %")
                for case in dict.fromkeys(v.case for v in changed)
                for by_model, real in [(times[case, "changed", PREDICTED], times[case, "changed", MEASURED])]
            ],
        )  # fmt: skip
    for quantity in dict.fromkeys(v.quantity for v in results.values if v.quantity != "time"):
        rows = [(v.case, v.series, v.kind, _cell(v), _between(v), v.note or "-")
                for v in results.values if v.quantity == quantity]  # fmt: skip
        yield quantity.capitalize(), ("of", "whose", "kind", "value", "between", ""), rows


def _spelled(quantity: str, value: float) -> str:
    if quantity in ("gain", "mean error", "largest error", "share of the update"):
        return f"{round(100 * value, 1) + 0.0:.1f} %"  # no minus zero
    return f"{value:.4g}"


def _cell(v: Value) -> str:
    return "-" if v.value is None else _spelled(v.quantity, v.value)


def _between(v: Value) -> str:
    if v.low is None or v.high is None:
        return "-"
    return f"{_spelled(v.quantity, v.low)} to {_spelled(v.quantity, v.high)}"


def draw(results: Results, figure: Any) -> None:
    """Draw predicted over measured steps, or what the what-ifs save by model, and P3 over the network's speed."""
    changed = {kind: {v.case: v.value for v in results.values if v.series == "changed" and v.kind == kind}
               for kind in (PREDICTED, MEASURED)}  # fmt: skip
    if changed[MEASURED]:
        axes = figure.subplots()
        cases = list(changed[MEASURED])
        axes.plot(cases, [(changed[PREDICTED][c] or 0) / (changed[MEASURED][c] or 1) for c in cases], "o")
        axes.axhline(1.0, color="black", linewidth=0.8)
        mean = ERRORS[OF_ALL][1]
        axes.axhspan(1 - mean, 1 + mean, alpha=0.15, label=f"{100 * mean:.0f} %, the published mean error")
        axes.set_ylabel("predicted over measured step")
        axes.legend(fontsize=8)
    else:
        gains = [v for v in results.values if v.quantity == "gain" and v.value is not None]
        p3 = [v for v in gains if v.series == "P3"]
        axes, *others = figure.subplots(1, 2 if p3 else 1, squeeze=False, width_ratios=(3, 1) if p3 else None)[0]
        _draw_gains([v for v in gains if v.series != "P3"], axes)
        for side in others:
            _draw_p3(p3, side)
    axes.tick_params(axis="x", rotation=60, labelsize=7)
    for label in axes.get_xticklabels():
        label.set_ha("right")
    axes.set_title(f"{results.head['device']}: what-ifs", fontsize=9)


def _draw_gains(gains: Sequence[Value], axes: Any) -> None:
    """Draw a group of bars for each model and change, with the interval of predictions."""
    groups: dict[str, list[Value]] = {}
    for v in gains:
        groups.setdefault(v.case, []).append(v)
    colours = {name: f"C{n}" for n, name in enumerate(dict.fromkeys(v.series for v in gains))}
    for at, own in enumerate(groups.values()):
        for n, v in enumerate(own):
            value = v.value or 0.0
            low, high = (value if end is None else end for end in (v.low, v.high))
            axes.bar(at + 0.22 * (n - (len(own) - 1) / 2), 100 * value, width=0.2, color=colours[v.series],
                     yerr=[[100 * (value - low)], [100 * (high - value)]] if v.low is not None else None,
                     error_kw={"linewidth": 0.7}, label=f"{v.series}, {v.kind}")  # fmt: skip
    axes.set_xticks(range(len(groups)), list(groups))
    axes.margins(y=0.4)  # room for the legend
    axes.axhline(0.0, color="black", linewidth=0.8)
    axes.set_ylabel("share of the step that is saved, %")
    handles, labels = axes.get_legend_handles_labels()
    named = dict(zip(labels, handles, strict=True))
    axes.legend(list(named.values()), list(named), fontsize=7)


def _draw_p3(gains: Sequence[Value], axes: Any) -> None:
    """Draw what priority propagation saves over the network's speed."""
    for model in dict.fromkeys(v.case.partition(",")[0] for v in gains):
        points = [(float(v.case.split()[-2]), 100 * (v.value or 0)) for v in gains if v.case.startswith(f"{model},")]
        axes.plot(*zip(*points, strict=True), marker="o", markersize=4, label=model)
    axes.set(xlabel="Gb/s", ylim=(0, None))
    axes.set_title(f"P3 on {P3_SERVERS}, saved, %, predicted", fontsize=9)
    axes.legend(fontsize=7)


CAVEAT = (
    "Batches and networks of the published figures are not known in full: ours are named. Published figures rest on "
    "PyTorch 1.0 and its separate kernels of the update; the predicted steps update one parameter after the other."
)
SUITE = Suite(
    "whatif", "Changes of a training step (Daydream, USENIX ATC 2020)", "PyTorch, this processor alone", predict,
    measure, sections, draw, CAVEAT,
)  # fmt: skip
