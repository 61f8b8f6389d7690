"""``python -m benchmarks report``: what papers published beside what is measured and predicted here.

Every figure of ours is read from a file of ``results`` (or computed from one and a published table of ``reference``);
a cell without one says why there is none. ``--check`` exits with 1 where the page is not up to date.
"""

from __future__ import annotations

import json
import re
import statistics
import sys
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer

from benchmarks.common import HERE, markdown, reference
from benchmarks.gpu.statistic import geometric_mean
from benchmarks.training import feature_map_share

RESULTS = HERE / "results"
PAGE = RESULTS / "reproduction.md"
#: Why there is no measured figure.
_NO_GPU = "no: no GPU is here"
_COLUMNS = ("published", "theirs", "ours, measured", "ours, predicted", "from")


class Row(NamedTuple):
    """One published figure beside ours.

    Parameters
    ----------
    what, theirs
        The figure, and its published value.
    measured, predicted
        Ours; where there is none, ``"no: "`` and the reason.
    source
        File of ``results`` that ours is read from.
    """

    what: str
    theirs: str
    measured: str
    predicted: str
    source: str


@cache
def results(name: str) -> Any:
    """Return a JSON file of ``results``."""
    return json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))


def operators() -> Iterator[Row]:
    """Yield rows of Roller (Zhu et al., OSDI 2022): single operators on a V100, batch 128, fp32."""
    library = {row["id"]: float(row["cudalib_ms_raw"]) for row in reference("v100_times_dev") if row["cudalib_ms_raw"]}
    top10 = {
        row["id"]: float(row["roller_top10_ms_raw"])
        for row in reference("v100_times_dev")
        if row["roller_top10_ms_raw"]
    }
    ours = {row["id"]: row["predicted_ms"] for row in results("model_v100")["operators"]}
    both = sorted(library.keys() & ours.keys() & top10.keys())
    speeds, theirs = ([library[i] / times[i] for i in both] for times in (ours, top10))
    rows, machine = f"{len(both)} rows", results("cpu")["run"]["processor"]
    own_set = [row for row in results("cpu")["operators"] if row["set"] == "roller119" and row["ratio"] is not None]
    here = [row["ratio"] for row in own_set]
    note = f"{{}} of {len(here)} on {machine}, against the best of three libraries: another device, another race"
    own = "model_v100.json, cpu.json"
    yield Row(
        "faster than the library, of 119 operators", f"59.7 % ({_share(theirs, 1.0)} of the {rows} in the rerun)",
        note.format(_share(here, 1.0)), f"{_share(speeds, 1.0)} of {rows}", own,
    )  # fmt: skip
    yield Row(
        "at most 10 % slower than the library", f"81.5 % ({_share(theirs, 0.9)} of the {rows} in the rerun)",
        note.format(_share(here, 0.9)), f"{_share(speeds, 0.9)} of {rows}", own,
    )  # fmt: skip
    yield Row(
        "speed against the library, geometric mean", f"1.06 ({geometric_mean(theirs):.2f} of the {rows} in the rerun)",
        note.format(f"{geometric_mean(here):.2f}"), f"{geometric_mean(speeds):.2f} of {rows}", own,
    )  # fmt: skip
    error = next(row for row in results("model_v100")["checks"] if row["name"] == "accuracy, all")
    yield Row(
        "relative error of predicted times, which the predicted figures above carry", "no figure", _NO_GPU,
        f"{_percent(float(error['value'].split()[0]))} against the published times of Roller's programs",
        "model_v100.json",
    )  # fmt: skip
    compile_s = statistics.median(row["compile_s"] for row in own_set if row["compile_s"])
    yield Row(
        "seconds to compile an operator, the first program alone", "0.43", f"{compile_s:.2f} (median, on {machine})",
        "no: compiling is measured", "cpu.json",
    )  # fmt: skip
    sokoban = [row["roller_s"] / row["sokoban_s"] for row in results("sokoban")["v100"]["operators"]]
    yield Row(
        "construction's time over that of exhaustive enumeration", "no figure of the whole set", _NO_GPU,
        f"{geometric_mean(sokoban):.3f} (geometric mean of {len(sokoban)} operators, both predicted)", "sokoban.json",
    )  # fmt: skip
    yield Row("products on tensor cores against cuBLAS", "0.65 to 0.73", _NO_GPU, "no: cuBLAS is not predicted", "-")


def what_ifs() -> Iterator[Row]:
    """Yield rows of Daydream (Zhu et al., USENIX ATC 2020): errors of predicted changes of a training step."""
    errors = _errors_of_what_ifs()
    other = "our errors are on processors, where changes can be made"
    published = {
        "fused Adam": "below 13 %", "bf16": "AMP: below 13 %", "freeze half": "no figure", "batch x2": "no figure",
        "recompute": "no figure",
    }  # fmt: skip
    mean = statistics.fmean(errors.values())
    yield Row(
        "mean error of predicted steps", "about 8 %", f"{mean:.1f} % of {len(errors)} changes; {other}",
        "no: an error needs a measurement", "whatif_cpu.md",
    )  # fmt: skip
    for name, theirs in published.items():
        yield Row(f"error, {name}", theirs, f"{errors[name]:.1f} %", "no: as above", "whatif_cpu.md")
    yield Row("DDP on 16 GPUs, P3 on 4", "10 %, 16.2 %", "no: no cluster is here", "no: as above", "-")


def training() -> Iterator[Row]:
    """Yield rows of TBD (Zhu et al., 2018): training on a P4000 and a Titan Xp."""
    yield from (row._replace(measured=_NO_GPU, source="training.json") for row in _training())


