"""The page of reproductions: a row for every figure of the papers, and every figure of ours from a committed file."""

from __future__ import annotations

import math
import re
import statistics

import pytest

from benchmarks.reproduced.rows import RESULTS, value_of
from benchmarks.reproduction import PAGE, PAPERS, page
from benchmarks.suites.values import KINDS, read

ROWS = [(title, row) for title, rows in PAPERS.items() for row in rows()]
RUNS = sorted((RESULTS / "suites").glob("*.json"))
#: Words without a figure that a cell may have.
WORDS = ("cannot be said here", "out of memory")
NUMBER = re.compile(r"(?<![\w.])[+-]?\d+(?:\.\d+)?(?![\w]|\.\d)")
#: Computations of rows over pairs of values.
OVER_PAIRS = ("ratio", "relative change", "ends of ratios", "geometric mean of ratios", "ratio of rates")


def geometric_mean(values):
    return math.exp(statistics.fmean(map(math.log, values)))


def values_used(row):
    """Return the values that a row uses, ``None`` for one that its run lacks or that has none."""
    found = []
    for name, key in row.used:
        path = RESULTS / "suites" / f"{name}.json"
        held = {v.key: v.value for v in read(path).values} if path.is_file() else {}
        found.append(held.get(key))
    return found


def computed(row, values):
    """Return the numbers that a row's cell begins with, by other code than its own, and how many values they are of."""
    if row.by not in OVER_PAIRS:
        pick = {"mean": statistics.fmean, "largest": max}
        return (values, 0) if row.by == "each" else (
            (ends_of(row, values), 0) if row.by == "ends" else ([pick[row.by](values)], len(values))
        )  # fmt: skip
    ratios = [over / under for over, under in zip(values[::2], values[1::2], strict=True)]
    if row.by == "geometric mean of ratios":
        return [geometric_mean(ratios)], len(ratios)
    if row.by == "ratio of rates":
        first, last = (int(re.search(r"\d+$", key[0])[0]) for _, key in row.used)
        return [last / first * ratios[0]], 0
    if row.by == "ends of ratios":
        return ends_of(row, ratios), 0
    return ([r - 1 for r in ratios] if row.by == "relative change" else ratios), 0


def ends_of(row, values):
    return [min(values), max(values)] if " to " in row.predicted else [min(values)]


def is_shown_as(text, value, percent):
    digits = len(text.partition(".")[2])
    return float(text) == float(f"{(100 if percent else 1) * value:.{digits}f}")


def test_the_page_is_that_of_the_committed_files():
    assert PAGE.read_text(encoding="utf-8") == page(), "run `python -m benchmarks report`"


def test_every_paper_has_its_rows():
    assert [title.partition(":")[2].strip().partition(",")[0] for title in PAPERS] == [
        "Roller", "Sokoban", "BOOM", "Daydream", "Skyline", "TBD",
    ]  # fmt: skip
    counts = {title: sum(of == title for of, _ in ROWS) for title in PAPERS}
    assert all(count >= 6 for count in counts.values()), counts


def test_every_row_has_both_kinds_of_figures_or_the_reason_why_not():
    for _, row in ROWS:
        for cell in (row.measured, row.predicted):
            assert re.search(r"\d", cell) or cell.startswith("no: ") or cell in WORDS or cell == "holds", row
        assert "not in " not in row.predicted, row  # the run is committed, and lacks the value
        assert row.source == "-" or all((RESULTS / name).is_file() for name in row.source.split(", ")), row


def test_every_figure_of_a_suite_is_computed_from_the_values_that_its_row_names():
    of_suites = [row for _, row in ROWS if "suites/" in row.source]
    assert len(of_suites) >= 40
    for row in of_suites:
        assert row.used, row
        assert {f"suites/{name}.json" for name, _ in row.used} >= set(row.source.split(", ")), row
        values, numbers = values_used(row), list(NUMBER.finditer(row.predicted))
        if None in values and (row.by != "each" or set(values) == {None}):
            assert row.predicted.startswith("no: ") or row.predicted in WORDS, row
            continue
        expected, count = computed(row, [v for v in values if v is not None])
        for number, value in zip(numbers, expected, strict=False):
            percent = row.predicted[number.end() :].startswith(" %")
            assert is_shown_as(number[0], value, percent), (row, value)
        rest = [int(number[0]) for number in numbers[len(expected) :]]
        assert rest in ([], [count], compared_cases(row)), row
        assert len(numbers) >= len(expected), row


def compared_cases(row):
    """Return how many times of whole models a forecast is compared with."""
    return [len(errors_of(row.used[0][0]))]


def errors_of(name):
    """Return the relative errors of predicted times of whole models, from the times of a committed run."""
    path = RESULTS / "suites" / f"{name}.json"
    values = [v for v in read(path).values if v.quantity == "time" and v.value is not None] if path.is_file() else []
    published = {v.case: v.value for v in values if v.kind == "published"}
    ours = [v for v in values if v.kind == "predicted" and not v.note]
    return [abs(v.value / published[v.case] - 1) for v in ours if v.case in published]


@pytest.mark.parametrize("name", [p.stem for p in RUNS if p.stem.startswith("forecast")])
def test_errors_of_a_committed_forecast_are_those_of_its_times(name):
    errors, case = errors_of(name), "time, fp32: language models"
    mean, most = (value_of(name, case, quantity, "Roller").value for quantity in ("mean error", "largest error"))
    expected = (pytest.approx(statistics.fmean(errors)), pytest.approx(max(errors))) if errors else (None, None)
    assert (mean, most) == expected


def test_a_figure_of_another_value_is_noticed():
    row = next(row for _, row in ROWS if row.what == "Faster R-CNN, images/s on a P4000")
    (value,) = values_used(row)
    assert is_shown_as(row.predicted, value, False)
    assert not is_shown_as(row.predicted, value * 1.01, False) and not is_shown_as(row.predicted, value, True)


@pytest.mark.parametrize("path", RUNS, ids=lambda path: path.stem)
def test_a_committed_run_says_what_it_is_of(path):
    run = read(path)
    device = run.head["device"]
    assert path.stem == f"{run.head['suite']}-{device}" and not run.head["quick"]
    assert run.head["filter"] == "*"
    assert re.fullmatch(r"[0-9a-f]{12}", run.head["revision"]), "made from a commit, without changes"
    assert {v.kind for v in run.values} <= set(KINDS)
    assert all(v.note for v in run.values if v.value is None)
    assert path.stat().st_size < 300_000


def test_a_run_that_lacks_a_value_says_so():
    assert value_of("operators-v100", "nothing", "time", "Roller").note == "not in operators-v100"
    assert value_of("nothing", "M0", "time", "Roller").note == "no run nothing is committed"
