"""Kernels of a model that are too light to be timed: whatever is chosen for them, no measurement of the model shows it.

Timing candidates is expected to gain something of a kernel (:func:`roller.search.auto.expected_gain`), and times
the kernel's share something of the model. The smallest of these gains, as many as make up :data:`LOSS` together, are
given up: such kernels get their best prediction, built and checked. Which ones is noted beside the kernels, because a
warm compile predicts nothing.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

from roller.batch.jobs import Job
from roller.hardware import DeviceSpec
from roller.runtime.cache_notes import read_note, write_note

#: Expected loss of a model's speed from all kernels together that are not timed: less than timing the model resolves.
LOSS = 0.005


def mark_negligible(jobs: Sequence[Job], spec: DeviceSpec, others_s: float) -> None:
    """Mark those of the constructed jobs that are not worth timing.

    Parameters
    ----------
    jobs
        With candidates.
    spec
        The device.
    others_s
        Predicted seconds a call of the model spends in its other kernels.
    """
    from roller.search.auto import expected_gain

    choices = [j for j in jobs if len(j.first) > 1 and j.options.top_k == "auto"]
    gains = sorted(((j.share_s * expected_gain(j.candidates, spec), j.digest, j) for j in choices), key=lambda g: g[:2])
    left_s = LOSS * (others_s + sum(j.share_s for j in jobs))
    for gain_s, _, job in gains:
        left_s -= gain_s
        if left_s < 0:
            return
        job.light = True


def recall_negligible(folder: Path, jobs: Sequence[Job]) -> None:
    """Mark the jobs that were found too light when this model was compiled first."""
    noted = read_note(folder, _name(jobs)).get("light", ())
    light = set(noted) if isinstance(noted, list) and all(isinstance(d, str) for d in noted) else set[str]()
    for job in jobs:
        job.light = job.digest in light


def note_negligible(folder: Path, jobs: Sequence[Job]) -> None:
    """Keep which jobs of a model are light."""
    write_note(folder, _name(jobs), {"light": sorted(j.digest for j in jobs if j.light)})


def _name(jobs: Sequence[Job]) -> str:
    lines = sorted(f"{j.digest} {j.uses}" for j in jobs)
    return hashlib.sha256("\n".join(["light", *lines]).encode()).hexdigest()
