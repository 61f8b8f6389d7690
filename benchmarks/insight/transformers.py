"""Transformers by their published configurations, in plain ``torch.nn``: encoders, decoders, and a mixture of experts.

Attention is written out, product by product, as the models' own code was when the published times were taken; with
``fused=True`` it is ``scaled_dot_product_attention``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional


@dataclass(frozen=True)
class Sizes:
    """Of a transformer.

    Parameters
    ----------
    layers, width, heads, inner
        Blocks, elements of a token, heads of attention, elements in the middle of the feed-forward part.
    vocabulary, positions
        Rows of the tables of embeddings.
    dropout
        Share of elements dropped in training.
    """

    layers: int
    width: int
    heads: int
    inner: int
    vocabulary: int
    positions: int
    dropout: float = 0.1


BERT_LARGE = Sizes(24, 1024, 16, 4096, 30522, 512)
GPT2_LARGE = Sizes(36, 1280, 20, 5120, 50257, 1024)
OPT_13 = Sizes(24, 2048, 32, 8192, 50272, 2050)
#: The paper gives 24 heads of 128, a width of 3072, and beside it a width of 2048: published times are of the former.
GPT3_XL = Sizes(24, 3072, 24, 12288, 50257, 2048)
GPT3_27 = Sizes(32, 2560, 32, 10240, 50257, 2048)
#: Encoder and decoder of a switch transformer, of which every second block has experts.
SWITCH_XL = Sizes(24, 2048, 32, 8192, 32128, 2048)


class Projection(nn.Module):
    """A linear layer whose weight lies input by output, as GPT-2's own code keeps it."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(inputs, outputs))
        self.bias = nn.Parameter(torch.zeros(outputs))
        nn.init.normal_(self.weight, std=0.02)

    def forward(self, x: torch.Tensor) -> torch.Tensor:  # noqa: D102 - as the class says
        flat = torch.addmm(self.bias, x.view(-1, x.shape[-1]), self.weight)
        return flat.view(*x.shape[:-1], self.weight.shape[1])


class Attention(nn.Module):
    """Self-attention: three products of the input, scores, softmax, and a product of the result."""

    def __init__(self, sizes: Sizes, *, causal: bool, joined: bool, fused: bool) -> None:
        super().__init__()
        self.heads, self.causal, self.fused, self.drop = sizes.heads, causal, fused, sizes.dropout
        width = sizes.width
        if joined:
            self.qkv = Projection(width, 3 * width)
            self.out: nn.Module = Projection(width, width)
        else:
            self.q, self.k, self.v = (nn.Linear(width, width) for _ in range(3))
            self.out = nn.Linear(width, width)
        self.joined = joined
        self.attention_dropout, self.dropout = nn.Dropout(sizes.dropout), nn.Dropout(sizes.dropout)
        if causal:
            allowed = torch.ones(sizes.positions, sizes.positions, dtype=torch.bool).tril()
            self.register_buffer("allowed", allowed.view(1, 1, sizes.positions, sizes.positions), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:  # noqa: D102 - as the class says
        batch, length, width = x.shape
        parts = self.qkv(x).split(width, dim=2) if self.joined else (self.q(x), self.k(x), self.v(x))
        q, k, v = (t.view(batch, length, self.heads, -1).transpose(1, 2) for t in parts)
        if self.fused:
            drop = self.drop if self.training else 0.0
            mixed = functional.scaled_dot_product_attention(q, k, v, dropout_p=drop, is_causal=self.causal)
        else:
            mixed = torch.matmul(self.weights(q, k), v)
        return self.dropout(self.out(mixed.transpose(1, 2).contiguous().view(batch, length, width)))

    def weights(self, q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
        """Return how much of each value every position takes."""
        scores = torch.matmul(q, k.transpose(-1, -2)) / math.sqrt(q.shape[-1])
        if self.causal:
            length = q.shape[-2]
            least = torch.full([], torch.finfo(scores.dtype).min, dtype=scores.dtype, device=scores.device)
            scores = torch.where(self.allowed[:, :, :length, :length], scores, least)
        return self.attention_dropout(functional.softmax(scores, dim=-1))


class Tanh(nn.Module):
    """GELU by tanh, operator by operator, as GPT-2's own code computes it."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:  # noqa: D102 - as the class says
        inner = math.sqrt(2.0 / math.pi) * (x + 0.044715 * torch.pow(x, 3.0))
        return 0.5 * x * (1.0 + torch.tanh(inner))


class FeedForward(nn.Module):
    """Two products and what stands between them."""

    def __init__(self, sizes: Sizes, activation: nn.Module, *, joined: bool) -> None:
        super().__init__()
        kind = Projection if joined else nn.Linear
        self.inner, self.outer = kind(sizes.width, sizes.inner), kind(sizes.inner, sizes.width)
        self.activation, self.dropout = activation, nn.Dropout(sizes.dropout)

    def forward(self, x: torch.Tensor) -> torch.Tensor:  # noqa: D102 - as the class says
        return self.dropout(self.outer(self.activation(self.inner(x))))


class Block(nn.Module):
    """Attention and a feed-forward part, normed before (decoders) or after (encoders)."""

    def __init__(self, sizes: Sizes, feed: nn.Module, *, causal: bool, joined: bool, first: bool, fused: bool) -> None:
        super().__init__()
        self.attention = Attention(sizes, causal=causal, joined=joined, fused=fused)
        self.feed, self.first = feed, first
        self.norm1, self.norm2 = nn.LayerNorm(sizes.width), nn.LayerNorm(sizes.width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:  # noqa: D102 - as the class says
        if self.first:
            x = x + self.attention(self.norm1(x))
            return x + self.feed(self.norm2(x))
        x = self.norm1(x + self.attention(x))
        return self.norm2(x + self.feed(x))


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


class Encoder(nn.Module):
    """BERT with its head for masked words, which shares the table of tokens."""

    def __init__(self, sizes: Sizes, *, fused: bool = False) -> None:
        super().__init__()
        width = sizes.width
        self.tokens, self.positions = nn.Embedding(sizes.vocabulary, width), nn.Embedding(sizes.positions, width)
        self.kinds = nn.Embedding(2, width)
        self.norm, self.dropout = nn.LayerNorm(width), nn.Dropout(sizes.dropout)
        self.blocks = nn.ModuleList(
            Block(
                sizes, FeedForward(sizes, nn.GELU(), joined=False), causal=False, joined=False, first=False, fused=fused
            )
            for _ in range(sizes.layers)
        )
        self.transform, self.head_norm = nn.Linear(width, width), nn.LayerNorm(width)
        self.head = nn.Linear(width, sizes.vocabulary)
        self.head.weight = self.tokens.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:  # noqa: D102 - as the class says
        places = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.tokens(tokens) + self.kinds(torch.zeros_like(tokens)) + self.positions(places)
        x = self.dropout(self.norm(x))
        for block in self.blocks:
            x = block(x)
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
