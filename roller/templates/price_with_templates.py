"""Prices batches and programs with the templates for the device's kind; the templates are loaded on first use."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from roller.core.smallest_positions import smallest_positions
from roller.hardware import DeviceSpec
from roller.perf.estimate import Estimate
from roller.perf.expected_errors import prediction_error, unconfirmed_mechanisms
from roller.perf.term_tree import Term
from roller.perf.tile_batch import TileBatch, batch_of, shared_vector_axis
from roller.tile.geometry import Floats
from roller.tile.program import RProgram

#: Number of rows that are priced before the bounds of the others are compared.
_PRICED_FIRST = 192


def price(batch: TileBatch, spec: DeviceSpec) -> Mapping[str, Floats]:
    """Return ``seconds`` and all terms of a batch, keyed by name, as arrays of shape ``(N,)``."""
    terms: Mapping[str, Floats] = spec.traits.module_for("templates").price(batch, spec)
    return terms


def best_rows(
    batch: TileBatch, spec: DeviceSpec, count: int, limit_s: float = float("inf"), always: bool = False
) -> list[tuple[float, int]]:
    """Return ``(seconds, row)`` for the ``count`` fastest programs that fit the device, fastest first."""
    # The result is exact, although most rows are only bounded from below: after the most promising rows have been
    # priced in full, a row whose bound exceeds the ``count``-th best time, or ``limit_s``, cannot be among the best.
    # With ``always``, the best program is returned even if it takes longer than ``limit_s``.
    rows, known = np.arange(len(batch)), batch.stored_seconds(spec)
    bounded = known is None and len(batch) > _PRICED_FIRST
    bound = spec.traits.module_for("templates").lower_bound_s(batch, spec) if bounded else None
    if known is not None:
        seconds = known
    elif bound is not None:
        rows = rows if always else np.flatnonzero(bound <= limit_s)
        promising = smallest_positions(bound[rows], _PRICED_FIRST)
        first, later = rows[promising], np.delete(rows, promising)
        if not len(first):
            return []
        seconds = price(batch.take(first), spec)["seconds"]
        last = min(count, len(first)) - 1
        limit = min(limit_s, np.partition(seconds, last)[last])
        limit = max(limit, seconds.min()) if always else limit
        later = later[bound[later] <= limit]
        if len(later):
            seconds = np.concatenate([seconds, price(batch.take(later), spec)["seconds"]])
        rows = np.concatenate([first, later])
    else:
        seconds = np.asarray(price(batch, spec)["seconds"])
    order = np.lexsort((rows, seconds))[:count]
    order = order[np.isfinite(seconds[order])]
    return list(zip(seconds[order].tolist(), rows[order].tolist(), strict=True))


def estimate_programs(programs: Sequence[RProgram], spec: DeviceSpec, warm: tuple[str, ...] = ()) -> list[Estimate]:
    """Return the estimates of programs, in the same order, including the cost of storage padding and bank conflicts."""
    # ``warm``: inputs that an earlier kernel left in the shared cache.
    out: dict[int, Estimate] = {}
    for members, batch, terms in _groups_priced_together(programs, spec, warm):
        out.update({n: _estimate(terms, row, spec, batch) for row, n in enumerate(members)})
    return [out[n] for n in range(len(programs))]


def estimate_fastest(
    programs: Sequence[RProgram], spec: DeviceSpec, warm: tuple[str, ...] = ()
) -> tuple[int, Estimate]:
    """Return the position and the estimate of the fastest program (of the first one if several are equally fast)."""
    found = []
    for members, batch, terms in _groups_priced_together(programs, spec, warm):
        row = int(np.argmin(terms["seconds"]))
        found.append((float(terms["seconds"][row]), members[row], terms, row, batch))
    _, place, terms, row, batch = min(found, key=lambda x: x[:2])
    return place, _estimate(terms, row, spec, batch)


def _groups_priced_together(
    programs: Sequence[RProgram], spec: DeviceSpec, warm: tuple[str, ...]
) -> Iterator[tuple[list[int], TileBatch, Mapping[str, Floats]]]:
    """Yield the positions, the batch and the terms of each group of programs that are priced together."""
    groups: dict[tuple[Any, ...], list[int]] = {}
    for n, p in enumerate(programs):
        alike = (p.layers, p.constants, p.nontemporal, p.stages > 1, p.fragment, p.matrix_axes, p.open_axes)
        groups.setdefault((id(p.expr), p.structure, p.staged, shared_vector_axis(p), *alike), []).append(n)
    for members in groups.values():
        mine = [programs[n] for n in members]
        batch = replace(batch_of(mine), warm=warm)
        yield members, batch, spec.traits.module_for("templates").price_programs(batch, mine, spec)


def estimate_with_terms(
    program: RProgram, spec: DeviceSpec, block: Sequence[int] | None = None
) -> tuple[Estimate, Term]:
    """Return the estimate of one program and the tree of terms from which its predicted time is computed."""
    batch = batch_of([program])
    batch = batch if block is None else replace(batch, block=np.array([block], np.int64))
    device_module, details = spec.traits.module_for("templates"), list[dict[str, Any]]()
    terms = device_module.price_programs(batch, [program], spec, details)
    return _estimate(terms, 0, spec, batch), device_module.explained(details)


def estimate_with_block(
    program: RProgram, spec: DeviceSpec, block: Sequence[int], warm: tuple[str, ...] = ()
) -> Estimate:
    """Return the estimate of a GPU program whose blocks advance by ``block``, at most the extents that they cover."""
    batch = replace(batch_of([program]), block=np.array([block], np.int64), warm=warm)
    return _estimate(spec.traits.module_for("templates").price_programs(batch, [program], spec), 0, spec, batch)


def estimate_program(program: RProgram, spec: DeviceSpec, warm: tuple[str, ...] = ()) -> Estimate:
    """Return the estimate of one program."""
    return estimate_programs([program], spec, warm)[0]


def log_prices(programs: Sequence[RProgram], spec: DeviceSpec) -> Floats:
    """Return the logarithms of programs' predicted seconds; infinite for programs that do not fit the device."""
    return np.log([e.seconds for e in estimate_programs(programs, spec)])


def estimate_best(batch: TileBatch, spec: DeviceSpec) -> Estimate:
    """Return the estimate of a batch's fastest program, assuming the layout that is expected for it."""
    terms = price(batch, spec)
    return _estimate(terms, int(terms["seconds"].argmin()), spec, batch)


def _estimate(terms: Mapping[str, Floats], row: int, spec: DeviceSpec, batch: TileBatch) -> Estimate:
    values = {k: float(v[row]) for k, v in terms.items() if k not in ("seconds", "clock_hz")}
    competing = spec.traits.module_for("templates").BOTTLENECKS
    stages = {k: v for k, v in values.items() if k in competing}
    bottleneck = max(stages, key=lambda k: stages[k])[:-2]
    mechanisms = len(unconfirmed_mechanisms(batch, spec))
    error = prediction_error(spec, bottleneck, batch.fragment is not None, mechanisms)
    clock = float(terms["clock_hz"][row]) if "clock_hz" in terms else spec.clock_hz
    return Estimate(float(terms["seconds"][row]), bottleneck, tuple(values.items()), error, clock)
