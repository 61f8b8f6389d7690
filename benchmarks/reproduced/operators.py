"""Rows of Roller (Zhu et al., OSDI 2022): operators on a V100, and of Sokoban's enumeration before it."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping

from benchmarks.common import operators as table
from benchmarks.common import reference
from benchmarks.gpu.statistic import geometric_mean
from benchmarks.reproduced.rows import (
    GEOMETRIC,
    NO_FIGURE,
    NO_GPU,
    RATES,
    RATIO,
    RATIO_ENDS,
    Row,
    ends,
    pairs,
    percent,
    results,
    share_of,
    source_of,
    suite,
    used,
)
from benchmarks.suites import compile_time
from benchmarks.suites.operator_sets import LIBRARY, ROLLER, speed_ups
from benchmarks.suites.values import PREDICTED

#: Operator -> class, and its published mean speed against the library.
CLASSES: Mapping[str, tuple[str, str]] = {
    "matmul": ("matrix products", "0.76"), "conv2d": ("convolutions", "0.94"),
    "depthwise_conv2d": ("depthwise convolutions", "1.25"), "pooling": ("pooling", "1.57"),
    "elementwise": ("element-wise", "1.00"), "reduce": ("reductions", "1.08"),
}  # fmt: skip


def roller() -> Iterator[Row]:
    """Yield rows of Roller: single operators, batch 128, fp32."""
    yield from _headline()
    yield from _compile_times()
    yield from _sets()
    yield Row("operators on a K80, an MI50 and an IPU", NO_FIGURE, "no: none of them is here",
              "no: predictions for them are not compared without a figure", "-")  # fmt: skip


def _headline() -> Iterator[Row]:
    published = [row for row in reference("v100_times_dev") if row["cudalib_ms_raw"]]
    library = {row["id"]: float(row["cudalib_ms_raw"]) for row in published}
    top10 = {row["id"]: float(row["roller_top10_ms_raw"]) for row in published if row["roller_top10_ms_raw"]}
    ours = {row["id"]: row["predicted_ms"] for row in results("model_v100")["operators"]}
    both = sorted(library.keys() & ours.keys() & top10.keys())
    speeds, theirs = ([library[i] / times[i] for i in both] for times in (ours, top10))
    rows, machine = f"{len(both)} rows", results("cpu")["run"]["processor"]
    own_set = [row for row in results("cpu")["operators"] if row["set"] == "roller119" and row["ratio"] is not None]
    here = [row["ratio"] for row in own_set]
    note = f"{{}} of {len(here)} on {machine}, against the best of three libraries: another device, another race"
    own = "model_v100.json, cpu.json"
    yield Row(
        "faster than the library, of 119 operators", f"59.7 % ({share_of(theirs, 1.0)} of the {rows} in the rerun)",
        note.format(share_of(here, 1.0)), f"{share_of(speeds, 1.0)} of {rows}", own,
    )  # fmt: skip
    yield Row(
        "at most 10 % slower than the library", f"81.5 % ({share_of(theirs, 0.9)} of the {rows} in the rerun)",
        note.format(share_of(here, 0.9)), f"{share_of(speeds, 0.9)} of {rows}", own,
    )  # fmt: skip
    yield Row(
        "speed against the library, geometric mean", f"1.06 ({geometric_mean(theirs):.2f} of the {rows} in the rerun)",
        note.format(f"{geometric_mean(here):.2f}"), f"{geometric_mean(speeds):.2f} of {rows}", own,
    )  # fmt: skip
    kind_of = {row["id"]: row["op"] for row in table()}
    for kind, (words, figure) in CLASSES.items():
        mine = [library[i] / ours[i] for i in both if kind_of[i] == kind]
        measured = [row["ratio"] for row in own_set if kind_of[row["id"]] == kind]
        yield Row(
            f"the same, {words}", figure, f"{geometric_mean(measured):.2f} of {len(measured)} on {machine}",
            f"{geometric_mean(mine):.2f} of {len(mine)} rows" if mine else "no: no such row is published", own,
        )  # fmt: skip
    error = next(row for row in results("model_v100")["checks"] if row["name"] == "accuracy, all")
    yield Row(
        "relative error of predicted times, which the predicted figures above carry", "no figure", NO_GPU,
        f"{percent(float(error['value'].split()[0]))} against the published times of Roller's programs",
        "model_v100.json",
    )  # fmt: skip
    regret = geometric_mean([row["regret"] for row in own_set if row["regret"]])
    yield Row(
        "time of the first program over the best of ten", "1.23", f"{regret:.2f} (geometric mean, on {machine})",
        "no: a prediction has one best program", "cpu.json",
    )  # fmt: skip


def _compile_times() -> Iterator[Row]:
    machine = results("cpu")["run"]["processor"]
    rows = [row for row in results("cpu")["operators"] if row["set"] == "roller119" and row["compile_s"]]
    first, ten = (statistics.median(row[key] for row in rows) for key in ("compile_s", "top_k_s"))
    means = compile_time.PUBLISHED_MEANS
    theirs = [f"{means[f'Roller, {name}']:g}" for name in (compile_time.ONE, compile_time.TEN)]
    yield Row("seconds to compile an operator, the first program alone", theirs[0],
              f"{first:.2f} (median, on {machine})", "no: compiling is measured", "cpu.json")  # fmt: skip
    yield Row("the same, ten programs timed", theirs[1], f"{ten:.2f} (median, on {machine})",
              "no: compiling is measured", "cpu.json")  # fmt: skip
    tuning = results("metaschedule")
    tuned = [row["tuning"]["seconds"] for row in tuning["operators"]]
    yield Row(
        "hours to tune an operator", ", ".join(f"{means[name] / 3600:g} ({name})" for name in ("TVM", "Ansor")),
        f"{statistics.fmean(tuned) / 3600:.2f} (MetaSchedule, mean of {len(tuned)} operators, "
        f"{tuning['run']['trials']} trials, on {tuning['run']['processor']})", "no: tuning is measured",
        "metaschedule.json",
    )  # fmt: skip


def _sets() -> Iterator[Row]:
    """Yield rows of the further sets, whose library is predicted, too."""
    name = "tensor-core-v100"
    cores = {case: speed for case, (speed, _) in speed_ups(suite(name)).items() if case.startswith("TC_M")}
    yield Row(
        "products on tensor cores against cuBLAS", "0.65 to 0.73", NO_GPU,
        f"{ends(list(cores.values()), '{:.2f}'.format)}, cuBLAS predicted, too", source_of(name),
        pairs(name, cores, LIBRARY, ROLLER), RATIO_ENDS,
    )  # fmt: skip
    name = "operators-v100"
    speeds = {case: speed for case, (speed, _) in speed_ups(suite(name)).items()}
    yield Row(
        f"all {len(speeds)} operators against the library, which is predicted, too", "1.06", NO_GPU,
        f"{geometric_mean(speeds.values()):.2f} (geometric mean)", source_of(name),
        pairs(name, speeds, LIBRARY, ROLLER), GEOMETRIC,
    )  # fmt: skip
    for name, words in (("small-v100", "small operators"), ("irregular-v100", "irregular operators: fused axes")):
        times = suite(name)
        if name.startswith("small"):
            speeds = {case: speed for case, (speed, _) in speed_ups(times).items()}
            shown = ", ".join(f"{case} {speed:.2f}" for case, speed in speeds.items())
            yield Row(f"{words}, against the library", NO_FIGURE, NO_GPU, f"{shown}, the library predicted, too",
                      source_of(name), pairs(name, speeds, LIBRARY, ROLLER), RATIO)  # fmt: skip
            continue
        whole, plain = (times.of("time", series) for series in ("as constructed", "axes not fused"))
        both = [case for case in whole if case in plain]
        gains = [(plain[case].value or 0) / (whole[case].value or 1) for case in both]
        yield Row(f"{words}, time without over time with them", NO_FIGURE, NO_GPU,
                  f"{geometric_mean(gains):.2f} (geometric mean of {len(gains)})", source_of(name),
                  pairs(name, both, "axes not fused", "as constructed"), GEOMETRIC)  # fmt: skip
    name = "scale-out-v100"
    found = suite(name).of("time", ROLLER, PREDICTED)
    for first, last, words in (("SM_512", "SM_16384", "a product"), ("SC_128", "SC_8192", "a convolution")):
        grown = int(last[3:]) / int(first[3:])
        rate = grown * (found[first].value or 0) / (found[last].value or 1)
        yield Row(f"rate of {words} as its batch grows {grown:g} times", "curves: it grows, then it is even", NO_GPU,
                  f"{rate:.2f} times", source_of(name), used(name, found[first], found[last]), RATES)  # fmt: skip
    yield Row("compile time of growing operators; programs when units of a device are taken away", "curves",
              "no: no run is committed; the suites compile-time and resource-change give it", "no: as before",
              "-")  # fmt: skip


def sokoban() -> Iterator[Row]:
    """Yield rows of Sokoban, whose programs Roller's construction replaces: what construction gives up."""
    for device, words in (("v100", "V100"), ("cpu-avx512", "processor")):
        rows = results("sokoban")[device]["operators"]
        ratio = geometric_mean([row["roller_s"] / row["sokoban_s"] for row in rows])
        more = statistics.median(row["sokoban_considered"] / row["roller_considered"] for row in rows)
        seconds = statistics.median(row["sokoban_cpu_s"] / row["roller_cpu_s"] for row in rows)
        yield Row(
            f"construction's time over that of exhaustive enumeration, {words}", "no figure of the whole set",
            NO_GPU if device == "v100" else "no: the two are compared by the model",
            f"{ratio:.3f} (geometric mean of {len(rows)} operators, both predicted)", "sokoban.json",
        )  # fmt: skip
        yield Row(
            f"tilings that enumeration considers over construction's, {words}", NO_FIGURE,
            f"{more:.0f} (median, counted)", "no: programs are counted", "sokoban.json",
        )  # fmt: skip
        yield Row(f"processor time of enumeration over construction's, {words}", NO_FIGURE, f"{seconds:.1f} (median)",
                  "no: compiling is measured", "sokoban.json")  # fmt: skip
    yield Row("Sokoban's 18 operators; whole models compiled with it", NO_FIGURE,
              "no: no run is committed; the suites sokoban and models give it", "no: as before", "-")  # fmt: skip
