"""``python -m benchmarks.insight loader BEFORE AFTER ...``: loader workers, predicted and made."""

from __future__ import annotations

from pathlib import Path
from statistics import median
from typing import Annotated

import typer

from roller.insight.step.kineto_reader import read_events
from roller.insight.step.replay import from_kineto
from roller.insight.whatif.predict import what_if
from roller.insight.whatif.whatifs import LoaderWorkers

#: Error of a prediction that holds.
LIMIT = 0.06


def main(
    profiles: Annotated[list[Path], typer.Argument(help="Pairs of profiles: without workers, then with some.")],
    workers: Annotated[int, typer.Option(help="Workers of the second profile of each pair.")] = 4,
) -> None:
    """Predict the second profile of every pair from the first; exit with 1 where one is off by more than 6 %."""
    if len(profiles) % 2:
        raise typer.BadParameter(f"expected pairs of profiles, got {len(profiles)}.")
    print("| before | step ms | predicted ms | measured ms | error |\n|---|---|---|---|---|")
    missed = 0
    for before, after in zip(profiles[::2], profiles[1::2], strict=True):
        answer = what_if(from_kineto(before), LoaderWorkers(workers))
        step, made = _step_ms(before), _step_ms(after)
        predicted = step / answer.speedup
        error = predicted / made - 1.0
        missed += abs(error) > LIMIT
        print(f"| {before.name} | {step:.1f} | {predicted:.1f} | {made:.1f} | {100 * error:+.1f} % |")
    raise typer.Exit(1 if missed else 0)


def _step_ms(profile: Path) -> float:
    """Return the median of the steps that a profile marks, the first and the last of them too."""
    steps = {(e.start_us, e.duration_us) for e in read_events(profile) if e.name.startswith("ProfilerStep")}
    return median(duration for _, duration in steps) / 1e3
