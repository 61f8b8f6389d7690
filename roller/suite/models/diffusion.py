"""Diffusion UNet for CIFAR-10 (Ho et al., "Denoising Diffusion Probabilistic Models", 2020, arXiv:2006.11239)."""

# Images of 32 x 32, 128 channels times 1, 2, 2, 2 on four levels, two residual blocks per level, attention at 16 x 16,
# and a time embedding in every residual block: 35.7 million parameters.

from __future__ import annotations

import math
from functools import partial

import torch
from torch import nn
from torch.nn import functional

from roller.suite.entry import Workload
from roller.suite.models.supervised_step import supervised_step_factory

SIDE, CHANNELS, FACTORS, BLOCKS = 32, 128, (1, 2, 2, 2), 2
#: Side length of the images with attention, number of noise steps, and number of groups of a norm.
ATTENTION, STEPS, GROUPS = 16, 1000, 32


class ResBlock(nn.Module):
    """Residual block with two convolutions and a time embedding added between them."""

    def __init__(self, inputs: int, outputs: int, time: int, dropout: float = 0.1) -> None:
        super().__init__()
        groups = min(GROUPS, inputs // 4)
        self.norm1, self.norm2 = nn.GroupNorm(groups, inputs), nn.GroupNorm(min(GROUPS, outputs // 4), outputs)
        self.conv1 = nn.Conv2d(inputs, outputs, 3, padding=1)
        self.time, self.dropout = nn.Linear(time, outputs), nn.Dropout(dropout)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1)
        self.shortcut = nn.Conv2d(inputs, outputs, 1) if inputs != outputs else nn.Identity()

    def forward(self, x: torch.Tensor, time: torch.Tensor) -> torch.Tensor:
        """Return images, shape ``(batch, outputs, height, width)``."""
        y = self.conv1(functional.silu(self.norm1(x))) + self.time(functional.silu(time))[:, :, None, None]
        return self.shortcut(x) + self.conv2(self.dropout(functional.silu(self.norm2(y))))


class PixelAttention(nn.Module):
    """Single-head attention over all pixels."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.norm = nn.GroupNorm(min(GROUPS, channels // 4), channels)
        self.q, self.k, self.v, self.out = (nn.Conv2d(channels, channels, 1) for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return images, shape ``(batch, channels, height, width)``."""
        y = self.norm(x)
        q, k, v = (part(y).flatten(2).transpose(1, 2)[:, None] for part in (self.q, self.k, self.v))
        mixed = functional.scaled_dot_product_attention(q, k, v)
        return x + self.out(mixed[:, 0].transpose(1, 2).reshape(x.shape))


class Level(nn.Module):
    """A residual block, with attention if images are small enough."""

    def __init__(self, inputs: int, outputs: int, time: int, *, attends: bool) -> None:
        super().__init__()
        self.block = ResBlock(inputs, outputs, time)
        self.attention = PixelAttention(outputs) if attends else nn.Identity()

    def forward(self, x: torch.Tensor, time: torch.Tensor) -> torch.Tensor:
        """Return images, shape ``(batch, outputs, height, width)``."""
        return self.attention(self.block(x, time))


class Double(nn.Module):
    """Upsampling by two, followed by a convolution."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels, channels, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return images, shape ``(batch, channels, 2 * height, 2 * width)``."""
        return self.conv(functional.interpolate(x, scale_factor=2.0, mode="nearest"))


class DiffusionUNet(nn.Module):
    """UNet that maps noisy images and times to noise; ``channels`` is the number of channels in the first level."""

    def __init__(self, channels: int = CHANNELS, side: int = SIDE) -> None:
        super().__init__()
        self.channels, time = channels, 4 * channels
        self.time = nn.Sequential(nn.Linear(channels, time), nn.SiLU(), nn.Linear(time, time))
        self.first = nn.Conv2d(3, channels, 3, padding=1)
        widths = [channels * factor for factor in FACTORS]
        kept, inputs = [channels], channels
        self.down = nn.ModuleList()
        for number, width in enumerate(widths):
            for _ in range(BLOCKS):
                self.down.append(Level(inputs, width, time, attends=side >> number == ATTENTION))
                inputs = width
                kept.append(width)
            if number + 1 < len(widths):
                self.down.append(nn.Conv2d(width, width, 3, 2, 1))
                kept.append(width)
        self.middle = nn.ModuleList(
            (Level(inputs, inputs, time, attends=True), Level(inputs, inputs, time, attends=False))
        )
        self.up = nn.ModuleList()
        for number, width in reversed(list(enumerate(widths))):
            for _ in range(BLOCKS + 1):
                self.up.append(Level(inputs + kept.pop(), width, time, attends=side >> number == ATTENTION))
                inputs = width
            if number:
                self.up.append(Double(width))
        self.norm, self.last = nn.GroupNorm(min(GROUPS, inputs // 4), inputs), nn.Conv2d(inputs, 3, 3, padding=1)

    def forward(self, images: torch.Tensor, times: torch.Tensor) -> torch.Tensor:
        """Return the noise predicted for ``images`` at ``times``, shape ``(batch, 3, side, side)``."""
        time = self.time(time_embedding(times, self.channels))
        x = self.first(images)
        kept = [x]
        for part in self.down:
            x = part(x, time) if isinstance(part, Level) else part(x)
            kept.append(x)
        for part in self.middle:
            x = part(x, time)
        for part in self.up:
            x = part(torch.cat([x, kept.pop()], 1), time) if isinstance(part, Level) else part(x)
        return self.last(functional.silu(self.norm(x)))


def time_embedding(times: torch.Tensor, width: int) -> torch.Tensor:
    """Return the sine and cosine embedding of ``times``, shape ``(batch, width)``."""
    half = width // 2
    rates = torch.exp(torch.arange(half, device=times.device) * (-math.log(10_000.0) / (half - 1)))
    angles = times[:, None] * rates
    return torch.cat([angles.sin(), angles.cos()], 1)


def _loss(model: nn.Module, images: torch.Tensor, times: torch.Tensor, noise: torch.Tensor) -> torch.Tensor:
    """Return the mean squared error of the predicted noise; betas increase linearly from 1e-4 to 0.02."""
    kept = torch.cumprod(1 - torch.linspace(1e-4, 0.02, STEPS, device=images.device), 0)[times][:, None, None, None]
    return functional.mse_loss(model(kept.sqrt() * images + (1 - kept).sqrt() * noise, times), noise)


def _random_inputs(side: int, batch: int) -> tuple[torch.Tensor, ...]:
    """Return images, times of shape ``(batch,)``, and noise; images and noise have shape ``(batch, 3, side, side)``."""
    shape = (batch, 3, side, side)
    return torch.rand(shape) * 2 - 1, torch.randint(STEPS, (batch,)), torch.randn(shape)


def diffusion_unet(*, reduced: bool = False) -> Workload:
    """Return the UNet for CIFAR-10: 35,746,307 parameters; reduced: an eighth of the channels."""
    channels = 16 if reduced else CHANNELS
    adam = partial(torch.optim.Adam, lr=1e-3 if reduced else 2e-4)
    return Workload(
        partial(DiffusionUNet, channels), partial(_random_inputs, SIDE), supervised_step_factory(adam, _loss,
                                                                                                 clip_norm=1.0),
        batch=4 if reduced else 64,
    )  # fmt: skip
