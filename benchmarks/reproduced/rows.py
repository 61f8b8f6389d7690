"""A row of the page of reproductions, and where its figures come from: the files of ``results``."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.common import HERE
from benchmarks.suites.values import PREDICTED, Results, Value, read
from roller.hardware import load_spec

RESULTS = HERE / "results"
#: Why there is no measured figure.
NO_GPU, NO_USERS = "no: no GPU is here", "no: no users were asked"
NO_FIGURE = "no figure in the sources at hand"
#: How the numbers of a cell follow from the values used: each by itself; of pairs, the first over the second.
EACH, ENDS, MEAN, LARGEST = "each", "ends", "mean", "largest"
RATIO, CHANGE, RATIO_ENDS, GEOMETRIC = "ratio", "relative change", "ends of ratios", "geometric mean of ratios"
#: Of two times: the ratio of rates, where the work grows as the numbers of the ids do.
RATES = "ratio of rates"
#: A run, and the key of one of its values.
Used = tuple[str, tuple[str, str, str, str]]


class Row(NamedTuple):
    """One published figure beside ours.

    Parameters
    ----------
    what, theirs
        The figure, and its published value.
    measured, predicted
        Ours; where there is none, ``"no: "`` and the reason.
    source
        Files of ``results`` that ours is read from, ``"-"`` for none.
    used
        Values of committed runs from which the predicted figure is computed.
    by
        How it is computed from them, such as :data:`EACH`.
    """

    what: str
    theirs: str
    measured: str
    predicted: str
    source: str
    used: tuple[Used, ...] = ()
    by: str = EACH


@cache
def results(name: str) -> Any:
    """Return a JSON file of ``results``."""
    return json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))


@cache
def suite(name: str) -> Results:
    """Return a committed run of a suite, ``"forecast-v100"``; one without values where none is committed."""
    path = _path(name)
    return read(path) if path.is_file() else Results({}, ())


def _path(name: str) -> Path:
    return RESULTS / "suites" / f"{name}.json"


def source_of(*names: str) -> str:
    """Return the files of runs as a row names them, those that are committed."""
    return ", ".join(f"suites/{name}.json" for name in names if _path(name).is_file()) or "-"


def value_of(run: str, case: str, quantity: str, series: str, kind: str = PREDICTED) -> Value:
    """Return a value of a committed run; one without a value where the run lacks it."""
    found = suite(run).values
    note = f"not in {run}" if found else f"no run {run} is committed"
    missing = Value(case, quantity, series, None, "", kind, note=note)
    return next((v for v in found if v.key == (case, quantity, series, kind)), missing)


def used(run: str, *values: Value) -> tuple[Used, ...]:
    """Return the values of a run as those that a row uses."""
    return tuple((run, value.key) for value in values)


def pairs(run: str, cases: Iterable[str], over: str, under: str) -> tuple[Used, ...]:
    """Return two predicted times of each case as those that a row uses."""
    return tuple((run, (case, "time", series, PREDICTED)) for case in cases for series in (over, under))


def device_title(name: str) -> str:
    """Return the device as its maker names it.

    Examples
    --------
    >>> device_title("a100")
    'NVIDIA A100 SXM4 40 GB'
    """
    return load_spec(name).description.partition(" (")[0]


def ends(values: Sequence[float], spell: Callable[[float], str]) -> str:
    """Return the least and the most of values, or one where both are spelled the same.

    Examples
    --------
    >>> ends([0.931, 0.929], "{:.2f}".format), ends([1.0, 3.0], "{:.0f}".format)
    ('0.93', '1 to 3')
    """
    return " to ".join(dict.fromkeys((spell(min(values)), spell(max(values)))))


def cell(value: Value, spell: Callable[[float], str]) -> str:
    """Return a value, or why there is none, as a cell."""
    return f"no: {value.note}" if value.value is None else spell(value.value)


def cells(found: Sequence[Value], spell: Callable[[float], str]) -> str:
    """Return several values as a cell, or once why there is none."""
    return ", ".join(dict.fromkeys(cell(v, spell) for v in found) if all(v.value is None for v in found)
                     else (cell(v, spell) for v in found))  # fmt: skip


def percent(share: float, digits: int = 1) -> str:
    """Return a share of 1 in percent."""
    return f"{round(100 * share, digits) + 0.0:.{digits}f} %"  # no minus zero


def signed_percent(share: float) -> str:
    """Return a relative change in percent, with its sign."""
    return f"{100 * share:+.1f} %"


def share_of(values: Sequence[float], least: float) -> str:
    """Return the share of values that are at least one."""
    return percent(sum(value >= least for value in values) / len(values))
