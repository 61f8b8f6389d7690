"""Rows of BOOM, whose forecasts need no device, and of Skyline (Yu et al., UIST 2020), which fits lines."""

from __future__ import annotations

import statistics
from collections.abc import Iterator

from benchmarks.reproduced.rows import NO_GPU, NO_USERS, Row, cell, percent, source_of, suite, value_of
from benchmarks.suites import forecast, skyline

DEVICES = ("v100", "a100", "p100", "t4")
EXAMPLE = forecast.EXAMPLE_CASE
#: The device of the committed lines: Skyline's own, an RTX 2070, has no specification here.
LINES = "skyline-rtx2080ti"


def boom() -> Iterator[Row]:
    """Yield rows of BOOM: errors on devices that are not here, and the example of what fits."""
    for case, error in forecast.PUBLISHED_ERRORS.items():
        yield Row(f"mean error, {case}", percent(error), NO_GPU, "no: an error needs a measurement", "-")
    case = "time, fp32: language models"
    for device in DEVICES:
        run = f"forecast-{device}"
        mean, most = (value_of(run, case, quantity, "Roller") for quantity in ("mean error", "largest error"))
        errors = f"{cell(mean, percent)} (mean), {cell(most, percent)} (largest), {mean.note}"
        yield Row(
            f"error of the time of whole models on {device}, against NeuSight's published times",
            "7.8 % (mean, other models)", NO_GPU, errors if mean.value is not None else cell(mean, percent),
            source_of(run),
        )  # fmt: skip
    base = value_of("forecast-a100", EXAMPLE, "throughput", forecast.PLAIN)
    for device, theirs in forecast.PUBLISHED_EXAMPLE.items():
        run = f"forecast-{device}"
        plain, small = (value_of(run, EXAMPLE, "throughput", name) for name in (forecast.PLAIN, forecast.CHECKPOINTED))
        fits = plain.note if plain.value is None else f"fits, {plain.value:.2f} samples/s"
        yield Row(f"a GPT-like model on {device}, as it is (ours: {EXAMPLE}, fp16 AMP)", "out of memory", NO_GPU,
                  fits, source_of(run))  # fmt: skip
        lacking = next((v for v in (base, small) if v.value is None), None)
        relative = f"{(small.value or 0) / (base.value or 1):.2f}" if lacking is None else f"no: {lacking.note}"
        yield Row("the same with checkpointing, throughput over the A100's without", f"{theirs}", NO_GPU, relative,
                  source_of("forecast-a100", run))  # fmt: skip
    yield Row("throughput per currency unit over the A100's, 3090 and 4090", "3.8, 2.6", NO_GPU,
              "no: prices are the user's; `roller sweep --prices` takes them", "-")  # fmt: skip
    yield Row("seconds of a prediction", "about 10", "no: no run is committed; `python -m benchmarks.insight speed` "
              "measures it", "no: it is measured", "-")  # fmt: skip


def lines() -> Iterator[Row]:
    """Yield rows of Skyline: errors of the line through three batches, and what needs users."""
    found = suite(LINES)
    for (quantity, name), error in skyline.PUBLISHED_ERRORS.items():
        own = [v.value for v in found.values if v.quantity == f"{quantity}, {name}" and v.series.startswith("line")
               and v.value is not None]  # fmt: skip
        pick = statistics.fmean if name == "mean error" else max
        text = f"{percent(pick(own), 2)}, of {len(own)} lines" if own else f"no: no run {LINES} is committed"
        words = "RTX 2070; ours: RTX 2080 Ti, forecast beside, at the six nearest powers of two"
        yield Row(f"{quantity} by the line, {name} ({words})", percent(error, 2), NO_GPU, text, source_of(LINES))
    for model in skyline.STARTS:
        largest = value_of(LINES, model, "largest batch", skyline.FORECAST)
        yield Row(f"largest batch of {model}", "no figure", NO_GPU, cell(largest, lambda v: f"{v:.0f}"),
                  source_of(LINES))  # fmt: skip
    yield Row("seconds of a profile", "below 1 to 29", NO_GPU, "no: profiles run on the device", "-")
    yield Row("seconds of tasks T1 to T5: GNMT, Transformer, ResNet-50",
              "52 36 26 44 64, 47 50 6 22 32, 28 29 5 22 23", NO_USERS, "no: as before; a test asks a profile for each",
              "-")  # fmt: skip
    yield Row("writing the providers; usefulness of bars, breakdowns and markers", "7 min 41 s; 4.4 4.4 4.4 4.9 4.0 of "
              "5", NO_USERS, "no: as before", "-")  # fmt: skip
