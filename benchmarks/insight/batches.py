"""The largest batch of ten models on five devices: it fits, and one more does not, each traced.

    python -m benchmarks.insight batches [--write]

Every peak is held to the trace itself, too: what a step that fits asks for at once is never more than the device has.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer

from benchmarks.insight.models import SUITE, loss
from roller.errors import NoCandidateError
from roller.hardware import load_spec
from roller.insight.memory.largest_batch import device_capacity_bytes
from roller.insight.memory.simulate import Library
from roller.insight.trace.trace import AllocEvent, Trace
from roller.insight.traced_step import TracedStep

MODELS = (
    "resnet50", "bert_large", "gpt2_large", "lstm", "vit", "moe", "unet", "opt_13", "gpt3_xl", "gpt3_27",
)  # fmt: skip
DEVICES = ("t4", "v100", "rtx3090", "a100", "h100")
PAGE = """# Largest batches

Predicted by `python -m benchmarks.insight batches --write`: training with AdamW and mixed precision (float16), with the
steps of the suite in `benchmarks/insight/models.py`. In the simulated allocator, each batch in the table fits the
device and a batch of one more sample does not; both were traced. `traced` counts the batches that the search traced.

"""
RESULT = Path(__file__).parents[1] / "results" / "insight_batches.md"


def traced(name: str, batch: int) -> TracedStep:
    """Return a step of a model: AdamW, mixed precision with float16."""
    import roller

    model = SUITE[name]
    return roller.trace(
        model.build, model.inputs(batch), loss=loss, targets=[model.targets(batch)], optimizer="adamw", amp="fp16"
    )


def most_requested(trace: Trace) -> int:
    """Return the most bytes a trace holds at once, by adding and subtracting alone."""
    held: dict[int, int] = {}
    now = most = 0
    for event in trace.events:
        if isinstance(event, AllocEvent):
            held[event.storage] = event.size_bytes
            now += event.size_bytes
        else:
            now -= held.pop(event.storage, 0)
        most = max(most, now)
    return most


def main(write: Annotated[bool, typer.Option(help="Write the page.")] = False) -> None:
    """Search the largest batch of ten models on five devices; exit with 1 where one is none."""
    wrong = 0
    lines = ["| model | device | largest batch | monitor, MiB | traced | CPU s |", "|---|---|---|---|---|---|"]
    for name in MODELS:
        step = traced(name, 4)
        for device in DEVICES:
            begin, spec = time.process_time(), load_spec(device)
            try:
                found = step.max_batch(spec)
            except NoCandidateError:
                row = f"| {name} | {device} | not even 1 | - | - | {time.process_time() - begin:.1f} |"
            else:
                at = step.at(batch=found.batch, device=spec)
                room = (device_capacity_bytes(spec) or 0) - Library.of(spec, at.options).context_bytes
                holds = found.memory.fits and not found.over.fits and most_requested(at) <= room
                wrong += not holds
                said, shown = "" if holds else " WRONG", found.memory.total_bytes >> 20
                took = f"{len(found.tried)} | {time.process_time() - begin:.1f}"
                row = f"| {name} | {device} | {found.batch}{said} | {shown} | {took} |"
            lines.append(row)
            print(row, flush=True)
    print(f"{len(lines) - 2} pairs, {wrong} wrong")
    if write:
        RESULT.write_text(PAGE + "\n".join(lines) + f"\n\n{len(lines) - 2} pairs, {wrong} wrong.\n")
    raise typer.Exit(1 if wrong else 0)
