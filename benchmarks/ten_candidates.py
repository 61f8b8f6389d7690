"""Ten candidates of one operator lowered and built by the parallel pool, its start-up excluded: the limit is 2 s.

The operator is the paper's C0 for sm_70. Published: 13.3 s on average for ten candidates (Roller, OSDI 2022).
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Annotated

import typer

import roller
from benchmarks.build_cuda import build_candidate
from benchmarks.common import JsonOption, check_outputs, operators, screen, write_json
from roller.backends.cuda import toolchain
from roller.compiler.pipeline import Candidate
from roller.errors import BuildError
from roller.hardware import DeviceSpec, load_spec
from roller.runtime.build_pool import build_all

#: Seconds all candidates may take, and the processors that is stated for.
LIMIT_S, WORKERS = 2.0, 2


@dataclass(frozen=True)
class Built:
    """Seconds of lowering and building all candidates of an operator.

    Parameters
    ----------
    seconds, processor_s
        Of each repetition: by the clock, and of all processors together.
    lower_s, build_s
        Of each candidate, in the last repetition.
    spills
        Candidates that spill registers.
    """

    seconds: tuple[float, ...]
    processor_s: tuple[float, ...]
    lower_s: tuple[float, ...]
    build_s: tuple[float, ...]
    spills: int


def build_times(
    expr: roller.TensorExpr, found: Sequence[Candidate], spec: DeviceSpec, workers: int = WORKERS, repeats: int = 1
) -> Built:
    """Lower and build all candidates in the parallel pool, its start-up excluded.

    Raises
    ------
    BuildError
        A candidate cannot be built.
    """
    # Start-up: TVM's first lowering and the compiler's library; the pool's children inherit them.
    build_candidate(expr, found[0], spec, 0.0)
    jobs, seconds, processor, each = {c.id: c for c in found}, [], [], []
    for _ in range(repeats):
        start, used = time.perf_counter(), _processor_s()
        built = build_all(jobs, lambda c: build_candidate(expr, c, spec, 0.0), workers=workers)
        seconds.append(time.perf_counter() - start)
        processor.append(_processor_s() - used)
        bad = [r.record.reason for r in built.values() if r.value is None]
        if bad:
            raise BuildError(f"{expr.name}: expected {len(jobs)} candidates that build, got '{bad[0]}'.")
        each = [r.value for r in built.values() if r.value is not None]
    return Built(
        tuple(seconds), tuple(processor), tuple(v["lower_ms"] / 1e3 for v in each),
        tuple(v["build_s"] for v in each), sum(v["spill_bytes"] > 0 for v in each),
    )  # fmt: skip


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
    built = build_times(expr, found, spec, workers, repeats)
    best = min(built.seconds)
    out.print(
        f"{operator} on {spec.name} ({spec.target['arch']}): {len(found)} candidates lowered and built in {best:.2f} s "
        f"(runs: {', '.join(f'{s:.2f}' for s in built.seconds)}; limit {LIMIT_S:g} s), {workers} processes, "
        f"{min(built.processor_s):.2f} s of processor time, load {os.getloadavg()[0]:.1f}"
    )
    out.print(
        f"construct {construct_s:.2f} s; per candidate: lower median {statistics.median(built.lower_s):.3f} s, "
        f"build median {statistics.median(built.build_s):.3f} s; {built.spills} spill"
    )
    what = {"operator": operator, "device": spec.name, "candidates": len(found), "workers": workers}
    write_json(json_path, {**what, "construct_s": construct_s, **asdict(built)})
    if strict and best > LIMIT_S:
        raise typer.Exit(1)


if __name__ == "__main__":
    typer.run(main)
