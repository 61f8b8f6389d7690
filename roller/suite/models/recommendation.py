"""Neural collaborative filtering (He et al., 2017, arXiv:1708.05031): user and item embeddings and a few layers."""

# Sizes are those of MLPerf v0.5 for MovieLens-20M: 138,493 users, 26,744 items, 64 factors, layers of 256, 256, 128,
# 64.

from __future__ import annotations

import itertools
from functools import partial

import torch
from torch import nn
from torch.nn import functional

from roller.suite.entry import Workload
from roller.suite.models.supervised_step import supervised_step_factory

USERS, ITEMS, FACTORS, LAYERS = 138_493, 26_744, 64, (256, 256, 128, 64)


class NeuMF(nn.Module):
    """Network that maps a user and an item to the logit of an interaction; ``layers`` begins with the input width."""

    def __init__(
        self, users: int = USERS, items: int = ITEMS, factors: int = FACTORS, layers: tuple[int, ...] = LAYERS
    ) -> None:
        super().__init__()
        self.product_users, self.product_items = nn.Embedding(users, factors), nn.Embedding(items, factors)
        half = layers[0] // 2
        self.layer_users, self.layer_items = nn.Embedding(users, half), nn.Embedding(items, half)
        pairs = itertools.pairwise(layers)
        self.layers = nn.Sequential(*(part for i, o in pairs for part in (nn.Linear(i, o), nn.ReLU())))
        self.head = nn.Linear(layers[-1] + factors, 1)
        for module in self.modules():
            if isinstance(module, nn.Embedding):
                nn.init.normal_(module.weight, std=0.01)

    def forward(self, users: torch.Tensor, items: torch.Tensor) -> torch.Tensor:
        """Return logits, shape ``(batch,)``."""
        product = self.product_users(users) * self.product_items(items)
        x = self.layers(torch.cat([self.layer_users(users), self.layer_items(items)], -1))
        return self.head(torch.cat([product, x], -1)).squeeze(-1)


def _loss(model: nn.Module, users: torch.Tensor, items: torch.Tensor, met: torch.Tensor) -> torch.Tensor:
    return functional.binary_cross_entropy_with_logits(model(users, items), met)


def _random_inputs(users: int, items: int, batch: int) -> tuple[torch.Tensor, ...]:
    """Return users, items and whether they interact, shape ``(batch,)`` each; four out of five do not, as published."""
    return torch.randint(users, (batch,)), torch.randint(items, (batch,)), (torch.rand(batch) < 0.2).float()


def ncf(*, reduced: bool = False) -> Workload:
    """Return NCF for MovieLens-20M: 31,832,577 parameters; reduced: 1,000 users, 500 items, 1/8 of the factors."""
    sizes = (1_000, 500, 8, (32, 32, 16, 8)) if reduced else (USERS, ITEMS, FACTORS, LAYERS)
    adam = partial(torch.optim.Adam, lr=1e-2 if reduced else 1e-3)
    return Workload(
        partial(NeuMF, *sizes), partial(_random_inputs, sizes[0], sizes[1]), supervised_step_factory(adam, _loss),
        batch=256 if reduced else 16_384,
    )  # fmt: skip
