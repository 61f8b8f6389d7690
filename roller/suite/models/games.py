"""Reinforcement learning: the learner's steps of A3C and MiniGo. Games are not played but given as inputs."""

from __future__ import annotations

from functools import partial

import torch
from torch import nn
from torch.nn import functional

from roller.suite.entry import Workload
from roller.suite.models.supervised_step import supervised_step_factory

# A3C: Mnih et al., "Asynchronous Methods for Deep Reinforcement Learning", 2016, arXiv:1602.01783: four layers over
# four frames of 84 x 84, without the recurrent one.
ACTIONS, FRAMES, SCREEN = 6, 4, 84
# MiniGo: the reference of MLPerf, after Silver et al., "Mastering the game of Go without human knowledge", 2017: 17
# channels of a 19 x 19 board; a convolution, 19 residual blocks with the 38 convolutions that the benchmark counts, and
# two heads.
PLANES, BOARD, WIDTH, BLOCKS = 17, 19, 256, 19


class ActorCritic(nn.Module):
    """Network that maps frames to action logits and the expected return."""

    def __init__(self, channels: int = 16, units: int = 256) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(FRAMES, channels, 8, 4), nn.ReLU(), nn.Conv2d(channels, 2 * channels, 4, 2), nn.ReLU(),
            nn.Flatten(), nn.Linear(2 * channels * 81, units), nn.ReLU(),
        )  # fmt: skip
        self.heads = nn.Linear(units, ACTIONS + 1)

    def forward(self, frames: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return logits, shape ``(batch, actions)``, and values, shape ``(batch,)``."""
        found = self.heads(self.body(frames))
        return found[:, :ACTIONS], found[:, ACTIONS]


def _actor_critic_loss(
    model: nn.Module, frames: torch.Tensor, actions: torch.Tensor, returns: torch.Tensor
) -> torch.Tensor:
    logits, values = model(frames)
    log_shares = logits.log_softmax(-1)
    advantage = returns - values
    chosen = log_shares.gather(1, actions[:, None]).squeeze(1)
    entropy = -(log_shares.exp() * log_shares).sum(-1).mean()
    return -(chosen * advantage.detach()).mean() + 0.5 * advantage.pow(2).mean() - 0.01 * entropy


def _random_episodes(batch: int) -> tuple[torch.Tensor, ...]:
    """Return frames, shape ``(batch, 4, 84, 84)``, and actions and discounted returns, shape ``(batch,)`` each."""
    frames = torch.rand(batch, FRAMES, SCREEN, SCREEN)
    return frames, torch.randint(ACTIONS, (batch,)), torch.randn(batch) + 1


def a3c(*, reduced: bool = False) -> Workload:
    """Return the learner of A3C; reduced: a quarter of the channels and units."""
    channels, units = (4, 64) if reduced else (16, 256)
    rmsprop = partial(torch.optim.RMSprop, lr=7e-4, alpha=0.99, eps=0.1)
    return Workload(
        partial(ActorCritic, channels, units), _random_episodes, supervised_step_factory(rmsprop, _actor_critic_loss,
                                                                                         clip_norm=40.0),
        batch=16 if reduced else 128,
    )  # fmt: skip


class ConvNorm(nn.Sequential):
    """A convolution and batch norm."""

    def __init__(self, inputs: int, outputs: int, kernel: int = 3) -> None:
        super().__init__(nn.Conv2d(inputs, outputs, kernel, padding=kernel // 2, bias=False), nn.BatchNorm2d(outputs))


class Residual(nn.Module):
    """Residual block of two convolutions."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first, self.second = ConvNorm(width, width), ConvNorm(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return features, shape ``(batch, width, board, board)``."""
        return torch.relu(x + self.second(torch.relu(self.first(x))))


class GoNetwork(nn.Module):
    """Network that maps a position to move logits and the expected winner."""

    def __init__(self, width: int = WIDTH, board: int = BOARD) -> None:
        super().__init__()
        self.stem = nn.Sequential(ConvNorm(PLANES, width), nn.ReLU())
        self.tower = nn.Sequential(*(Residual(width) for _ in range(BLOCKS)))
        points = board * board
        self.policy = nn.Sequential(ConvNorm(width, 2, 1), nn.ReLU(), nn.Flatten(), nn.Linear(2 * points, points + 1))
        self.value = nn.Sequential(
            ConvNorm(width, 1, 1), nn.ReLU(), nn.Flatten(), nn.Linear(points, width), nn.ReLU(),
            nn.Linear(width, 1), nn.Tanh(),
        )  # fmt: skip

    def forward(self, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return move logits (the last one: passing), shape ``(batch, points + 1)``, and values, shape ``(batch,)``."""
        x = self.tower(self.stem(positions))
        return self.policy(x), self.value(x).squeeze(1)


def _go_loss(model: nn.Module, positions: torch.Tensor, moves: torch.Tensor, winners: torch.Tensor) -> torch.Tensor:
    logits, values = model(positions)
    return functional.cross_entropy(logits, moves) + functional.mse_loss(values, winners)


def _random_positions(board: int, batch: int) -> tuple[torch.Tensor, ...]:
    """Return positions, shape ``(batch, 17, board, board)``, and the move probabilities and winner of each position."""
    moves = torch.randn(batch, board * board + 1).softmax(-1)
    return torch.rand(batch, PLANES, board, board).round(), moves, torch.rand(batch).round() * 2 - 1


def minigo(*, reduced: bool = False) -> Workload:
    """Return the network of MiniGo; reduced: a width of 32 and a 9 x 9 board."""
    width, board = (32, 9) if reduced else (WIDTH, BOARD)
    sgd = partial(torch.optim.SGD, lr=0.01, momentum=0.9, weight_decay=1e-4)
    return Workload(
        partial(GoNetwork, width, board), partial(_random_positions, board), supervised_step_factory(sgd, _go_loss),
        batch=8 if reduced else 64,
    )  # fmt: skip
