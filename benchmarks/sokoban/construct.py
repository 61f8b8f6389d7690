"""The Sokoban policy: every tiling of the space, exactly pruned, ranked by the same model as construction.

Sokoban (Roller's predecessor) enumerates where Roller constructs. Here it is the yardstick: what it finds that
construction does not is what construction gives up. Misaligned tiles and bank conflicts are priced, not forbidden;
among programs of equal time the least footprint wins. Only what provably cannot be among the best is skipped:
construction's programs are the first incumbents, and a program whose lower bound is beyond the last of them is out.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import numpy as np

from benchmarks.sokoban.cpu import cpu_batches, cpu_contains
from benchmarks.sokoban.gpu import gpu_batches, gpu_contains
from benchmarks.sokoban.space import Tally
from roller.construction.constructor import (
    Candidate,
    construct_candidates,
    make_candidates,
    nothing_fits_error,
    program_from_row,
    spec_of_device_share,
)
from roller.errors import NoCandidateError, RollerError
from roller.expr import TensorExpr
from roller.hardware import DeviceSpec
from roller.perf.estimate import Estimate
from roller.perf.tile_batch import TileBatch
from roller.targets import CPU, GPU
from roller.templates import price_with_templates
from roller.templates.common.forms import canonical_forms
from roller.templates.common.options import ConstructOptions
from roller.templates.gpu.tiled.pipeline_and_order_variants import pipeline_variants_of_program
from roller.tile.geometry import Geometry
from roller.tile.program import RProgram

#: Programs that wait to be laid out before the best of them are.
_WAITING = 1024
#: Times are equal when they agree in six digits: what limits them is widened by that much.
_EQUAL = 1.00001

#: What enumerates the programs of a kind of device, and what says whether a program is among them.
_SPACES = {GPU.name: (gpu_batches, gpu_contains), CPU.name: (cpu_batches, cpu_contains)}


@dataclass(frozen=True)
class SokobanReport:
    """What a search did.

    Parameters
    ----------
    tilings
        Combinations of register tile, block (task) and reduction step in the space, before capacities are asked; split
        reductions and, on a CPU, non-temporal stores not counted.
    bounded
        Lower bounds evaluated, of whole groups of programs or of single ones.
    priced
        Programs priced in full.
    laid_out
        Programs whose storage padding was chosen, and which were priced with it.
    """

    tilings: int
    bounded: int
    priced: int
    laid_out: int


def sokoban_candidates(
    expr: TensorExpr, spec: DeviceSpec, options: ConstructOptions
) -> tuple[tuple[Candidate, ...], SokobanReport]:
    """Return the ``options.count`` best programs of the whole space, best estimate first, and what the search did.

    Raises
    ------
    NoCandidateError
        Where no program fits the device (or the padding allowed).
    """
    target = spec_of_device_share(spec, options)
    best = Best(target, options.count)
    with contextlib.suppress(NoCandidateError):  # construction may find none where enumeration does
        best.add(_constructed(expr, spec, replace(options, pipelining=False)))
    tally = search(expr, target, options, best)
    if options.pipelining and spec.traits.blocks:  # a choice per program found, not another space
        varied = [v for p, _ in best.programs() for v in pipeline_variants_of_program(p, target)]
        best.add(list(zip(varied, price_with_templates.estimate_programs(varied, target), strict=True)))
        with contextlib.suppress(NoCandidateError):
            best.add(_constructed(expr, spec, options))
    found = best.programs()
    if not found:
        raise nothing_fits_error(expr, spec, options)
    report = SokobanReport(tally.tilings, tally.bounded, tally.priced, best.laid_out)
    return make_candidates(found, expr, spec, options), report


def _constructed(expr: TensorExpr, spec: DeviceSpec, options: ConstructOptions) -> list[tuple[RProgram, Estimate]]:
    """Return construction's programs, without the names of relaxed rules."""
    found = construct_candidates(expr, spec, options)
    return [(replace(c.program, relaxed=()), c.estimate) for c in found]


def search(expr: TensorExpr, spec: DeviceSpec, options: ConstructOptions, best: Best) -> Tally:
    """Offer every program of the space that its bounds do not exclude to ``best``; return the counts."""
    tally = Tally()
    named = replace(options, constants=tuple(expr.inputs[n].name for n in options.constants_of(expr)))
    for form in canonical_forms(expr, options):
        for batch in _batches(Geometry.of(form), spec, named, best, tally):
            if len(batch):
                tally.priced += len(batch)
                best.offer(batch, np.asarray(price_with_templates.price(batch, spec)["seconds"]))
    best.settle()
    return tally


