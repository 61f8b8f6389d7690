"""Small entry files that tests of the server profile."""

from __future__ import annotations

#: Two blocks and a head; comments of tests name its lines.
NET = """import torch
from torch import nn


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Linear(64, 64)
        self.b = nn.Linear(64, 64)

    def forward(self, x):
        return self.b(torch.relu(self.a(x)))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.Sequential(Block(), Block())
        self.head = nn.Linear(64, 10)

    def forward(self, x):
        return self.head(self.blocks(x))


def model_provider():
    return Net()


def input_provider(name="π🙂", *, batch_size=16):
    return torch.zeros(batch_size, 64), torch.zeros(batch_size, dtype=torch.long)


def iteration_provider(model):
    optimizer = torch.optim.SGD(model.parameters())

    def step(x, y):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()

    return step
"""

#: Convolutions, in a project's module of its own.
CONVOLUTIONS = """import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU())
        self.head = nn.Linear(16, 10)

    def forward(self, x):
        x = self.body(x)
        return self.head(x.mean((2, 3)))


def model_provider():
    return Net()


def input_provider(batch_size=8):
    return torch.zeros(batch_size, 3, 32, 32), torch.zeros(batch_size, dtype=torch.long)


def iteration_provider(model):
    optimizer = torch.optim.Adam(model.parameters())

    def step(x, y):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()

    return step
"""


def edited(source: str, old: str, new: str) -> str:
    """Return a source with one place changed, which must be there once."""
    assert source.count(old) == 1
    return source.replace(old, new)
