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
#: Scales in which a value is shown: itself, percent.
SCALES = (1.0, 100.0)
NUMBER = re.compile(r"(?<![\w.])[+-]?\d+(?:\.\d+)?(?![\w]|\.\d)")


def geometric_mean(values):
    return math.exp(statistics.fmean(map(math.log, values)))


def derived(run):
    """Yield what rows compute from a run's values, by other code than theirs: ratios, means, counts."""
    values = [v for v in run.values if v.value is not None]
    times = {(v.case, v.series): v.value for v in values if v.quantity == "time"}
    for one, other in (("library", "Roller"), ("axes not fused", "as constructed")):
        speeds = {case: t / times[case, other] for (case, series), t in times.items()
                  if series == one and (case, other) in times}  # fmt: skip
        yield from (*speeds.values(), len(speeds))
        if speeds:
            yield geometric_mean(list(speeds.values()))
    sets = {}
    for (case, series), took in times.items():
        if series == "Roller" and (found := re.fullmatch(r"(S[MCR])_(\d+)", case)):
            sets.setdefault(found[1], {})[int(found[2])] = took
    for own in sets.values():
        first, last = min(own), max(own)
        yield last / first * own[first] / own[last]
    for quantity in dict.fromkeys(v.quantity for v in values if "error" in v.quantity):
        own = [v.value for v in values if v.quantity == quantity and v.series.startswith("line")]
        if own:
            yield from (statistics.fmean(own), max(own), len(own))


def ratios_of_cases(first, second):
    """Yield ratios of throughputs: of a case on two devices or in two ways, and of a model's batches."""
    speeds = [[v for v in run.values if v.quantity == "throughput" and v.value] for run in (first, second)]
    for one in speeds[0]:
        for other in speeds[1]:
            if one.case.partition(",")[0] == other.case.partition(",")[0]:
                yield from (other.value / one.value, other.value / one.value - 1)


def candidates(source):
    runs = [read(RESULTS / name) for name in source.split(", ")]
    for run in runs:
        yield from (v.value for v in run.values if v.value is not None)
        yield from derived(run)
        for v in run.values:  # numbers that name a case: batches, networks
            yield from (float(n) for n in NUMBER.findall(f"{v.case} {v.series} {v.note}"))
    yield from ratios_of_cases(runs[0], runs[-1])


def is_of(text, values):
    digits = len(text.partition(".")[2])
    return any(f"{scale * value:.{digits}f}" == text.lstrip("+") for value in values for scale in SCALES)


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


def test_every_figure_of_a_suite_is_a_value_of_its_file():
    of_suites = [row for _, row in ROWS if "suites/" in row.source]
    assert len(of_suites) >= 40
    for row in of_suites:
        found = list(candidates(row.source))
        strange = [n for n in NUMBER.findall(row.predicted) if not is_of(n, found)]
        assert not strange, (row.what, row.predicted, strange)


@pytest.mark.parametrize("path", RUNS, ids=lambda path: path.stem)
def test_a_committed_run_says_what_it_is_of(path):
    run = read(path)
    device = run.head["device"]
    assert path.stem == f"{run.head['suite']}-{device}" and not run.head["quick"]
    assert {v.kind for v in run.values} <= set(KINDS)
    assert all(v.note for v in run.values if v.value is None)
    assert path.stat().st_size < 300_000


def test_a_run_that_lacks_a_value_says_so():
    assert value_of("operators-v100", "nothing", "time", "Roller").note == "not in operators-v100"
    assert value_of("nothing", "M0", "time", "Roller").note == "no run nothing is committed"
