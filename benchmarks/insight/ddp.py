"""``python -m benchmarks.insight ddp``: data parallel training from one device's graph, beside published steps."""

from __future__ import annotations

import typer

from benchmarks.common import reference
from benchmarks.insight.models import trace
from roller.insight.whatif.predict import what_if
from roller.insight.whatif.whatifs import DDP

#: Milliseconds of a step of GPT-2-large on H100s, sequence 1024, one sample a device, by the number of devices.
#: NeuSight (ASPLOS 2025), labels of its repository.
PUBLISHED_MS = {int(row["devices"]): float(row["step_ms"]) for row in reference("model_ddp_h100")}
LIMIT = 0.04


def main() -> None:
    """Predict what several H100s take from one's graph: absolute, and from the published step of one device."""
    graph = trace("gpt2_large", batch=1).graph("h100")
    print("| devices | predicted ms | from the published step of one | published ms | error |\n|---|---|---|---|---|")
    missed = 0
    for devices in (1, 2, 4):
        answer = what_if(graph, DDP(devices))
        ratio = answer.iteration_us / answer.baseline_us if devices > 1 else 1.0
        alone = answer.baseline_us * ratio / 1e3
        scaled, known = PUBLISHED_MS[1] * ratio, PUBLISHED_MS.get(devices)
        error = "" if known is None else f"{100 * (scaled / known - 1):+.1f} %"
        missed += known is not None and abs(scaled / known - 1) > LIMIT
        print(f"| {devices} | {alone:.1f} | {scaled:.1f} | {known or ''} | {error} |")
    raise typer.Exit(1 if missed else 0)
