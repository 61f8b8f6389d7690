"""One operator by both policies: predicted best, programs considered and priced, processor time, excluding rules."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from typing import Any
from unittest.mock import patch

import roller
from benchmarks.common import Row
from benchmarks.sokoban.construct import sokoban_candidates
from benchmarks.sokoban.rules import excluding_rules
from roller.hardware import DeviceSpec
from roller.templates import price_with_templates
from roller.templates.common.forms import canonical_forms
from roller.templates.cpu.registry import pool as cpu_pool
from roller.templates.gpu import programs_of_form as gpu_pool
from roller.tile.geometry import Geometry

#: From this ratio on the report says what excluded the better program.
WORSE = 1.02


@dataclass(frozen=True)
class Compared:
    """Both policies on one operator.

    Parameters
    ----------
    id
        Of the operator.
    roller_s, sokoban_s
        Predicted seconds of the best programs.
    roller_considered, sokoban_considered
        Programs in construction's pool, and tilings of Sokoban's space.
    roller_priced, sokoban_priced
        Programs priced in full: what each one's bounds did not exclude.
    roller_cpu_s, sokoban_cpu_s
        Processor time.
    roller_program, sokoban_program
        The best programs.
    rules
        What kept construction from Sokoban's best program, where that is better by more than :data:`WORSE`.
    """

    id: str
    roller_s: float
    sokoban_s: float
    roller_considered: int
    sokoban_considered: int
    roller_priced: int
    sokoban_priced: int
    roller_cpu_s: float
    sokoban_cpu_s: float
    roller_program: str
    sokoban_program: str
    rules: tuple[str, ...] = ()

    @property
    def ratio(self) -> float:
        """Construction's predicted best over Sokoban's: 1 where nothing is given up."""
        return self.roller_s / self.sokoban_s

    def to_dict(self) -> dict[str, Any]:
        """Return JSON-ready data; :meth:`from_dict` is the inverse."""
        return asdict(self)

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Compared:
        """Rebuild from :meth:`to_dict` data, or JSON made of it."""
        return cls(**{**data, "rules": tuple(data["rules"])})


def expression(row: Row, spec: DeviceSpec) -> roller.TensorExpr:
    """Return the operator of a row: at its own batch on a GPU, at batch 1 on a CPU."""
    return roller.ops.from_spec(row, batch=1 if spec.kind == "cpu" else None)


def tilings(spec: DeviceSpec) -> roller.ConstructOptions:
    """Return options under which construction, too, chooses among tilings alone.

    Sokoban's space holds no programs that walk windows, no pipelines and no matrix units; of Winograd's algorithm it
    holds what a CPU runs.
    """
    return roller.ConstructOptions(windows=False, pipelining=False, matrix_units=False, winograd=spec.kind == "cpu")


def compare(name: str, expr: roller.TensorExpr, spec: DeviceSpec) -> Compared:
    """Construct and enumerate one expression, both without what Sokoban's space does not hold."""
    options = tilings(spec)
    with counted_prices() as counted:
        start = time.process_time()
        mine = roller.construct(expr, spec, options=options)[0]
        roller_cpu_s = time.process_time() - start
    start = time.process_time()
    found, report = sokoban_candidates(expr, spec, replace(options, top_k=1))
    sokoban_cpu_s = time.process_time() - start
    best = found[0]
    worse = mine.estimate.seconds > WORSE * best.estimate.seconds
    share = _share(expr, options)
    return Compared(
        name, mine.estimate.seconds, best.estimate.seconds, considered(expr, spec, options), report.tilings,
        sum(counted), report.priced, roller_cpu_s, sokoban_cpu_s, str(mine.program), str(best.program),
        excluding_rules(best.program, spec, share) if worse else (),
    )  # fmt: skip


@contextmanager
def counted_prices() -> Iterator[list[int]]:
    """Collect the sizes of the batches that ranking prices in full."""
    counted: list[int] = []
    price = price_with_templates.price

    def counting(batch: Any, spec: DeviceSpec) -> Any:
        counted.append(len(batch))
        return price(batch, spec)

    with patch.object(price_with_templates, "price", counting):
        yield counted


def _share(expr: roller.TensorExpr, options: roller.ConstructOptions) -> roller.ConstructOptions:
    """Return the options of one canonical form: forms share the pool."""
    return replace(options, pool=max(options.count, options.pool // len(canonical_forms(expr, options))))


def considered(expr: roller.TensorExpr, spec: DeviceSpec, options: roller.ConstructOptions) -> int:
    """Return the programs that construction considers, over all canonical forms."""
    pools, share = gpu_pool if spec.kind == "gpu" else cpu_pool, _share(expr, options)
    return sum(len(b) for form in canonical_forms(expr, share) for b in pools(Geometry.of(form), spec, share))
