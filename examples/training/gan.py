"""An entry file: DCGAN on images of 64x64, as in the paper of that name (Radford et al., 2015, arXiv:1511.06434).

Two models and two optimizers take turns in a step.

roller forecast examples/training/gan.py --device a100 --amp bf16
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

NOISE, SIDE, CHANNELS = 100, 64, 64


class Up(nn.Sequential):
    """A transposed convolution with batch norm; of a stride of 2 it doubles the image."""

    def __init__(self, channels_in: int, channels: int, stride: int = 2, padding: int = 1) -> None:
        super().__init__(
            nn.ConvTranspose2d(channels_in, channels, 4, stride, padding, bias=False),
            nn.BatchNorm2d(channels),
            nn.ReLU(inplace=True),
        )


class Generator(nn.Module):
    """Makes images of noise: from 1x1 over 4x4, 8x8, 16x16 and 32x32 to 64x64."""

    def __init__(self) -> None:
        super().__init__()
        self.first = Up(NOISE, 8 * CHANNELS, stride=1, padding=0)
        self.blocks = nn.Sequential(*(Up(2 * n * CHANNELS, n * CHANNELS) for n in (4, 2, 1)))
        self.last = nn.ConvTranspose2d(CHANNELS, 3, 4, stride=2, padding=1, bias=False)

    def forward(self, noise: torch.Tensor) -> torch.Tensor:
        """Return an image for each vector of noise."""
        return torch.tanh(self.last(self.blocks(self.first(noise))))


class Down(nn.Sequential):
    """A convolution with batch norm that halves the image."""

    def __init__(self, channels_in: int, channels: int) -> None:
        super().__init__(
            nn.Conv2d(channels_in, channels, 4, stride=2, padding=1, bias=False),
            nn.BatchNorm2d(channels),
            nn.LeakyReLU(0.2, inplace=True),
        )


class Discriminator(nn.Module):
    """Tells real images from made ones."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, CHANNELS, 4, stride=2, padding=1, bias=False)
        self.activation = nn.LeakyReLU(0.2, inplace=True)
        self.blocks = nn.Sequential(*(Down(n * CHANNELS, 2 * n * CHANNELS) for n in (1, 2, 4)))
        self.last = nn.Conv2d(8 * CHANNELS, 1, 4, bias=False)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Return a logit for each image: how real it looks."""
        x = self.activation(self.first(images))
        return self.last(self.blocks(x)).flatten()


class GAN(nn.Module):
    """Holds both models."""

    def __init__(self) -> None:
        super().__init__()
        self.generator, self.discriminator = Generator(), Discriminator()


def model_provider() -> nn.Module:
    """Return both models in one module."""
    return GAN()


def input_provider(batch_size: int = 128) -> tuple[torch.Tensor]:
    """Return real images."""
    return (torch.rand(batch_size, 3, SIDE, SIDE) * 2 - 1,)


def iteration_provider(model: GAN) -> Callable[[torch.Tensor], tuple[torch.Tensor, torch.Tensor]]:
    """Return a step of the discriminator, then of the generator; it returns their losses."""
    generator, discriminator = model.generator, model.discriminator
    optimizer_d = torch.optim.Adam(discriminator.parameters(), lr=2e-4, betas=(0.5, 0.999))
    optimizer_g = torch.optim.Adam(generator.parameters(), lr=2e-4, betas=(0.5, 0.999))
    criterion = nn.BCEWithLogitsLoss()

    def step(real: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        fake = generator(torch.randn(len(real), NOISE, 1, 1, device=real.device))

        optimizer_d.zero_grad()
        on_real, on_fake = discriminator(real), discriminator(fake.detach())
        loss_d = criterion(on_real, torch.ones_like(on_real)) + criterion(on_fake, torch.zeros_like(on_fake))
        loss_d.backward()
        optimizer_d.step()

        optimizer_g.zero_grad()
        on_fake = discriminator(fake)
        loss_g = criterion(on_fake, torch.ones_like(on_fake))
        loss_g.backward()
        optimizer_g.step()
        return loss_d.detach(), loss_g.detach()

    return step
