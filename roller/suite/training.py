"""Trains a model of the suite for a few steps on one batch, on this processor: whether it learns, and what it holds."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

from roller.suite.entry import SuiteModel


@dataclass(frozen=True)
class TrainingRun:
    """A few steps on one batch.

    Parameters
    ----------
    losses
        Loss of each step, before its update.
    seconds
        Time of processors in all steps, of all threads, without building the model: other work does not disturb it.
    weights_bytes, gradients_bytes, optimizer_bytes
        Bytes of all parameters, of their gradients, and of the optimizers' states on the device of the parameters.
    """

    losses: tuple[float, ...]
    seconds: float
    weights_bytes: int
    gradients_bytes: int
    optimizer_bytes: int


def train(model: SuiteModel, *, steps: int = 3, reduced: bool = True, batch: int | None = None) -> TrainingRun:
    """Train on one batch, with the same random numbers in every step."""
    workload = model.workload(reduced=reduced)
    import torch

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        module = workload.build().train()
        inputs = workload.inputs(workload.batch if batch is None else batch)
        step, losses = workload.step(module), []
        start = time.process_time()
        for _ in range(steps):
            torch.manual_seed(1)  # the same noise and dropout, so that losses are of one function
            losses.append(float(step(*inputs)))
        seconds = time.process_time() - start
    parameters = list(module.parameters())
    gradients = [p.grad for p in parameters if p.grad is not None]
    # A counter of steps has no axis, and stays on the host.
    states = [t for o in step.optimizers for s in o.state.values() for t in s.values() if _has_axes(t)]
    return TrainingRun(tuple(losses), seconds, *(_bytes(tensors) for tensors in (parameters, gradients, states)))


def _has_axes(value: Any) -> bool:
    return hasattr(value, "dim") and value.dim() > 0


def _bytes(tensors: list[Any]) -> int:
    return sum(t.numel() * t.element_size() for t in tensors)
