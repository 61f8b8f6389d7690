"""Ten candidates of one operator lowered and built by the parallel pool, its start-up excluded: the limit is 2 s.

The operator is the paper's C0 for sm_70. Published: 13.3 s on average for ten candidates (Roller, OSDI 2022).
"""

from __future__ import annotations

import os
import statistics
import time
from typing import Annotated

import typer
from build_cuda import build_candidate
from common import JsonOption, check_outputs, operators, screen, write_json

import roller
from roller.backends.cuda import toolchain
from roller.hardware import load_spec
from roller.runtime.build_pool import build_all

#: Seconds all candidates may take, and the processors that is stated for.
LIMIT_S, WORKERS = 2.0, 2


def _processor_s() -> float:
    """Return the processor time of this process and its children that ended; what else runs here matters less to it."""
    used = os.times()
    return used.user + used.system + used.children_user + used.children_system


def main(
    operator: Annotated[str, typer.Option(help="Id of a row of operators.yaml.")] = "C0",
    device: Annotated[str, typer.Option("--device", "-d", help="A CUDA device spec.")] = "v100",
    candidates: Annotated[int, typer.Option(min=1)] = 10,
    workers: Annotated[int, typer.Option(min=1, help="Processes at a time.")] = WORKERS,
    repeats: Annotated[int, typer.Option(min=1, help="The fastest of so many counts: others use this machine.")] = 3,
    strict: Annotated[bool, typer.Option("--strict", help="Exit 1 above the limit.")] = False,
    json_path: JsonOption = None,
) -> None:
    """Construct the candidates, warm the pool, then time lowering and building all of them."""
    check_outputs(json_path)
    (row,), spec, out = operators(operator), load_spec(device), screen()
    if reason := toolchain.available():
        raise typer.BadParameter(reason)
    expr = roller.ops.from_spec(row)
    start = time.perf_counter()
    found = roller.construct(expr, spec, top_k=candidates)
    construct_s = time.perf_counter() - start
    jobs = {c.id: c for c in found}
    # Start-up: TVM's first lowering and the compiler's library; the pool's children inherit them.
    build_candidate(expr, found[0], spec, 0.0)
    seconds, processor, per_candidate = [], [], []
    for _ in range(repeats):
        start, used = time.perf_counter(), _processor_s()
        built = build_all(jobs, lambda c: build_candidate(expr, c, spec, 0.0), workers=workers)
        seconds.append(time.perf_counter() - start)
        processor.append(_processor_s() - used)
        bad = [r.record.reason for r in built.values() if r.value is None]
        if bad:
            raise typer.BadParameter(f"a candidate was not built: {bad[0]}")
        per_candidate = [r.value for r in built.values() if r.value is not None]
    lower = [v["lower_ms"] / 1e3 for v in per_candidate]
    build = [v["build_s"] for v in per_candidate]
    best = min(seconds)
    out.print(
        f"{operator} on {spec.name} ({spec.target['arch']}): {len(found)} candidates lowered and built in {best:.2f} s "
        f"(runs: {', '.join(f'{s:.2f}' for s in seconds)}; limit {LIMIT_S:g} s), {workers} processes, "
        f"{min(processor):.2f} s of processor time, load {os.getloadavg()[0]:.1f}"
    )
    out.print(
        f"construct {construct_s:.2f} s; per candidate: lower median {statistics.median(lower):.3f} s, "
        f"build median {statistics.median(build):.3f} s; {sum(v['spill_bytes'] > 0 for v in per_candidate)} spill"
    )
    figures = {
        "seconds": seconds,
        "processor_s": processor,
        "construct_s": construct_s,
        "lower_s": lower,
        "build_s": build,
    }
    what = {"operator": operator, "device": spec.name, "candidates": len(found), "workers": workers}
    write_json(json_path, {**what, **figures})
    if strict and best > LIMIT_S:
        raise typer.Exit(1)


if __name__ == "__main__":
    typer.run(main)
