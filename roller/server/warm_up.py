"""Traces and prices a few operators, so that forked processes find loaded what the first use of PyTorch loads."""

from __future__ import annotations

from torch import nn, zeros

from roller.insight.forecast import forecast
from roller.insight.tracing import trace


def warm_up() -> None:
    """Forecast an inference: backward would start autograd's threads, which no forked process has."""

    def some_layers() -> nn.Module:
        convolution = (nn.Conv2d(1, 8, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())
        return nn.Sequential(*convolution, nn.LayerNorm(8), nn.Linear(8, 8), nn.Softmax(-1))

    forecast(trace(some_layers, zeros(2, 1, 8, 8)), "a100")
