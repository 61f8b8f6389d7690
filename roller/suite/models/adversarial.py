"""WGAN with gradient penalty (Gulrajani et al., 2017, arXiv:1704.00028): residual networks for 64 x 64 images."""

# Generator and critic have 14 layers each, including four residual blocks. A step trains the critic five times, each
# time on different real images, and then the generator once, as published.

from __future__ import annotations

import itertools
from functools import partial

import torch
from torch import nn
from torch.nn import functional

from roller.suite.entry import TrainingStep, Workload

NOISE, CHANNELS, SIDE = 128, 64, 64
#: Number of updates of the critic per step, and weight of the penalty.
CRITIC_UPDATES, PENALTY = 5, 10.0


class Up(nn.Module):
    """Residual block of the generator, which doubles height and width."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.BatchNorm2d(inputs), nn.BatchNorm2d(outputs)
        self.conv1 = nn.Conv2d(inputs, outputs, 3, padding=1, bias=False)
        self.conv2, self.shortcut = nn.Conv2d(outputs, outputs, 3, padding=1), nn.Conv2d(inputs, outputs, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return images, shape ``(batch, outputs, 2 * height, 2 * width)``."""
        y = self.conv1(_upsample_by_two(torch.relu(self.norm1(x))))
        return self.shortcut(_upsample_by_two(x)) + self.conv2(torch.relu(self.norm2(y)))


def _upsample_by_two(x: torch.Tensor) -> torch.Tensor:
    return functional.interpolate(x, scale_factor=2.0, mode="nearest")


class Down(nn.Module):
    """Residual block of the critic, which halves height and width; the penalty needs norms for each image."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.GroupNorm(1, inputs), nn.GroupNorm(1, inputs)
        self.conv1 = nn.Conv2d(inputs, inputs, 3, padding=1, bias=False)
        self.conv2, self.shortcut = nn.Conv2d(inputs, outputs, 3, padding=1), nn.Conv2d(inputs, outputs, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return images, shape ``(batch, outputs, height / 2, width / 2)``."""
        y = self.conv1(torch.relu(self.norm1(x)))
        y = functional.avg_pool2d(self.conv2(torch.relu(self.norm2(y))), 2)
        return self.shortcut(functional.avg_pool2d(x, 2)) + y


class Generator(nn.Module):
    """Generator that maps noise to images."""

    def __init__(self, channels: int = CHANNELS) -> None:
        super().__init__()
        self.channels = channels
        self.first = nn.Linear(NOISE, 16 * 8 * channels)
        widths = [n * channels for n in (8, 8, 4, 2, 1)]
        self.blocks = nn.Sequential(*(Up(i, o) for i, o in itertools.pairwise(widths)))
        self.norm, self.last = nn.BatchNorm2d(channels), nn.Conv2d(channels, 3, 3, padding=1)

    def forward(self, noise: torch.Tensor) -> torch.Tensor:
        """Return images, shape ``(batch, 3, 64, 64)``, generated from noise of shape ``(batch, 128)``."""
        x = self.blocks(self.first(noise).view(-1, 8 * self.channels, 4, 4))
        return torch.tanh(self.last(torch.relu(self.norm(x))))


class Critic(nn.Module):
    """Critic that maps images to scores."""

    def __init__(self, channels: int = CHANNELS) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, channels, 3, padding=1)
        widths = [n * channels for n in (1, 2, 4, 8, 8)]
        self.blocks = nn.Sequential(*(Down(i, o) for i, o in itertools.pairwise(widths)))
        self.last = nn.Linear(16 * 8 * channels, 1)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Return one score per image, shape ``(batch,)``, for images of shape ``(batch, 3, 64, 64)``."""
        return self.last(self.blocks(self.first(images)).flatten(1)).flatten()


class Networks(nn.Module):
    """Generator and critic."""

    def __init__(self, channels: int = CHANNELS) -> None:
        super().__init__()
        self.generator, self.critic = Generator(channels), Critic(channels)


def gradient_penalty(critic: nn.Module, real: torch.Tensor, made: torch.Tensor) -> torch.Tensor:
    """Return the mean of ``(norm - 1) ** 2`` over the critic's gradients between real and generated images."""
    share = torch.rand(len(real), 1, 1, 1, device=real.device)
    between = (share * real + (1 - share) * made).requires_grad_()
    (slopes,) = torch.autograd.grad(critic(between).sum(), between, create_graph=True)
    return ((slopes.flatten(1).norm(dim=1) - 1) ** 2).mean()


def _make_step(learning_rate: float, model: Networks) -> TrainingStep:
    generator, critic = model.generator, model.critic
    of_generator, of_critic = (
        torch.optim.Adam(n.parameters(), lr=learning_rate, betas=(0.0, 0.9)) for n in (generator, critic)
    )

    def noise(images: torch.Tensor) -> torch.Tensor:
        return torch.randn(len(images), NOISE, device=images.device)

    def update_critic(real: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            made = generator(noise(real))
        of_critic.zero_grad()
        loss = critic(made).mean() - critic(real).mean() + PENALTY * gradient_penalty(critic, real, made)
        loss.backward()
        of_critic.step()
        return loss.detach()

    def run(images: torch.Tensor) -> torch.Tensor:
        for number in range(images.shape[1]):
            loss = update_critic(images[:, number])
        of_generator.zero_grad()
        (-critic(generator(noise(images))).mean()).backward()
        of_generator.step()
        return loss

    return TrainingStep(run, (of_critic, of_generator))


def wgan_gp(*, reduced: bool = False) -> Workload:
    """Return WGAN-GP; reduced: 8 instead of 64 channels. A sample is five real images; the loss is the critic's."""
    channels = 8 if reduced else CHANNELS
    return Workload(
        partial(Networks, channels), lambda batch: (torch.rand(batch, CRITIC_UPDATES, 3, SIDE, SIDE) * 2 - 1,),
        partial(_make_step, 1e-4), batch=4 if reduced else 64, units_per_sample=CRITIC_UPDATES,
    )  # fmt: skip
