"""``python -m benchmarks.quantised``: models in 8 bits, 4 bits and half precision, raced with ONNX Runtime."""

from __future__ import annotations

import math
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated

import typer

from benchmarks.common import JsonOption, screen, table, write_json
from benchmarks.cpu import environment
from benchmarks.cpu.__main__ import default_threads
from benchmarks.quantised.measure import PACE, Record, measure
from benchmarks.quantised.variants import VARIANTS

MODELS = ("resnet18", "resnet50", "mobilenet_v3", "bert_base")
#: What is deployed most; others of :data:`VARIANTS` by name.
KINDS = ("qdq_u8", "qdq_s8", "dynamic")
#: A model may be no slower than this next to ONNX Runtime, the geometric mean of all no slower than 1.
LEAST, MEAN = 0.8, 1.0


def line(r: Record) -> str:
    """Return a record on one line."""
    if r.reason:
        return f"{r.id} FAILED {r.reason.splitlines()[0][:200]}"
    return (
        f"{r.id} {r.seconds['roller'] * 1e3:.4g} ms, {r.speed['median']:.3f} [{r.speed['low']:.3f}, "
        f"{r.speed['high']:.3f}] of ONNX Runtime, apart {r.apart:.1e} ({100 * r.differing:.2f} % of elements), from "
        f"float32 {r.error:.1e} (ONNX Runtime {r.peer_error:.1e}), {r.kernels} kernels, {r.steps} steps, "
        f"compiled in {r.compile_s:.1f} s, others {r.foreign:.2f}"
    )


def _listed(given: str, known: tuple[str, ...], option: str) -> list[str]:
    names = [n.strip() for n in given.split(",")]
    wrong = next((n for n in names if n not in known), None)
    if wrong is not None:
        raise typer.BadParameter(f"{option}: expected some of {', '.join(known)}, got '{wrong}'.")
    return names


def main(
    models: Annotated[str, typer.Option(help="Comma-separated networks of benchmarks.models.")] = ",".join(MODELS),
    variants: Annotated[str, typer.Option(help=f"Comma-separated, of {', '.join(VARIANTS)}.")] = ",".join(KINDS),
    batch: Annotated[int, typer.Option(min=1)] = 1,
    threads: Annotated[int, typer.Option(min=0, help="Threads of both; 0: all cores.")] = 0,
    rounds: Annotated[int, typer.Option(min=3, help="Blocks of calls per runtime.")] = PACE.rounds,
    quick: Annotated[bool, typer.Option(help="Two layers of BERT instead of all.")] = False,
    deterministic: Annotated[bool, typer.Option(help="Compile each kernel's best prediction, time none.")] = False,
    work: Annotated[Path, typer.Option(help="Folder of models.")] = Path("build/quantised"),
    json: JsonOption = None,
    strict: Annotated[bool, typer.Option(help="Exit 1 where a limit is missed.")] = False,
) -> None:
    """Compile variants of models and race them with ONNX Runtime, in blocks of calls with pauses."""
    from benchmarks.models import MODELS as BUILT

    names, kinds = _listed(models, BUILT, "--models"), _listed(variants, tuple(VARIANTS), "--variants")
    threads = threads or default_threads()
    environment.restart_with(threads, "benchmarks.quantised")
    records: list[Record] = []
    for name in names:
        for kind in kinds:
            pace = replace(PACE, rounds=rounds)
            records.append(
                measure(name, kind, batch, threads, pace, work=work, quick=quick, deterministic=deterministic)
            )
            screen().print(line(records[-1]))
    ran = [r for r in records if not r.reason]
    rows = [
        [r.id, *(f"{r.seconds[n] * 1e3:.3f}" for n in ("roller", "onnxruntime")), f"{r.speed['median']:.3f}",
         f"{r.apart:.1e}", f"{r.error:.1e}", f"{r.peer_error:.1e}"]
        for r in ran
    ]  # fmt: skip
    heads = ["model", "roller ms", "ONNX Runtime ms", "speed", "apart", "error", "its error"]
    screen().print(table(f"{threads} threads, batch {batch}", heads, rows))
    held = len(ran) == len(records)
    if ran:
        speeds = [r.speed["median"] for r in ran]
        mean = math.exp(sum(math.log(s) for s in speeds) / len(speeds))
        held &= mean >= MEAN and min(speeds) >= LEAST
        screen().print(f"geometric mean {mean:.3f} (limit {MEAN}), least {min(speeds):.3f} (limit {LEAST})")
    if json is not None:
        write_json(json, {"threads": threads, "batch": batch, "records": [asdict(r) for r in records]})
    if strict and not held:
        raise typer.Exit(1)


if __name__ == "__main__":
    typer.run(main)
