"""Transformers by their published configurations, in plain ``torch.nn``: encoders, decoders, and a mixture of experts.

Attention is written out, product by product, as the models' own code was when the published times were taken; with
``fused=True`` it is ``scaled_dot_product_attention``.
"""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.nn import functional

from roller.suite.models.bert import Body
from roller.suite.models.transformer_blocks import Block, FeedForward, Sizes, Tanh

GPT2_LARGE = Sizes(36, 1280, 20, 5120, 50257, 1024)
OPT_13 = Sizes(24, 2048, 32, 8192, 50272, 2050)
#: The paper gives 24 heads of 128, a width of 3072, and beside it a width of 2048: published times are of the former.
GPT3_XL = Sizes(24, 3072, 24, 12288, 50257, 2048)
GPT3_27 = Sizes(32, 2560, 32, 10240, 50257, 2048)
#: Encoder and decoder of a switch transformer, of which every second block has experts.
SWITCH_XL = Sizes(24, 2048, 32, 8192, 32128, 2048)


class Decoder(nn.Module):
    """A language model that reads from the left: GPT-2, GPT-3, OPT."""

    def __init__(self, sizes: Sizes, *, relu: bool = False, fused: bool = False) -> None:
        super().__init__()
        self.tokens = nn.Embedding(sizes.vocabulary, sizes.width)
        self.positions = nn.Embedding(sizes.positions, sizes.width)
        self.dropout = nn.Dropout(sizes.dropout)
        self.blocks = nn.ModuleList(
            Block(
                sizes, FeedForward(sizes, nn.ReLU() if relu else Tanh(), joined=not relu),
                causal=True, joined=not relu, first=True, fused=fused,
            )
            for _ in range(sizes.layers)
        )  # fmt: skip
        self.norm = nn.LayerNorm(sizes.width)
        self.head = nn.Linear(sizes.width, sizes.vocabulary, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:  # noqa: D102 - as the class says
        places = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.dropout(self.tokens(tokens) + self.positions(places))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


class Encoder(Body):
    """BERT with its head for masked words, which shares the table of tokens."""

    def __init__(self, sizes: Sizes, *, fused: bool = False) -> None:
        super().__init__(sizes, fused=fused)
        width = sizes.width
        self.transform, self.head_norm = nn.Linear(width, width), nn.LayerNorm(width)
        self.head = nn.Linear(width, sizes.vocabulary)
        self.head.weight = self.tokens.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:  # noqa: D102 - as the class says
        x = super().forward(tokens)
        return self.head(self.head_norm(functional.gelu(self.transform(x))))


class Experts(nn.Module):
    """A feed-forward part of several experts; every token goes to one, and each takes as many as it has room for.

    Parameters
    ----------
    sizes
        Of each expert.
    experts
        How many.
    room
        Tokens an expert takes, as a multiple of its even share.
    """

    def __init__(self, sizes: Sizes, experts: int, room: float = 1.0) -> None:
        super().__init__()
        self.router = nn.Linear(sizes.width, experts, bias=False)
        self.experts = nn.ModuleList(FeedForward(sizes, nn.ReLU(), joined=False) for _ in range(experts))
        self.room = room

    def forward(self, x: torch.Tensor) -> torch.Tensor:  # noqa: D102 - as the class says
        flat = x.reshape(-1, x.shape[-1])
        share, chosen = functional.softmax(self.router(flat), dim=-1).max(dim=-1)
        order = torch.argsort(chosen)
        taken = max(1, math.ceil(flat.shape[0] * self.room / len(self.experts)))
        result = torch.zeros_like(flat)
        for number, expert in enumerate(self.experts):
            rows = order[number * taken : (number + 1) * taken]
            result = result.index_add(0, rows, expert(flat[rows]) * share[rows].unsqueeze(-1))
        return result.view_as(x)


class Mixture(nn.Module):
    """A language model whose every second block has experts."""

    def __init__(self, sizes: Sizes, experts: int, *, fused: bool = False) -> None:
        super().__init__()
        self.tokens = nn.Embedding(sizes.vocabulary, sizes.width)
        self.blocks = nn.ModuleList(
            Block(
                sizes,
                Experts(sizes, experts) if number % 2 else FeedForward(sizes, nn.ReLU(), joined=False),
                causal=True, joined=False, first=True, fused=fused,
            )
            for number in range(sizes.layers)
        )  # fmt: skip
        self.norm = nn.LayerNorm(sizes.width)
        self.head = nn.Linear(sizes.width, sizes.vocabulary, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:  # noqa: D102 - as the class says
        x = self.tokens(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))