def _training() -> Iterator[Row]:
    def row(what: str, theirs: str, predicted: str) -> Row:
        return Row(what, theirs, "", predicted, "")

    one = _case("faster_rcnn", 1)
    yield row("Faster R-CNN, images/s on a P4000", "2.3", f"{one['throughput_per_s']:.2f}")
    yield row("Faster R-CNN, compute utilisation", "89.4 %, 90.3 %", f"{_percent(one['compute_utilisation'])}")
    yield row("Faster R-CNN, FP32 utilisation", "58.9 %, 70.9 %", f"{_percent(one['peak_share'])}")
    few, many = (_case("seq2seq", batch) for batch in (64, 128))
    yield row("Seq2Seq, sentences/s, batch 128 (TensorFlow)", "365", f"{many['throughput_per_s']:.0f}")
    yield row("Seq2Seq, sentences/s, batch 64 (MXNet)", "229", f"{few['throughput_per_s']:.0f}")
    yield row("Seq2Seq, batch 64 to 128", "+25 %", _gain(few, many))
    yield row("Inception-v3, batch 16 to 32", "below +10 %", _gain(*(_case("inception_v3", b) for b in (16, 32))))
    shares = {row["model"]: feature_map_share(row) for row in results("training")["rows"] if row["device"] == "p4000"}
    low, high = (pick(shares, key=lambda name: shares[name]) for pick in (min, max))
    yield row("feature maps, share of memory", "62 % (Deep Speech 2) to 89 % (ResNet-50)",
              f"{_percent(shares['deep_speech_2'], 0)} and {_percent(shares['resnet50'], 0)}; "
              f"{_percent(shares[low], 0)} ({low}) to "
              f"{_percent(shares[high], 0)} ({high})")  # fmt: skip
    kernels = ", ".join(f"{use['name']} {_percent(use['share'])}" for use in _case("resnet50", 32)["kernels"])
    yield row(
        "ResNet-50, batch 32: longest kernels that use the peak less than the average, share of time",
        "batch norm backward 9.4 %, forward 8.0 %, activation backward 5.1 %, forward 3.5 %, generic 2.9 % (MXNet); "
        "sgemv 8.4 %, batch norm backward 5.5 %, forward 4.7 %, Eigen 3.1 %, bias 2.5 % (TensorFlow)",
        kernels,
    )
    alone = results("training")["clusters"][0]["throughput"]
    for cluster in results("training")["clusters"][1:]:
        theirs = {"2 machines, 1 Gb/s": "slower than one", "2 machines, 100 Gb/s": "scales"}
        yield row(f"ResNet-50 on {cluster['cluster']}, times one device", theirs.get(cluster["cluster"], "scales"),
                  f"{cluster['throughput'] / alone:.2f}")  # fmt: skip
    for one in results("training")["observations"]:
        counted = f" ({one['agreeing']} of {one['decisive']} cases)" if one["decisive"] else ""
        yield row(f"Observation {one['number']}: {one['claim']}", "holds", f"{one['verdict']}{counted}")
    yield row("accuracy over days of training", "top-1 75 to 80 %, BLEU about 20, Pong 19 to 20",
              "no: a prediction says nothing of accuracy")  # fmt: skip


def page() -> str:
    """Return the page."""
    parts = [
        "Each figure of ours is measured on the machine at hand or **predicted without the device**, as its column "
        "says; a cell that begins with *no* says why there is no figure. Published ones rest on the frameworks and "
        "libraries of their time. `from` names the file of `benchmarks/results`."
    ]
    for title, rows in (
        ("Operators: Roller, OSDI 2022", operators()), ("Changes of training: Daydream, ATC 2020", what_ifs()),
        ("Training: TBD, 2018", training()),
    ):  # fmt: skip
        parts += [f"## {title}", markdown(_COLUMNS, rows)]
    return "\n\n".join(parts) + "\n"


def _case(model: str, batch: int, device: str = "p4000") -> Mapping[str, Any]:
    rows = results("training")["rows"]
    return next(r for r in rows if (r["model"], r["batch"], r["device"]) == (model, batch, device))


def _gain(before: Mapping[str, Any], after: Mapping[str, Any]) -> str:
    gain = after["throughput_per_s"] / before["throughput_per_s"] - 1
    return f"{'+' if gain >= 0 else ''}{_percent(gain)}"


def _share(values: Sequence[float], least: float) -> str:
    return _percent(sum(value >= least for value in values) / len(values))


def _percent(share: float, digits: int = 1) -> str:
    return f"{100 * share:.{digits}f} %"


def _errors_of_what_ifs() -> dict[str, float]:
    """Return the mean errors, in percent, of the table in ``whatif_cpu.md``."""
    text = (RESULTS / "whatif_cpu.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| ([^|]+) \| ([0-9.]+) % \| [0-9.]+ % \|$", text, re.MULTILINE)
    return {name: float(error) for name, error in rows}


def main(
    check: Annotated[bool, typer.Option("--check", help="Write nothing; exit with 1 where it would change.")] = False,
    out: Annotated[Path, typer.Option("--out", help="File to write.")] = PAGE,
) -> None:
    """Write the page of what is published beside what is measured and predicted here."""
    text = page()
    if not check:
        out.write_text(text, encoding="utf-8")
    elif not out.is_file() or out.read_text(encoding="utf-8") != text:
        sys.exit(f"{out}: not up to date. Run `python -m benchmarks report`.")


if __name__ == "__main__":
    typer.run(main)
