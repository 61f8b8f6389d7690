"""Short training of a suite model on one batch on this processor, to check losses and memory."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

from roller.suite.entry import SuiteModel


@dataclass(frozen=True)
class TrainingRun:
    """Result of a few training steps on one batch."""

    losses: tuple[float, ...]  # loss of each step, before its update
    seconds: float  # CPU time of all threads in all steps, which other work does not disturb
    # weights_bytes, gradients_bytes, optimizer_bytes: bytes of all parameters, of their gradients, and of optimizer
    # states on the device of the parameters
    weights_bytes: int
    gradients_bytes: int
    optimizer_bytes: int


def train_on_one_batch(
    model: SuiteModel, *, steps: int = 3, reduced: bool = True, batch: int | None = None
) -> TrainingRun:
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
            torch.manual_seed(1)  # same noise and dropout, so that losses are comparable
            losses.append(float(step(*inputs)))
        seconds = time.process_time() - start
    parameters = list(module.parameters())
    gradients = [p.grad for p in parameters if p.grad is not None]
    # Step counters are scalars on the host.
    states = [t for o in step.optimizers for s in o.state.values() for t in s.values() if _is_tensor_with_axes(t)]
    return TrainingRun(tuple(losses), seconds, *(_total_bytes(tensors) for tensors in (parameters, gradients, states)))


def _is_tensor_with_axes(value: Any) -> bool:
    return hasattr(value, "dim") and value.dim() > 0


def _total_bytes(tensors: list[Any]) -> int:
    return sum(t.numel() * t.element_size() for t in tensors)
