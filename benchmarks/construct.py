"""Construct all 119 operators for several devices: time, number of programs, programs priced. No TVM, no device."""

from __future__ import annotations

import statistics
import sys
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated

import typer
from common import FilterOption, JsonOption, Row, check_outputs, operators, screen, table, write_json
from construct_against import compare, paired_row

import roller
from roller.hardware import DeviceSpec, load_spec
from roller.templates.common.forms import canonical_forms
from roller.templates.cpu.registry import pool as cpu_pool
from roller.templates.gpu import programs_of_form as gpu_pool
from roller.tile.geometry import Geometry

#: Devices of the issue and the profile CPU tests use.
DEVICES = "v100,k80,mi50,a100,h200,cpu-avx512"
#: Limits on construction time (milliseconds); printed beside the results.
MEDIAN_MS, WORST_MS = 20.0, 200.0


@dataclass(frozen=True)
class Constructed:
    """What construction gave for one operator, in wall and processor time.

    ``programs_of_form`` counts the programs priced (0: not counted).
    """

    id: str
    ms: float
    cpu_ms: float
    programs: int
    relaxed: int
    pool: int


def construct(row: Row, spec: DeviceSpec, options: roller.ConstructOptions, count_pool: bool) -> Constructed:
    """Construct one operator; a CPU gets batch 1."""
    expr = roller.ops.from_spec(row, batch=1 if spec.kind == "cpu" else None)
    start, cpu_start = time.perf_counter(), time.process_time()
    found = roller.construct(expr, spec, options=options)
    ms, cpu_ms = (time.perf_counter() - start) * 1e3, (time.process_time() - cpu_start) * 1e3
    if len({str(c.program) for c in found}) != len(found):
        raise SystemExit(f"{row['id']} on {spec.name}: programs repeat")
    relaxed = sum(bool(c.program.relaxed) for c in found)
    pool = pool_size(expr, spec, options) if count_pool else 0
    return Constructed(row["id"], ms, cpu_ms, len(found), relaxed, pool)


def pool_size(expr: roller.TensorExpr, spec: DeviceSpec, options: roller.ConstructOptions) -> int:
    """Return the distinct programs that construction prices, over all canonical forms."""
    forms = canonical_forms(expr, options)
    share = replace(options, pool=max(options.top_k, options.pool // len(forms)))
    pools = gpu_pool if spec.kind == "gpu" else cpu_pool
    return sum(len(batch) for form in forms for batch in pools(Geometry.of(form), spec, share))


def summary_row(name: str, results: list[Constructed]) -> tuple[str, ...]:
    """Return the table's line of one device."""
    worst = max(results, key=lambda r: r.ms)
    pools = [r.pool for r in results]
    return (
        name,
        str(len(results)),
        f"{statistics.median(r.ms for r in results):.1f}",
        f"{worst.ms:.1f} ({worst.id})",
        f"{statistics.median(r.cpu_ms for r in results):.1f}",
        f"{max(r.cpu_ms for r in results):.1f}",
        str(sum(r.programs for r in results)),
        str(sum(r.relaxed for r in results)),
        f"{statistics.median(pools):.0f}",
        f"{min(pools)}..{max(pools)}",
    )


def main(
    devices: Annotated[str, typer.Option("--devices", "-d", help="Comma-separated device specs.")] = DEVICES,
    pattern: FilterOption = "*",
    top_k: Annotated[int, typer.Option("--top-k", "-k", min=1)] = 10,
    pools: Annotated[bool, typer.Option(help="Also count the programs priced (constructs the pool again).")] = True,
    against: Annotated[Path | None, typer.Option(help="Another checkout: compare with it, in turn, instead.")] = None,
    json_path: JsonOption = None,
) -> None:
    """Construct every operator for every device; exit 1 where TVM got imported."""
    check_outputs(json_path)
    rows, options, out = operators(pattern), roller.ConstructOptions(top_k=top_k), screen()
    if against is not None:
        paired = compare(rows, [d.strip() for d in devices.split(",")], top_k, against)
        columns = ("device", "median CPU ms", "other", "median of ratios", "other programs or times for")
        out.print(table(f"top {top_k}, beside {against}", columns, (paired_row(n, r) for n, r in paired.items())))
        write_json(json_path, {name: [asdict(r) for r in found] for name, found in paired.items()})
        return
    results: dict[str, list[Constructed]] = {}
    for spec in (load_spec(d.strip()) for d in devices.split(",")):
        construct(rows[0], spec, options, False)  # imports and first-use tables are no part of construction
        results[spec.name] = [construct(r, spec, options, pools) for r in rows]
    columns = ("device", "operators", "median ms", "worst ms", "median CPU ms", "worst CPU ms", "programs", "relaxed",
               "pool median", "pool")  # fmt: skip
    out.print(table(f"top {top_k}; limits: median {MEDIAN_MS:.0f} ms, worst {WORST_MS:.0f} ms", columns,
                    (summary_row(n, r) for n, r in results.items())))  # fmt: skip
    for name, found in results.items():
        fewer = [f"{r.id}: {r.programs}" for r in found if r.programs < top_k]
        out.print(f"{name}: fewer than {top_k} programs exist for: {', '.join(fewer) or 'none'}")
    imported = "tvm" in sys.modules
    out.print(f"tvm imported: {'yes' if imported else 'no'}")
    write_json(json_path, {name: [asdict(r) for r in found] for name, found in results.items()})
    if imported:
        raise typer.Exit(1)


if __name__ == "__main__":
    typer.run(main)
