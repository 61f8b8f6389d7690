"""``python -m benchmarks.cpu``: measure, judge, write JSON, Markdown and a plot."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from benchmarks.common import HERE, screen, table, write_json
from benchmarks.cpu import environment, limits, report
from benchmarks.cpu.cases import Case, beside, select, suite
from benchmarks.cpu.measure import ROLLER, Record, Settings, measure
from benchmarks.cpu.peers import available
from benchmarks.cpu.race import Pace

QUICK = Pace(rounds=5, turn_s=0.01)


def default_threads() -> int:
    """Return the cores of this machine as Roller detects them: its kernels use as many."""
    from roller.hardware import load_spec

    return load_spec("cpu").units


def collect(cases: list[Case], settings: Settings, journal: report.Journal) -> tuple[list[Record], dict[str, str]]:
    """Measure what the journal lacks; return all records in order, and the peers that are not here."""
    out, done = screen(), journal.read()
    peers, absent = available(settings.threads, settings.constant_weights)
    for name, reason in absent.items():
        out.print(f"without {name}: {reason}")
    if any(c.id not in done for c in cases):  # first use imports modules; that is no part of a compilation
        import roller

        roller.compile(roller.ops.matmul(16, 16, 16), device="cpu", top_k=2, cache=False)
    for n, case in enumerate(cases, 1):
        if case.id not in done:
            done[case.id] = measure(case, peers, settings)
            journal.add(done[case.id])
        out.print(f"{n}/{len(cases)} {line(done[case.id])}")
    return [done[c.id] for c in cases], absent


def line(record: Record) -> str:
    """Return a record on one line."""
    if record.reason:
        return f"{record.id} FAILED {record.reason.splitlines()[0][:120]}"
    mine = f"{record.id} b{record.batch} {record.seconds[ROLLER] * 1e3:.4g} ms"
    if not record.best_peer:
        return f"{mine}, no peer"
    best = record.ratios[record.best_peer]
    return f"{mine}, {best['median']:.3f} [{best['low']:.3f}, {best['high']:.3f}] of {record.best_peer}"


def main(
    pattern: Annotated[str, typer.Option("--filter", help="Ids, patterns or sets: 'M*,sokoban'.")] = "*",
    quick: Annotated[bool, typer.Option(help="One operator per class at batch 1, few rounds.")] = False,
    threads: Annotated[int, typer.Option(min=0, help="Threads of everybody; 0: all cores.")] = 0,
    rounds: Annotated[int, typer.Option(min=3, help="Turns per contender.")] = Pace().rounds,
    top_k: Annotated[int, typer.Option("--top-k", "-k", min=1)] = 10,
    regret: Annotated[bool, typer.Option(help="Also measure top 1 against the best of the top 50.")] = False,
    constant_weights: Annotated[
        bool, typer.Option(help="Roller and ONNX Runtime get weights as constants and pack them ahead.")
    ] = False,
    out: Annotated[Path, typer.Option(help="Folder of cpu.json, cpu.md, cpu.png and the journal.")] = HERE / "results",
    fresh: Annotated[bool, typer.Option(help="Forget what was measured before.")] = False,
    strict: Annotated[bool, typer.Option(help="Exit 1 where a limit is missed.")] = False,
) -> None:
    """Measure Roller against the best of PyTorch, ONNX Runtime and NumPy on this processor."""
    threads = threads or default_threads()
    environment.restart_with(threads)
    cases = select([*suite(), *beside()], pattern, quick)
    pace = QUICK if quick else Pace(rounds=rounds)
    settings = Settings(threads, top_k, pace, regret, constant_weights=constant_weights)
    facts = environment.facts(threads)
    out.mkdir(parents=True, exist_ok=True)
    stem = out / ("cpu_quick" if quick else "cpu")
    journal = report.Journal(stem.with_suffix(".jsonl"), {**asdict(settings), "quick": quick, "machine": facts})
    if fresh:
        journal.path.unlink(missing_ok=True)
    records, absent = collect(cases, settings, journal)
    finish(records, {**facts, "top_k": top_k, "rounds": pace.rounds, "weights": _weights(settings)}, absent, stem)
    if strict and any(v.holds is False for v in limits.verdicts(records)):
        raise typer.Exit(1)


def finish(records: list[Record], head: dict[str, object], absent: dict[str, str], stem: Path) -> None:
    """Write the files and print the limits."""
    write_json(stem.with_suffix(".json"), report.to_json(records, head))
    stem.with_suffix(".md").write_text(report.to_markdown(records, head, absent))
    problem = report.plot(records, stem.with_suffix(".png"))
    rows = [(v.name, v.limit, v.value, v.word) for v in limits.verdicts(records)]
    screen().print(table("", ("limit", "must be", "is", ""), rows))
    screen().print(problem or f"{stem}.md, .json, .png")


def _weights(settings: Settings) -> str:
    return "constant for Roller and ONNX Runtime, inputs for the others" if settings.constant_weights else "inputs"


if __name__ == "__main__":
    typer.run(main)
