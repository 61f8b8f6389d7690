"""The training step of most models: one network, one loss and one optimizer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from roller.suite.entry import TrainingStep


def supervised_step_factory(
    optimizer_of: Callable[[Any], torch.optim.Optimizer],
    loss_of: Callable[..., torch.Tensor],
    *,
    clip_norm: float | None = None,
) -> Callable[[nn.Module], TrainingStep]:
    """Return a function that maps a model to its training step."""

    def make_step(model: nn.Module) -> TrainingStep:
        optimizer = optimizer_of(model.parameters())

        def run(*inputs: torch.Tensor) -> torch.Tensor:
            optimizer.zero_grad()
            loss = loss_of(model, *inputs)
            loss.backward()
            if clip_norm is not None:
                nn.utils.clip_grad_norm_(model.parameters(), clip_norm)
            optimizer.step()
            return loss.detach()

        return TrainingStep(run, (optimizer,))

    return make_step
