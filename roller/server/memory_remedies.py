"""Finds out why a step does not fit a device and, by simulation, which changes make it fit."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from roller.errors import ModelError, NoCandidateError
from roller.hardware import DeviceSpec
from roller.insight.traced_step import TracedStep
from roller.server.profile_request import StepOptions


def explain_out_of_memory(step: TracedStep, spec: DeviceSpec, options: StepOptions) -> dict[str, Any] | None:
    """Return the failing request, the largest batch that fits (0 for none) and remedies; ``None`` if the step fits."""
    memory = step.memory(spec)
    if memory.oom is None:
        return None
    number = memory.oom_operator
    operator = step.operators[number] if number is not None and 0 <= number < len(step.operators) else None
    source = None if operator is None else operator.source
    largest: int | None
    try:
        largest = step.max_batch(spec).batch
    except NoCandidateError:
        largest = 0
    except ModelError:  # e.g. a script whose batch cannot be changed
        largest = None
    return {
        "kind": "predicted", "wanted_bytes": memory.oom.wanted_bytes,
        "operator": "" if operator is None else operator.name, "phase": "" if operator is None else operator.phase,
        "line": "" if source is None else f"{source[0]}:{source[1]}", "largest": largest,
        "remedies": [*_memory_remedies(step, spec, options)],
    }  # fmt: skip


def _memory_remedies(step: TracedStep, spec: DeviceSpec, options: StepOptions) -> Iterator[dict[str, Any]]:
    """Yield each possible change except that of the batch size, with the memory that the changed step needs."""
    ways = (("checkpoint=yes", options.amp, True), ("amp=bf16", "bf16", options.checkpoint))
    for words, amp, checkpoint in ways:
        if (amp, checkpoint) == (options.amp, options.checkpoint):
            continue
        try:
            tried = step.memory(spec, amp=amp, checkpoint=checkpoint)
        except ModelError:  # e.g. no repeated blocks, so nothing to checkpoint
            continue
        yield {"change": words, "total_bytes": tried.total_bytes, "fits": tried.fits}
