"""Forecasts of whole models: predicted over published times, largest batches, and the example of what fits where.

Times are those of NeuSight's table (ASPLOS 2025), kernels those of libraries at the clock that lasts; BOOM published
errors and no times. A device that the table lacks is predicted for the same models, with nothing beside.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from benchmarks.suites.operator_sets import milliseconds
from benchmarks.suites.suite import Request, Section, Suite
from benchmarks.suites.values import PREDICTED, PUBLISHED, Results, Value
from roller.errors import NoCandidateError, RollerError
from roller.hardware import DeviceSpec

ROLLER, NEUSIGHT, BOOM = "Roller", "NeuSight's table", "BOOM"
#: Cases of a quick run: one of each kind and size.
QUICK = ("bert_large-inf-512-8", "gpt2_large-inf-1024-4", "bert_large-train-512-2")
#: What BOOM published: mean relative errors on its devices (RTX 2070, 2080 Ti, 3090, T4, V100).
PUBLISHED_ERRORS: Mapping[str, float] = {
    "time, fp32: VGG-19, ResNet-50, Inception-v3, BERT-base, GPT-2": 0.078,
    "time, AMP, the same models": 0.133,
    "time, fp32 and AMP together": 0.105,
    "time, checkpointing: GPT-2-medium and -large on a 3090": 0.045,
    "memory: ResNet-50, DenseNet-201, MobileNetV3-large on a 3090": 0.027,
    "memory: BERT-large, GPT-2-medium, ALBERT-large, length 512": 0.009,
    "memory: NATS-Bench": 0.035,
    "memory: ResNet-18, batch 8-128": 0.066,
    "memory, checkpointing: GPT-2-medium and -large on a 3090": 0.013,
}
NO_MEASUREMENT = "an error needs a measurement, and no GPU is here"
#: The published example: a GPT-like model on A100, 3090 and 4090; which one is not published. Ours, and its batch.
EXAMPLE, EXAMPLE_BATCH = "gpt2_large", 2
EXAMPLE_CASE = f"{EXAMPLE}, training, batch {EXAMPLE_BATCH}"
#: Throughput over the A100's that BOOM published, with checkpointing; without it neither has the memory.
PUBLISHED_EXAMPLE: Mapping[str, float] = {"rtx3090": 0.6, "rtx4090": 0.8}
PLAIN, CHECKPOINTED = "as it is", "with checkpointing"


def predict(request: Request) -> Iterator[Value]:
    """Yield predicted and published times, the error of all, largest batches, and the published example."""
    from roller.insight.tracing import require_torch

    require_torch("benchmarks: forecast")
    times = list(_times(request))
    yield from times
    yield from _errors(request.spec, times)
    yield from _batches(request)
    if _is_asked(EXAMPLE_CASE, request, ()):
        yield from _example(request.spec)


def _times(request: Request) -> Iterator[Value]:
    from benchmarks.insight import time
    from roller.insight.cost.operator_price import Pricer

    pricer = Pricer(request.spec.sustained, "library")
    by_name: dict[str, list[time.Case]] = {}
    for case in time.cases(time.PUBLISHED):
        by_name.setdefault(case.name, []).append(case)
    for name, cases in by_name.items():
        if not _is_asked(name, request, QUICK):
            continue
        prices = [pricer.price_operator(operator) for operator in time.operators_of(cases[0])]
        low, middle, high = (math.fsum(getattr(p, end) for p in prices) for end in ("lower", "seconds", "upper"))
        guessed = "Its configuration is not published: guessed." if cases[0].model in time.GUESSED else ""
        yield Value(name, "time", ROLLER, middle, "s", PREDICTED, low, high, guessed)
        own = next((case.seconds for case in cases if case.device == request.spec.name), None)
        note = "" if own is not None else f"no time of {request.spec.name} is in the table"
        yield Value(name, "time", NEUSIGHT, own, "s", PUBLISHED, note=note)


def _is_asked(name: str, request: Request, quick: Sequence[str]) -> bool:
    return request.matches(name) and (not request.quick or name in quick)


def ratios(values: Sequence[Value]) -> dict[str, float]:
    """Return predicted over published times by case, those of a guessed configuration left out."""
    times = {(v.case, v.kind): v.value for v in values if v.quantity == "time" and v.value is not None and not v.note}
    return {
        case: seconds / times[case, PUBLISHED]
        for (case, kind), seconds in times.items() if kind == PREDICTED and (case, PUBLISHED) in times
    }  # fmt: skip


def _errors(spec: DeviceSpec, times: Sequence[Value]) -> Iterator[Value]:
    errors = [abs(ratio - 1) for ratio in ratios(times).values()]
    for quantity, pick in (("mean error", statistics.fmean), ("largest error", max)):
        found = pick(errors) if errors else None
        note = f"{len(errors)} cases of {NEUSIGHT}" if errors else f"no time of {spec.name} is in the table"
        yield Value("time, fp32: language models", quantity, ROLLER, found, "", PREDICTED, note=note)
    for case, error in PUBLISHED_ERRORS.items():
        yield Value(case, "mean error", BOOM, error, "", PUBLISHED)
        yield Value(case, "mean error", ROLLER, None, "", PREDICTED, note=NO_MEASUREMENT)


def _batches(request: Request) -> Iterator[Value]:
    from benchmarks.insight import batches

    for name in batches.MODELS:
        if not _is_asked(name, request, ("resnet50",)):
            continue
        step = batches.traced(name, 4)
        try:
            found = step.max_batch(request.spec)
        except NoCandidateError as error:
            yield Value(name, "largest batch", ROLLER, None, "", PREDICTED, note=str(error))
        else:
            yield Value(name, "largest batch", ROLLER, found.batch, "", PREDICTED, note="fp16 AMP, AdamW")
            yield Value(name, "memory of it", ROLLER, found.memory.total_bytes, "B", PREDICTED)


def _example(spec: DeviceSpec) -> Iterator[Value]:
    from benchmarks.insight import batches

    step = batches.traced(EXAMPLE, EXAMPLE_BATCH)
    for name, checkpoint in ((PLAIN, False), (CHECKPOINTED, "blocks.*")):
        try:
            found = step.forecast(spec, checkpoint=checkpoint)
        except RollerError as error:
            yield Value(EXAMPLE_CASE, "throughput", name, None, "samples/s", PREDICTED, note=str(error))
            continue
        fits = found.memory.fits
        rate = EXAMPLE_BATCH / found.iteration_s if fits else None
        note = "fp16 AMP, AdamW" if fits else "out of memory"
        yield Value(EXAMPLE_CASE, "throughput", name, rate, "samples/s", PREDICTED, note=note)


def sections(results: Results) -> Iterator[Section]:
    """Yield times and their ratios, errors, largest batches and the example."""
    found = {(v.case, v.series): v for v in results.values if v.quantity == "time"}
    rows = []
    for case in dict.fromkeys(case for case, _ in found):
        ours, theirs = found[case, ROLLER], found[case, NEUSIGHT]
        both = ours.value is not None and theirs.value is not None
        rows.append((
            case, milliseconds(ours.value), f"{milliseconds(ours.low)} to {milliseconds(ours.high)}",
            milliseconds(theirs.value),
            f"{ours.value / theirs.value:.3f}" if both else "-", ours.note or theirs.note or "-",
        ))  # fmt: skip
    if rows:
        yield (
            "Times of whole models, fp32",
            ("model, mode, length, batch", "predicted, ms", "between", "published, ms", "predicted over published", ""),
            rows,
        )
    errors = [(v.case, v.series, v.quantity, f"{100 * v.value:.1f} %", v.kind) for v in results.values
              if "error" in v.quantity and v.value is not None]  # fmt: skip
    if errors:
        yield "Errors", ("of", "whose", "what", "value", "kind"), errors
    memory = results.of("memory of it")
    sizes = [
        (v.case, "does not fit" if v.value is None else f"{v.value:.0f}",
         f"{memory[v.case].value / 2**20:.0f}" if v.case in memory else "-")
        for v in results.values if v.quantity == "largest batch"
    ]  # fmt: skip
    if sizes:
        yield "Largest batches, fp16 AMP and AdamW, predicted", ("model", "largest batch", "memory of it, MiB"), sizes
    rates = [v for v in results.values if v.quantity == "throughput"]
    if rates:
        yield (
            "Training of a GPT-like model, predicted",
            ("case", "", "samples/s"),
            [(v.case, v.series, v.note if v.value is None else f"{v.value:.3f}") for v in rates],
        )


def draw(results: Results, figure: Any) -> None:
    """Draw predicted over published times with each model's expected error, and the mean error as a band."""
    axes = figure.subplots()
    ours, theirs = (results.of("time", series) for series in (ROLLER, NEUSIGHT))
    cases = [case for case in ours if case in theirs] or list(ours)
    compared = bool(theirs)
    if not cases:
        axes.set_title(f"{results.head['device']}: no times were asked for", fontsize=9)
        axes.set_axis_off()
        return
    for at, case in enumerate(cases):
        v, over = ours[case], theirs[case].value if compared else 1e-3
        low, middle, high = ((x or 0) / (over or 1) for x in (v.low, v.value, v.high))
        axes.errorbar(
            [at], [middle], [[middle - low], [high - middle]], fmt="x" if v.note else "o", capsize=3,
            color="tab:gray" if v.note else "tab:blue",
        )  # fmt: skip
    axes.set_xticks(range(len(cases)), cases, rotation=60, ha="right", fontsize=7)
    axes.set_yscale("log")
    name = results.head["device"]
    if not compared:
        axes.set_ylabel("predicted, ms")
        axes.set_title(f"{name}: whole models in fp32, predicted; no published time of it", fontsize=9)
        return
    error = next((v.value for v in results.values if v.quantity == "mean error" and v.series == ROLLER and v.value), 0)
    axes.axhline(1.0, color="black", linewidth=0.8)
    axes.axhspan(1 - error, 1 + error, color="tab:blue", alpha=0.15, label=f"mean error, {100 * error:.1f} %")
    axes.set_yticks(ticks := [0.3, 0.4, 0.5, 0.6, 0.8, 1.0, 1.25, 1.5, 2.0], [f"{t:g}" for t in ticks])
    axes.minorticks_off()
    axes.set_ylim(0.25, 2.5)
    axes.set_ylabel("predicted over published time")
    axes.set_title(f"{name}: whole models in fp32; bars: expected error; crosses: guessed configuration", fontsize=9)
    axes.legend(fontsize=8)


CAVEAT = (
    "Published times are NeuSight's measurements; the models that are predicted follow the published configurations. "
    "BOOM's errors are of other models on other devices."
)
SUITE = Suite(
    "forecast", "Whole models forecast (BOOM's evaluation, NeuSight's table)", "nothing: it predicts GPUs", predict,
    None, sections, draw, CAVEAT,
)  # fmt: skip
