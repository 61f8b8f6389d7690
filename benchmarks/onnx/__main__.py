"""``python -m benchmarks.onnx``: measure, judge, write JSON and Markdown."""

from __future__ import annotations

import fnmatch
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from benchmarks.common import HERE, screen, table, write_json
from benchmarks.cpu import environment
from benchmarks.cpu.__main__ import default_threads
from benchmarks.cpu.race import Pace
from benchmarks.cpu.report import Journal
from benchmarks.models import MODELS
from benchmarks.onnx import report
from benchmarks.onnx.measure import Record, Settings, measure


def selected(pattern: str) -> list[str]:
    """Return the models that match one of the comma-separated patterns.

    Raises
    ------
    typer.BadParameter
        Where none does.
    """
    patterns = [p.strip() for p in pattern.split(",")]
    found = [m for m in MODELS if any(fnmatch.fnmatchcase(m, p) for p in patterns)]
    if not found:
        raise typer.BadParameter(f"--filter: expected models like {', '.join(MODELS)}, nothing matches '{pattern}'.")
    return found


def line(record: Record) -> str:
    """Return a record on one line."""
    if record.reason:
        return f"{record.id} FAILED {record.reason.splitlines()[0][:160]}"
    return (
        f"{record.id} {record.seconds['roller'] * 1e3:.4g} ms, {record.speed['median']:.3f} "
        f"[{record.speed['low']:.3f}, {record.speed['high']:.3f}] of ONNX Runtime, error {record.error:.1e}, memory "
        f"{record.memory:.2f}, compiled in {record.cold_s:.1f} s ({record.cold_processor_s or 0.0:.1f} s of processors"
        f"), {record.warm_s:.2f} s warm"
    )


def main(
    pattern: Annotated[str, typer.Option("--filter", help="Models or patterns: 'bert_*,lstm'.")] = "*",
    batches: Annotated[str, typer.Option(help="Comma-separated batches.")] = "1,8",
    threads: Annotated[int, typer.Option(min=0, help="Threads of both; 0: all cores.")] = 0,
    rounds: Annotated[int, typer.Option(min=3, help="Turns per contender.")] = Pace().rounds,
    work: Annotated[Path, typer.Option(help="Folder of models (7 GB of both batches) and what is compiled.")] = Path(
        "build/onnx"
    ),
    out: Annotated[Path, typer.Option(help="Folder of onnx.json, onnx.md and the journal.")] = HERE / "results",
    fresh: Annotated[bool, typer.Option(help="Forget what was measured before.")] = False,
    strict: Annotated[bool, typer.Option(help="Exit 1 where a limit is missed.")] = False,
) -> None:
    """Compile whole models cold and warm, and race them with ONNX Runtime."""
    threads = threads or default_threads()
    environment.restart_with(threads, "benchmarks.onnx")
    settings = Settings(threads, Pace(rounds=rounds), work)
    facts = environment.facts(threads)
    out.mkdir(parents=True, exist_ok=True)
    stem = out / "onnx"
    known = {**asdict(settings), "work": "", "machine": facts}
    journal = Journal(stem.with_suffix(".jsonl"), known, Record)
    if fresh:
        journal.path.unlink(missing_ok=True)
    done, records = journal.read(), list[Record]()
    cases = [(m, int(b)) for m in selected(pattern) for b in batches.split(",")]
    for n, (model, batch) in enumerate(cases, 1):
        name = f"{model}-b{batch}"
        if name not in done:
            done[name] = measure(model, batch, settings)
            journal.add(done[name])
        records.append(done[name])
        screen().print(f"{n}/{len(cases)} {line(done[name])}")
    write_json(stem.with_suffix(".json"), report.to_json(records, {**facts, "rounds": rounds}))
    stem.with_suffix(".md").write_text(report.to_markdown(records, {**facts, "rounds": rounds}))
    judged = report.verdicts(records)
    screen().print(table("", ("limit", "must be", "is", ""), [(v.name, v.limit, v.value, v.word) for v in judged]))
    screen().print(f"{stem}.md, .json")
    if strict and any(v.holds is False for v in judged):
        raise typer.Exit(1)


if __name__ == "__main__":
    typer.run(main)
