"""Resource changes: what the program of an unchanged device does on a changed one, beside one constructed for it.

Half the scratchpad, half and twice the memory bandwidth, half the units, half the registers: the device's own numbers
change and the program is constructed again, which takes milliseconds. All times are predicted.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator
from typing import Any

import roller
from benchmarks.cpu.cases import Case
from benchmarks.gpu.statistic import geometric_mean
from benchmarks.suites.compile_time import constructed, median
from benchmarks.suites.operator_sets import asked_for, cases_of_sets
from benchmarks.suites.suite import Request, Section, Suite
from benchmarks.suites.values import PREDICTED, Results, Value
from roller.errors import RollerError
from roller.hardware import DeviceSpec

KEPT, RECONSTRUCTED = "program of the unchanged device", "constructed again"
UNCHANGED, NO_FIT = "unchanged", "does not fit"
#: Operators of a quick run: each third.
_QUICK_STEP = 3
_BANDWIDTHS = (
    "bandwidth_bytes_per_s", "read_bandwidth_bytes_per_s", "triad_bandwidth_bytes_per_s",
    "bandwidth_per_teu_bytes_per_s",
)  # fmt: skip
_CAPACITIES = ("capacity_bytes", "usable_bytes")


def changed(spec: DeviceSpec) -> dict[str, DeviceSpec]:
    """Return the changed devices by what changed: of each change that the device has the numbers for.

    Examples
    --------
    >>> from roller.hardware import load_spec
    >>> list(changed(load_spec("cpu-avx512")))
    ['half of l2', 'half the bandwidth of dram', 'twice the bandwidth of dram', 'half the units']
    """
    tile = [layer for layer in spec.memory_layers if layer.tiled][-1]
    memory = spec.memory_layers[-1]
    found = {f"half of {tile.name}": _scaled(spec, f"memory_layers.{tile.name}", _CAPACITIES, tile, 0.5)}
    for word, factor in (("half", 0.5), ("twice", 2.0)):
        layer = f"memory_layers.{memory.name}"
        found[f"{word} the bandwidth of {memory.name}"] = _scaled(spec, layer, _BANDWIDTHS, memory, factor)
    if spec.units > 1:
        found["half the units"] = spec.share(spec.units // 2)
    if spec.limits.registers_per_unit:
        found["half the registers"] = _scaled(spec, "limits", ("registers_per_unit",), spec.limits, 0.5)
    return found


def _scaled(spec: DeviceSpec, path: str, names: tuple[str, ...], section: Any, factor: float) -> DeviceSpec:
    """Return the device with those numbers of a section times ``factor`` that it has, whole ones rounded down."""
    given = {name: getattr(section, name) for name in names if getattr(section, name) is not None}
    scaled = {
        f"{path}.{name}": int(value * factor) if isinstance(value, int) else value * factor
        for name, value in given.items()
    }
    return spec.with_overrides(scaled)


def predict(request: Request) -> Iterator[Value]:
    """Yield predicted times of both programs under each change, and the seconds that constructing again took."""
    found = asked_for(cases_of_sets("sokoban"), request)
    others = changed(request.spec)
    roller.construct(roller.ops.matmul(64, 64, 64), request.spec)  # first-use tables are no part of construction
    for case in found[::_QUICK_STEP] if request.quick else found:
        expr = case.expression(None)
        try:
            best = roller.construct(expr, request.spec, top_k=1)[0]
        except RollerError as error:
            yield Value(case.id, UNCHANGED, KEPT, None, "s", PREDICTED, note=str(error))
            continue
        yield Value(case.id, UNCHANGED, KEPT, best.estimate.seconds, "s", PREDICTED)
        for change, spec in others.items():
            yield _kept(case, change, lambda expr=expr, spec=spec, best=best: roller.predict(expr, spec, best.program))
            yield from _anew(case, change, expr, spec)


def _kept(case: Case, change: str, price: Callable[[], roller.Estimate]) -> Value:
    try:
        return Value(case.id, change, KEPT, price().seconds, "s", PREDICTED)
    except RollerError as error:
        return Value(case.id, change, KEPT, None, "s", PREDICTED, note=f"{NO_FIT}: {error}")


def _anew(case: Case, change: str, expr: roller.TensorExpr, spec: DeviceSpec) -> Iterator[Value]:
    try:
        found = constructed(expr, spec, 1)
    except RollerError as error:
        yield Value(case.id, change, RECONSTRUCTED, None, "s", PREDICTED, note=str(error))
        return
    yield Value(case.id, change, RECONSTRUCTED, found.programs[0].estimate.seconds, "s", PREDICTED)
    yield median(case.id, f"construction, {change}", RECONSTRUCTED, found.wall_s)


def gains(results: Results) -> dict[str, dict[str, float]]:
    """Return by change how many times as fast the program constructed again is, of operators whose old one fits."""
    found = {}
    for change in changes_of(results):
        kept, anew = results.of(change, KEPT), results.of(change, RECONSTRUCTED)
        found[change] = {case: (kept[case].value or 0) / (anew[case].value or 1) for case in kept if case in anew}
    return found


def changes_of(results: Results) -> list[str]:
    """Return the changes of a run, in their order."""
    return list(dict.fromkeys(v.quantity for v in results.values if v.series == RECONSTRUCTED and v.kind == PREDICTED))


def report(results: Results) -> Iterator[Section]:
    """Yield what constructing again is worth by change, and both programs of each operator."""
    unchanged, found = results.of(UNCHANGED), gains(results)
    rows = []
    for change, gain in found.items():
        lacking = [v for v in results.values if (v.quantity, v.series) == (change, KEPT) and v.value is None]
        anew = results.of(change, RECONSTRUCTED)
        slower = [(v.value or 0) / (unchanged[case].value or 1) for case, v in anew.items() if case in unchanged]
        seconds = [v.value or 0 for v in results.of(f"construction, {change}").values()]
        best = max(gain, key=lambda case: gain[case]) if gain else ""
        rows.append((
            change, str(len(anew)), f"{geometric_mean(slower):.3f}" if slower else "-", str(len(lacking)),
            f"{geometric_mean(gain.values()):.3f}" if gain else "-", f"{gain[best]:.3f} ({best})" if gain else "-",
            f"{1e3 * statistics.median(seconds):.1f}" if seconds else "-",
        ))  # fmt: skip
    columns = (
        "change", "operators", "time of the new program, times unchanged", "old programs that do not fit",
        "new program, times as fast as the old", "at most", "construction, measured here, ms",
    )  # fmt: skip
    yield "What constructing again is worth, predicted", columns, rows
    names = list(found)
    cells = [
        (case, f"{1e3 * (v.value or 0):.4g}", *(_both(results, case, change) for change in names))
        for case, v in unchanged.items()
    ]
    yield "Predicted ms: old program -> new program", ("operator", UNCHANGED, *names), cells


def _both(results: Results, case: str, change: str) -> str:
    both = [results.of(change, series).get(case) for series in (KEPT, RECONSTRUCTED)]
    old, new = (NO_FIT if v is None else f"{1e3 * (v.value or 0):.4g}" for v in both)
    return f"{old} -> {new}"


def draw(results: Results, figure: Any) -> None:
    """Draw how many times as fast the new programs are, by change; an old one that does not fit is a cross on top."""
    found, unchanged = gains(results), results.of(UNCHANGED)
    names, order = list(found), list(unchanged)
    axes = figure.subplots()
    most = max([1.1, *(g for gain in found.values() for g in gain.values())])
    for n, change in enumerate(names):
        places = {case: at + 0.8 * (n + 0.5) / len(names) - 0.4 for at, case in enumerate(order)}
        shown = [(places[case], found[change][case]) for case in order if case in found[change]]
        # From 1 on, so that a program that gains nothing has no bar.
        heights = [gain - 1 for _, gain in shown]
        axes.bar([at for at, _ in shown], heights, 0.8 / len(names), 1.0, color=f"C{n}", label=change)
        anew = results.of(change, RECONSTRUCTED)
        unfit = [places[case] for case in order if case in anew and case not in found[change]]
        axes.plot(unfit, [most * 1.03] * len(unfit), "x", color=f"C{n}", markersize=5)
    axes.axhline(1.0, color="black", linewidth=0.5)
    axes.set_xticks(range(len(order)), order, rotation=45, fontsize=8)
    axes.set(ylabel="new program, times as fast as the old")
    title = "what constructing again is worth, predicted (x: the old program does not fit)"
    axes.set_title(f"{results.head['device']} changed: {title}", fontsize=9)
    figure.legend(fontsize=7, loc="outside lower center", ncols=len(names))


SUITE = Suite(
    "resource-change", "A device whose resources change: old programs beside new ones (OSDI 2022)",
    "nothing: predicted for this processor too", predict, predict, report, draw,
    "Both programs are priced by the same model, on the changed device. A device of half the units has half the "
    "scratchpad and half the registers over all units, and the same memory bandwidth.",
)  # fmt: skip
