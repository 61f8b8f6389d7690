"""Co-scheduling on this machine's cores: ``python -m benchmarks.coschedule``; predicted and measured, side by side.

Compiles a network twice, with independent kernels one after another and side by side, and runs the two in turn, so that
whatever else the machine does meets both alike. A ratio above 1 says that side by side is faster.
"""

from __future__ import annotations

import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from benchmarks.models.feeds import random_feeds
from benchmarks.models.lstm import Lstm, build
from roller.models.compile import compile_for_device, partition_graph, read_folded_graph
from roller.models.compiled_model import CompiledModel
from roller.models.options import ModelOptions
from roller.models.session.start_session import start_session
from roller_runtime.plan.execution_plan import Plan
from roller_runtime.plan.program_steps import ParallelGroup, Run, Step


def predicted_s(made: CompiledModel) -> float:
    """Return the predicted seconds of a plan: kernels one after another, sections as their longest lane."""
    sync_s = made.spec.execution.fork_s or made.spec.execution.launch_s

    def seconds(step: Step) -> float:
        if isinstance(step, ParallelGroup):
            return max(sum(map(seconds, lane)) for lane in step.lanes) + sync_s
        return made.plan.predicted_s[step.kernel] if isinstance(step, Run) else 0.0

    return sum(map(seconds, made.plan.program.steps))


def in_turn(one: Callable[[], Any], other: Callable[[], Any], rounds: int) -> dict[str, float]:
    """Return medians and least seconds of both, and the median ratio of pairs that ran next to each other."""
    times: tuple[list[float], list[float]] = ([], [])
    for n in range(rounds + 3):
        pair = (0, 1) if n % 2 == 0 else (1, 0)
        for which in pair:
            start = time.perf_counter()
            (one, other)[which]()
            if n >= 3:
                times[which].append(time.perf_counter() - start)
    ratios = [a / b for a, b in zip(*times, strict=True)]
    return {
        "measured_serial_s": statistics.median(times[0]), "measured_together_s": statistics.median(times[1]),
        "measured_ratio": statistics.median(ratios), "best_serial_s": min(times[0]), "best_together_s": min(times[1]),
        "load": os.getloadavg()[0],
    }  # fmt: skip


def sections(plan: Plan) -> tuple[int, int, int]:
    """Return the sections of a plan, the kernels in them, and all kernels."""
    found = [s for s in plan.program.steps if isinstance(s, ParallelGroup)]
    inside = sum(isinstance(s, Run) for t in found for lane in t.lanes for s in lane)
    return len(found), inside, inside + sum(isinstance(s, Run) for s in plan.program.steps)


def measure(model: Path, rounds: int, deterministic: bool) -> dict[str, Any]:
    """Compile a model both ways and run both in turn."""
    program = partition_graph(read_folded_graph(str(model)))
    serial = compile_for_device(program, how=ModelOptions(deterministic=deterministic, side_by_side=False))
    together = compile_for_device(program, how=ModelOptions(deterministic=deterministic))
    sessions = [start_session(m.plan, m.artifacts, cores=m.spec.units) for m in (serial, together)]
    feeds = random_feeds(model)
    results = [s.run(None, feeds) for s in sessions]
    for a, b in zip(*results, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-4)
    measured = in_turn(*(lambda s=s: s.run(None, feeds) for s in sessions), rounds)
    count, inside, every = sections(together.plan)
    return {
        "model": model.stem, "kernels": every, "sections": count, "kernels_in_sections": inside,
        "predicted_serial_s": predicted_s(serial), "predicted_together_s": predicted_s(together),
        "predicted_ratio": predicted_s(serial) / predicted_s(together),
        **measured, "rounds": rounds,
    }  # fmt: skip


def table(rows: Sequence[dict[str, Any]]) -> str:
    """Return the results as a table in Markdown."""
    heads = ("network", "kernels in sections", "sections", "predicted ms", "ratio", "measured ms (medians)",
             "ratio (of pairs)", "best ms", "load of the machine")  # fmt: skip
    lines = [heads, ("---",) * len(heads)]
    for r in rows:
        predicted, measured, best = (f"{r[f'{k}_serial_s'] * 1e3:.3g} -> {r[f'{k}_together_s'] * 1e3:.3g}"
                                     for k in ("predicted", "measured", "best"))  # fmt: skip
        inside = f"{r['kernels_in_sections']} of {r['kernels']}"
        lines.append((r["model"], inside, str(r["sections"]), predicted, f"{r['predicted_ratio']:.2f}", measured,
                      f"{r['measured_ratio']:.2f}", best, f"{r['load']:.1f}"))  # fmt: skip
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def main(
    batch: Annotated[list[int], typer.Option(help="Batch sizes.")] = [1, 8, 128],  # noqa: B006 - typer's way
    layers: Annotated[int, typer.Option(min=1)] = 10,
    steps: Annotated[int, typer.Option(min=1)] = 100,
    width: Annotated[int, typer.Option(min=1)] = 256,
    operators: Annotated[bool, typer.Option(help="ONNX LSTM operators instead of unrolled cells.")] = False,
    rounds: Annotated[int, typer.Option(min=1)] = 40,
    deterministic: Annotated[bool, typer.Option(help="Take the best predictions; time no candidates.")] = False,
    out: Annotated[Path | None, typer.Option("--json", help="File for the results.")] = None,
) -> None:
    """Measure the LSTM of the Roller paper."""
    rows = []
    for size in batch:
        with tempfile.TemporaryDirectory() as folder:
            model = Path(folder, f"lstm{'' if operators else '_unrolled'}_{layers}x{steps}x{width}_b{size}.onnx")
            build(model, size, Lstm(layers, steps, width, not operators))
            rows.append(measure(model, rounds, deterministic))
        print(table(rows[-1:]), flush=True)
    print(table(rows))
    if out is not None:
        out.write_text(json.dumps({"rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    typer.run(main)
