"""Traces and prices a few operators, so that forked processes find loaded what the first use of PyTorch loads."""

from __future__ import annotations

import torch

from roller.insight.forecast import forecast
from roller.insight.tracing import trace


class _SomeLayers(torch.nn.Module):
    """Kinds of layers that most models have."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution = torch.nn.Conv2d(1, 8, 3)
        self.norm = torch.nn.LayerNorm(8)
        self.linear = torch.nn.Linear(8, 8)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.linear(self.norm(self.convolution(images).relu().mean((2, 3))))
        return found.softmax(-1)


def warm_up() -> None:
    """Forecast an inference: backward would start autograd's threads, which no forked process has."""
    forecast(trace(_SomeLayers, torch.zeros(2, 1, 8, 8)), "a100")
