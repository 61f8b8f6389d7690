"""Compares operators across devices: the time per call, and the cost of a million calls at given rates."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from roller.core.cache_location import cache_folder
from roller.expr import TensorExpr
from roller.hardware import DeviceSpec
from roller.insight.cost.kernel_prices import KernelPricer
from roller.insight.cost.operator_price import check_policy_is_known
from roller.insight.rate_card import RateCard
from roller.insight.sweep import check_picture_path
from roller.perf.matrix_unit_notes import notes_on_matrix_unit
from roller_runtime.core.display import seconds_text

#: Name of the row in which every operator is called once.
ALL = "all, once each"
_MILLION, _HOUR_S = 1e6, 3600.0


@dataclass(frozen=True)
class Cell:
    """One operator on one device; every time is predicted.

    Parameters
    ----------
    operator, text
        The operator's identifier, and the text of its expression.
    device
        Name of the specification.
    seconds
        Time of one call, replayed without a host, at the sustained clock.
    lower_s, upper_s
        ``seconds`` minus and plus the expected error.
    bound
        Resource that bounds the time: ``"compute"``, ``"dram"``, ``"latency"``, ...
    by
        Source of the priced program, ``"library"`` or ``"construct"``; ``"bytes"`` if no program fits the device, in
        which case the time is a lower bound: the time to move the tensors.
    price_per_million
        Cost of a million calls, in the user's currency; ``None`` if the device has no rate.
    fastest, cheapest
        Whether no other device is faster or cheaper, respectively. A device whose time is a lower bound is marked only
        if all times are lower bounds.
    """

    operator: str
    text: str
    device: str
    seconds: float
    lower_s: float
    upper_s: float
    bound: str
    by: str
    price_per_million: float | None = None
    fastest: bool = False
    cheapest: bool = False

    @property
    def is_bound(self) -> bool:
        """Whether the time, or part of it, is a lower bound: the time to move the tensors."""
        return "bytes" in self.by


@dataclass(frozen=True)
class Comparison:
    """Cells for all operators on all devices, grouped by operator; the totals of the devices come last.

    Parameters
    ----------
    policy
        Policy that chooses the kernels.
    devices, operators
        Names, in the requested order; if there are several operators, the last one is :data:`ALL`.
    cells
        The cells, grouped by operator.
    notes
        Notes on missing features of matrix units, and on devices without a rate.
    currency
        Currency of the rates; ``None`` without rates.
    """

    policy: str
    devices: tuple[str, ...]
    operators: tuple[str, ...]
    cells: tuple[Cell, ...]
    notes: tuple[str, ...] = ()
    currency: str | None = None

    def cell_of(self, operator: str, device: str) -> Cell:
        """Return the cell for an operator on a device."""
        return next(c for c in self.cells if (c.operator, c.device) == (operator, device))

    def to_dict(self) -> dict[str, Any]:
        """Return JSON-ready data."""
        return {
            "kind": "predicted", "policy": self.policy, "currency": self.currency, "devices": list(self.devices),
            "operators": list(self.operators), "cells": [asdict(c) for c in self.cells], "notes": list(self.notes),
        }  # fmt: skip

    def to_csv(self) -> str:
        """Return the cells as CSV with a header."""
        out = io.StringIO()
        rows = [asdict(c) | {"kind": "predicted", "currency": self.currency} for c in self.cells]
        writer = csv.DictWriter(out, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
        return out.getvalue()


def compare(
    operators: Mapping[str, TensorExpr],
    devices: Sequence[DeviceSpec],
    *,
    policy: str = "library",
    prices: RateCard | None = None,
    done: Callable[[str], None] = lambda name: None,
) -> Comparison:
    """Predict the times of operators on devices, at the sustained clock.

    Examples
    --------
    >>> from roller import ops
    >>> from roller.hardware import load_spec
    >>> found = compare({"relu": ops.elementwise("relu", (1 << 24,))}, [load_spec("a100"), load_spec("h100")])
    >>> [(c.device, c.bound, c.fastest) for c in found.cells]
    [('a100', 'dram', False), ('h100', 'dram', True)]
    """
    check_policy_is_known(policy)
    cells: list[Cell] = []
    notes: dict[str, None] = {}
    for spec in devices:
        kernels = KernelPricer(spec.sustained, policy, cache_folder() / "prices")
        kernels.price_expressions_in_parallel(operators.values())
        mine = [_price_cell(name, expr, spec, kernels) for name, expr in operators.items()]
        kernels.save()
        cells += [*mine, *([_sum_of_cells(mine)] if len(mine) > 1 else [])]
        notes |= dict.fromkeys(notes_on_matrix_unit(operators.values(), spec, ours=policy == "roller"))
        done(spec.name)
    unpriced = [s.name for s in devices if prices is not None and prices.per_hour(s.name) is None]
    if unpriced:
        notes[f"No price for {', '.join(unpriced)}: the cost is not shown."] = None
    names = (*operators, *([ALL] if len(operators) > 1 else ()))
    ordered = [_mark_best_devices([_add_cost(c, prices) for c in cells if c.operator == name]) for name in names]
    return Comparison(
        policy, tuple(s.name for s in devices), names, tuple(c for row in ordered for c in row), tuple(notes),
        None if prices is None else prices.currency,
    )  # fmt: skip


def _price_cell(name: str, expr: TensorExpr, spec: DeviceSpec, kernels: KernelPricer) -> Cell:
    found = kernels.price_expression(expr)
    return Cell(
        name, str(expr), spec.name, found.seconds, found.lower, found.upper, found.resource, found.provenance
    )  # fmt: skip


def _sum_of_cells(cells: Sequence[Cell]) -> Cell:
    """Return the total for one call of each operator, with the bound of the operator that takes longest."""
    longest = max(cells, key=lambda c: c.seconds)
    whole, low, high = (sum(getattr(c, n) for c in cells) for n in ("seconds", "lower_s", "upper_s"))
    by = ", ".join(dict.fromkeys(c.by for c in cells))
    return replace(longest, operator=ALL, text=ALL, seconds=whole, lower_s=low, upper_s=high, by=by)


def _add_cost(cell: Cell, prices: RateCard | None) -> Cell:
    hour = None if prices is None else prices.per_hour(cell.device)
    return cell if hour is None else replace(cell, price_per_million=cell.seconds * _MILLION * hour / _HOUR_S)


def _mark_best_devices(cells: Sequence[Cell]) -> list[Cell]:
    """Mark the fastest and the cheapest devices for one operator; mark lower bounds only if all times are bounds."""
    sure = [c for c in cells if not c.is_bound] or list(cells)
    fastest = min(c.seconds for c in sure)
    least = min((c.price_per_million for c in sure if c.price_per_million is not None), default=None)
    return [
        replace(
            c, fastest=c in sure and c.seconds == fastest,
            cheapest=c in sure and least is not None and c.price_per_million == least,
        )
        for c in cells
    ]  # fmt: skip


@dataclass(frozen=True)
class ChartTheme:
    """Colours of a chart."""

    back: str
    text: str
    grid: str
    devices: tuple[str, ...]


#: Colours that people with colour blindness can distinguish, after Okabe and Ito.
THEMES = {
    "light": ChartTheme(
        "#ffffff", "#1f2328", "#d0d7de", ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#8a6d00", "#4b4b4b")
    ),
    "dark": ChartTheme(
        "#0d1117", "#e6edf3", "#30363d", ("#56b4e9", "#ff9955", "#2fd3a5", "#e69fd0", "#f0e442", "#b0b0b0")
    ),
}
_MARKS = ("o", "s", "D", "^", "v", "P")
#: Sizes in inches: height of an operator's row, height added per device, height of both margins, and default width.
_ROW, _DEVICE, _FRAME, WIDTH = 0.2, 0.09, 1.5, 10.0
#: Ratio between the ends of an axis above which only powers of ten are labelled.
_DECADES = 50


def draw_comparison(found: Comparison, path: str | Path, *, theme: str = "light", width: float = WIDTH) -> None:
    """Draw times and costs for a slide, with one row per operator and one mark per device."""
    check_picture_path(path)
    import matplotlib as mpl
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    colours = THEMES[theme]
    settings = {
        "text.color": colours.text, "axes.labelcolor": colours.text, "xtick.color": colours.text,
        "ytick.color": colours.text, "axes.edgecolor": colours.grid, "font.size": 10, "svg.fonttype": "none",
        "svg.hashsalt": "roller",
    }  # fmt: skip
    with mpl.rc_context(settings):
        priced = any(c.price_per_million is not None for c in found.cells)
        figure = Figure(
            figsize=(width, _FRAME + (_ROW + _DEVICE * len(found.devices)) * len(found.operators)), layout="constrained"
        )
        FigureCanvasAgg(figure)
        figure.set_facecolor(colours.back)
        panels = figure.subplots(1, 2 if priced else 1, sharey=True, squeeze=False)[0]
        _draw_panel(panels[0], found, colours, lambda c: (c.lower_s, c.seconds, c.upper_s))
        panels[0].set_xlabel("time of a call")
        panels[0].xaxis.set_major_formatter(lambda value, _: _without_trailing_zeros(seconds_text(value)))
        if priced:
            _draw_panel(panels[1], found, colours, _cost_with_interval)
            panels[1].set_xlabel(f"{found.currency} per million calls")
            panels[1].xaxis.set_major_formatter(lambda value, _: f"{value:g}")
        marks, names = panels[0].get_legend_handles_labels()
        figure.legend(marks, names, loc="outside upper center", ncols=min(len(names), 6), frameon=False)
        whose = "kernels of libraries" if found.policy == "library" else "constructed kernels"
        figure.supxlabel(f"Predicted, {whose}, at the clock that lasts; lines: one expected error", fontsize=8)
        metadata = {"Date": None} if Path(path).suffix == ".svg" else None
        figure.savefig(path, metadata=metadata, dpi=150, facecolor=colours.back)


def _without_trailing_zeros(text: str) -> str:
    """Return a time without trailing zeros: ``"10 us"`` for ``"10.00 us"``."""
    number, _, unit = text.partition(" ")
    return f"{float(number):g} {unit}"


def _cost_with_interval(cell: Cell) -> tuple[float, float, float] | None:
    if cell.price_per_million is None:
        return None
    each = cell.price_per_million / cell.seconds
    return cell.lower_s * each, cell.price_per_million, cell.upper_s * each


def _draw_panel(
    axes: Any, found: Comparison, colours: ChartTheme, value: Callable[[Cell], tuple[float, float, float] | None]
) -> None:
    """Draw one row per operator, with one mark per device and its expected error as a line."""
    from matplotlib.ticker import LogLocator, NullFormatter

    rows = {name: n for n, name in enumerate(found.operators)}
    shift = 0.6 / max(1, len(found.devices))
    for k, device in enumerate(found.devices):
        colour, mark = (x[k % len(x)] for x in (colours.devices, _MARKS))
        named = device
        for cell in _cells_of_device(found, device):
            spread = value(cell)
            if spread is None:
                continue
            low, middle, high = spread
            y = rows[cell.operator] + (k - (len(found.devices) - 1) / 2) * shift
            axes.plot([low, high], [y, y], color=colour, linewidth=1, alpha=0.6)
            axes.plot([middle], [y], mark, color=colour, markersize=6, linestyle="none", label=named)
            named = "_"
    axes.set_xscale("log")
    low, high = axes.get_xlim()
    axes.xaxis.set_major_locator(LogLocator(subs=(1.0,) if high > _DECADES * low else (1.0, 2.0, 5.0)))
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.set_yticks(list(rows.values()), list(rows))
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.set_facecolor(colours.back)
    axes.grid(axis="x", color=colours.grid, linewidth=0.6)
    axes.set_axisbelow(True)
    for n in range(1, len(rows)):
        axes.axhline(n - 0.5, color=colours.grid, linewidth=0.4)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.tick_params(axis="y", length=0)


def _cells_of_device(found: Comparison, device: str) -> Iterable[Cell]:
    return (c for c in found.cells if c.device == device)