def check_kind(spec: DeviceSpec) -> None:
    """Refuse a device whose programs are not enumerated.

    Raises
    ------
    RollerError
        With the kinds that are.
    """
    if spec.kind not in _SPACES:
        raise RollerError(
            f"{spec.name}: expected a device of kind {' or '.join(_SPACES)}, whose programs Sokoban enumerates, got "
            f"kind '{spec.kind}'. Name another device."
        )


def _batches(
    geometry: Geometry, spec: DeviceSpec, options: ConstructOptions, best: Best, tally: Tally
) -> Iterator[TileBatch]:
    """Yield what of a form's programs may be among the best."""
    check_kind(spec)
    return _SPACES[spec.kind][0](geometry, spec, options, best.limit_s, tally)


@dataclass
class Best:
    """The best programs so far, laid out; others wait until enough have gathered.

    Parameters
    ----------
    spec
        The device.
    count
        Programs wanted.
    prune
        Whether :meth:`limit_s` excludes anything; without it a search prices every program.
    """

    spec: DeviceSpec
    count: int
    prune: bool = True
    laid_out: int = 0
    _found: dict[str, tuple[float, int, RProgram, Estimate]] = field(default_factory=dict)
    _waiting: list[tuple[float, int, TileBatch, int]] = field(default_factory=list)

    def limit_s(self) -> float:
        """Return the time of the last program wanted: slower ones are not among the best."""
        return self._last()[0] * _EQUAL if self.prune else float("inf")

    def programs(self) -> list[tuple[RProgram, Estimate]]:
        """Return the best programs and their estimates, best first; of equals the least footprint, then the text."""
        return [(p, e) for *_, p, e in sorted(self._found.values(), key=lambda x: (*x[:2], str(x[2])))]

    def add(self, programs: list[tuple[RProgram, Estimate]]) -> None:
        """Take laid out programs; only the best ``count`` stay."""
        for p, e in programs:
            if np.isfinite(e.seconds):
                self._found[str(p)] = (_rounded(e.seconds), footprint_bytes(p), p, e)
        kept = sorted(self._found.items(), key=lambda x: (*x[1][:2], x[0]))[: self.count]
        self._found = dict(kept)

    def offer(self, batch: TileBatch, seconds: np.ndarray) -> None:
        """Consider programs priced as a batch: with the fewest conflicts and transactions as expected.

        Storage padding and what conflicts remain make a program slower than that. Transactions counted one by one may
        be fewer than expected: that a program can gain by it is not foreseen.
        """
        rows = np.flatnonzero((seconds <= self._last()[0] * _EQUAL) & np.isfinite(seconds))
        tiles = batch.take(rows)
        g = batch.geometry
        layers = [tiles.register, tiles.block] if tiles.panel is None else [tiles.register, tiles.panel, tiles.block]
        footprint = sum((g.footprint_bytes(t) for t in layers), np.zeros(len(rows), np.int64))
        both = zip(seconds[rows].tolist(), footprint.tolist(), strict=True)
        self._waiting += [(_rounded(s), f, tiles, n) for n, (s, f) in enumerate(both)]
        if len(self._waiting) > _WAITING:
            self.settle()

    def settle(self) -> None:
        """Lay out what waits, best first, until nothing left can be among the best."""
        self._waiting.sort(key=lambda x: x[:2])
        for start in range(0, len(self._waiting), self.count):
            some = self._waiting[start : start + self.count]
            if some[0][:2] >= self._last():
                break
            programs = [program_from_row(b, i, self.spec) for _, _, b, i in some]
            self.laid_out += len(programs)
            self.add(list(zip(programs, price_with_templates.estimate_programs(programs, self.spec), strict=True)))
        self._waiting = []

    def _last(self) -> tuple[float, float]:
        """Time and footprint of the last program wanted; infinite while there are fewer."""
        return max(x[:2] for x in self._found.values()) if len(self._found) >= self.count else (np.inf, np.inf)


def _rounded(seconds: float) -> float:
    """Return a time to six digits: programs that differ in less are equals."""
    return float(f"{seconds:.5e}")


def footprint_bytes(program: RProgram) -> int:
    """Return F(T) of the tiles of all layers together, storage padding excluded."""
    g = Geometry.of(program.expr)
    return sum(int(g.footprint_bytes(np.array([extents], np.int64))[0]) for _, extents in program.tiles)


def contains(program: RProgram, spec: DeviceSpec, options: ConstructOptions | None = None) -> bool:
    """Whether a program of a canonical form is one that Sokoban enumerates for the device."""
    return spec.kind in _SPACES and _SPACES[spec.kind][1](program, spec, options or ConstructOptions())
