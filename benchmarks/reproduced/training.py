"""Rows of TBD (Zhu et al., 2018): training on a P4000 and a Titan Xp, every figure of ours predicted."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from benchmarks.reproduced.rows import (
    CHANGE,
    EACH,
    ENDS,
    NO_GPU,
    RATIO,
    Row,
    Used,
    cell,
    ends,
    percent,
    results,
    signed_percent,
    source_of,
    suite,
    used,
    value_of,
)
from benchmarks.suites.training import FIGURES, OURS
from benchmarks.suites.values import Value

RUN = "training-p4000"


def training() -> Iterator[Row]:
    """Yield rows of the training benchmark."""
    yield from (row._replace(measured=NO_GPU) for row in _training())


def _row(
    what: str, theirs: str, predicted: str, values: Sequence[Used] = (), by: str = EACH, source: str = source_of(RUN)
) -> Row:
    return Row(what, theirs, "", predicted, source, tuple(values), by)


def _training() -> Iterator[Row]:
    one = "faster_rcnn, batch 1"
    for words, case, quantity, spell in (
        ("Faster R-CNN, images/s on a P4000", one, "throughput", "{:.2f}".format),
        ("Faster R-CNN, compute utilisation", one, "compute utilisation", percent),
        ("Faster R-CNN, FP32 utilisation", one, "peak utilisation", percent),
        ("Seq2Seq, sentences/s, batch 128 (TensorFlow)", "seq2seq, batch 128", "throughput", "{:.0f}".format),
        ("Seq2Seq, sentences/s, batch 64 (MXNet)", "seq2seq, batch 64", "throughput", "{:.0f}".format),
    ):
        theirs = ", ".join(
            f"{v:g}" if quantity == "throughput" else percent(v) for v in FIGURES[case, quantity].values()
        )
        found = value_of(RUN, case, quantity, OURS)
        yield _row(words, theirs, cell(found, spell), used(RUN, found))
    yield _gain("Seq2Seq, batch 64 to 128", "+25 %", "seq2seq", 64, 128)
    yield _gain("Inception-v3, batch 16 to 32", "below +10 %", "inception_v3", 16, 32)
    yield from _figures()
    yield from _kernels()
    for case in dict.fromkeys(v.case for v in suite(RUN).values if v.quantity == "times one device"):
        cluster = case.partition(", ")[2]
        if cluster != "1 device":
            theirs = {"2 machines, 1 Gb/s": "slower than one"}.get(cluster, "scales")
            found = value_of(RUN, case, "times one device", OURS)
            yield _row(
                f"ResNet-50 on {cluster}, times one device", theirs, cell(found, "{:.2f}".format), used(RUN, found)
            )
    for one in results("training")["observations"]:
        counted = f" ({one['agreeing']} of {one['decisive']} cases)" if one["decisive"] else ""
        words = f"Observation {one['number']}: {one['claim']}"
        yield _row(words, "holds", f"{one['verdict']}{counted}", source="training.json")
    yield _row("accuracy over days of training", "top-1 75 to 80 %, BLEU about 20, Pong 19 to 20",
              "no: a prediction says nothing of accuracy", source="-")  # fmt: skip


def _figures() -> Iterator[Row]:
    """Yield rows of the figures: batches of every model, two devices side by side, memory by kind."""
    speeds = {v.case: v for v in suite(RUN).values if v.quantity == "throughput" and v.series == OURS}
    for model in dict.fromkeys(case.partition(",")[0] for case in speeds):
        own = {int(case.rpartition(" ")[2]): v.value for case, v in speeds.items() if case.startswith(f"{model},")}
        fitting = {batch: value for batch, value in own.items() if value}
        if len(fitting) > 1:
            first, last = min(fitting), max(fitting)
            grown = f"{fitting[last] / fitting[first]:.2f} times"
            curve = [speeds[f"{model}, batch {batch}"] for batch in (last, first)]
            yield _row(f"{model}: throughput from batch {first} to {last}", "a curve: it does not fall", grown,
                       used(RUN, *curve), RATIO)  # fmt: skip
    for case in ("resnet50, batch 32", "seq2seq, batch 128", "transformer, batch 64"):
        ours, other = (value_of(run, case, "throughput", OURS) for run in (RUN, "training-titanxp"))
        text = _ratio(ours, other, "{:.2f}".format)
        yield _row(f"{case}: throughput of a Titan Xp over a P4000's", "a figure: above 1, below the ratio of peaks",
                  text, (*used("training-titanxp", other), *used(RUN, ours)), RATIO,
                  source_of(RUN, "training-titanxp"))  # fmt: skip
    shares = suite(RUN).of("feature maps, share of memory", OURS).values()
    for model, words, theirs in (("deep_speech_2", "Deep Speech 2", "62 %"), ("resnet50", "ResNet-50", "89 %")):
        own = [v for v in shares if v.case.startswith(f"{model},")]
        text = ends([v.value or 0.0 for v in own], lambda v: percent(v, 0)) if own else "no: no batch fits"
        yield _row(f"feature maps, share of memory by batch, {words}", theirs, text, used(RUN, *own), ENDS)


def _kernels() -> Iterator[Row]:
    row = next(r for r in results("training")["rows"] if (r["model"], r["batch"], r["device"]) == CASE)
    kernels = ", ".join(f"{use['name']} {percent(use['share'])}" for use in row["kernels"])
    yield _row(
        "ResNet-50, batch 32: longest kernels that use the peak less than the average, share of time",
        "batch norm backward 9.4 %, forward 8.0 %, activation backward 5.1 %, forward 3.5 %, generic 2.9 % (MXNet); "
        "sgemv 8.4 %, batch norm backward 5.5 %, forward 4.7 %, Eigen 3.1 %, bias 2.5 % (TensorFlow)",
        kernels, source="training.json",
    )  # fmt: skip


CASE = ("resnet50", 32, "p4000")


def _gain(what: str, theirs: str, model: str, few: int, many: int) -> Row:
    before, after = (value_of(RUN, f"{model}, batch {batch}", "throughput", OURS) for batch in (few, many))
    text = _ratio(before, after, lambda ratio: signed_percent(ratio - 1))
    return _row(what, theirs, text, used(RUN, after, before), CHANGE)


def _ratio(before: Value, after: Value, spell: Callable[[float], str]) -> str:
    lacking = next((v for v in (before, after) if v.value is None), None)
    return spell((after.value or 0.0) / (before.value or 1.0)) if lacking is None else f"no: {lacking.note}"
