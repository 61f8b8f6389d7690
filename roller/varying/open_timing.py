"""Kernels of a range by their times: taken at some sizes, and between them predicted and scaled by what was found."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from roller import perf
from roller.expr import TensorExpr
from roller.hardware import DeviceSpec
from roller.varying.box import Sizes
from roller.varying.open_programs import OpenKernel, OpenProgram
from roller.varying.own_sizes import OwnSizes

#: Sizes kernels are timed at, seconds for them at each, and patience (s) with a busy machine.
_PLACES, _BUDGET_S, _PATIENCE_S = 6, 0.01, 0.1
#: Predicted seconds above which sizes are not timed: what is fastest there is so at smaller ones.
_LONG_S = 0.02
#: What a time that was not measured is taken for, over its prediction, beside the ratio of the others.
_UNMEASURED = 1.1
#: How fast what was found at some sizes stops to count with their distance: the power of it.
_FADES = 3

#: Natural logarithms of measured over predicted seconds, by the logarithms of sizes.
Found = Mapping[tuple[float, ...], float]


@dataclass(frozen=True)
class Costs:
    """What kernels cost at any sizes.

    Parameters
    ----------
    names
        Of the sizes whose distance counts.
    spec
        The device.
    found
        For each kernel what its times are over their predictions, where it was timed.
    """

    names: tuple[str, ...]
    spec: DeviceSpec
    found: tuple[Found, ...] = field(default=(), repr=False)

    def at(self, programs: Sequence[OpenProgram], sizes: Sizes) -> np.ndarray:
        """Return seconds of each program at some sizes; infinite where it takes none of them."""
        seconds = predicted(programs, sizes, self.spec)
        place = self._place(sizes)
        scales = [self._scale(self.found[n], place) if n < len(self.found) else None for n in range(len(programs))]
        known = [s for s in scales if s is not None]
        other = sum(known) / len(known) + math.log(_UNMEASURED) if known else 0.0
        return seconds * np.exp([other if s is None else s for s in scales])

    def _place(self, sizes: Sizes) -> tuple[float, ...]:
        return tuple(math.log(sizes[n]) for n in self.names)

    @staticmethod
    def _scale(found: Found, place: tuple[float, ...]) -> float | None:
        if not found:
            return None
        weights = {at: 1.0 / (1e-3 + math.dist(at, place) ** _FADES) for at in found}
        return sum(weights[at] * x for at, x in found.items()) / sum(weights.values())


def predicted(programs: Sequence[OpenProgram], sizes: Sizes, spec: DeviceSpec) -> np.ndarray:
    """Return the predicted seconds of programs at some sizes; infinite where one does not take them."""
    out = np.full(len(programs), np.inf)
    rows = [n for n, p in enumerate(programs) if p.takes(sizes)]
    shared: dict[TensorExpr, TensorExpr] = {}  # programs of one expression are priced together
    several = [programs[n].at(sizes) for n in rows]
    several = [replace(p, expr=shared.setdefault(p.expr, p.expr)) for p in several]
    if several:
        out[rows] = [e.seconds for e in perf.estimate_programs(several, spec)]
    return out


def timed(
    kernels: Sequence[OpenKernel], own: OwnSizes, grid: Sequence[Sizes], best: np.ndarray, spec: DeviceSpec,
    passing_bytes: int, seed: int,
) -> tuple[Costs, dict[int, str]]:  # fmt: skip
    """Time kernels at some sizes; return what they cost anywhere, and by position why some are wrong.

    Parameters
    ----------
    kernels
        Built and checked.
    own
        What they compute.
    grid, best
        Sizes, and the least predicted seconds at each.
    spec
        The device.
    passing_bytes
        What a model touches between two calls of a kernel: its constants come from behind a cache of that size.
    seed
        Of the inputs.
    """
    from roller.runtime.cpu_profile import Bench

    found: list[dict[tuple[float, ...], float]] = [{} for _ in kernels]
    names, wrong = tuple(own.box.ends), dict[int, str]()
    for sizes in places(names, [p for p, s in zip(grid, best, strict=True) if s < _LONG_S]):
        rows = [n for n, k in enumerate(kernels) if n not in wrong and k.takes(sizes)]
        if len(rows) < 2:
            continue
        expression = own.expression.at(sizes)
        bench = Bench(expression, seed, rotating_bytes=passing_bytes, patience_s=_PATIENCE_S)
        records = bench.profile({str(n): kernels[n].at(sizes, expression) for n in rows}, budget_s=_BUDGET_S)
        guesses = predicted([k.program for k in kernels], sizes, spec)
        disturbed = any(r.status == "doubtful" for r in records.values())  # then the times decide nothing
        for name, record in records.items():
            if record.status in ("wrong", "failed"):
                wrong[int(name)] = f"at {sizes}: {record.reason}"
            elif not disturbed and record.measured_s is not None and math.isfinite(guesses[int(name)]):
                place = tuple(math.log(sizes[n]) for n in names)
                found[int(name)][place] = math.log(record.measured_s / guesses[int(name)])
    return Costs(names, spec, tuple(found)), wrong


def places(names: Sequence[str], grid: Sequence[Sizes]) -> list[Sizes]:
    """Return few sizes of a grid, each as far from those before it as one can be."""
    if not grid:
        return []
    logs = np.array([[math.log(p[n]) for n in names] for p in grid])
    chosen = [int(logs.sum(axis=1).argmax())]
    while len(chosen) < min(_PLACES, len(grid)):
        off = np.stack([np.abs(logs - logs[n]).sum(axis=1) for n in chosen]).min(axis=0)
        if off.max() == 0:
            break
        chosen.append(int(off.argmax()))
    return [grid[n] for n in sorted(chosen)]
