"""Attention and feed-forward blocks in plain ``torch.nn``, shared by encoders and decoders."""

# Attention consists of separate operators, as in the models' own code at the time of the published measurements; with
# ``fused=True`` it is ``scaled_dot_product_attention``.

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional


@dataclass(frozen=True)
class Sizes:
    """Dimensions of a transformer."""

    layers: int
    width: int
    heads: int
    inner: int  # width of the hidden layer in the feed-forward part
    # vocabulary, positions: rows of the embedding tables
    vocabulary: int
    positions: int
    dropout: float = 0.1


class Projection(nn.Module):
    """Linear layer with a weight of shape ``(inputs, outputs)``, as in GPT-2's own code."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(inputs, outputs))
        self.bias = nn.Parameter(torch.zeros(outputs))
        nn.init.normal_(self.weight, std=0.02)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map a tensor of shape ``(..., inputs)`` to one of shape ``(..., outputs)``."""
        flat = torch.addmm(self.bias, x.view(-1, x.shape[-1]), self.weight)
        return flat.view(*x.shape[:-1], self.weight.shape[1])


class Attention(nn.Module):
    """Self-attention with input and output projections."""

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

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return tokens, shape ``(batch, length, width)``."""
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
        """Return the attention weights, shape ``(batch, heads, length, length)``."""
        scores = torch.matmul(q, k.transpose(-1, -2)) / math.sqrt(q.shape[-1])
        if self.causal:
            length = q.shape[-2]
            least = torch.full([], torch.finfo(scores.dtype).min, dtype=scores.dtype, device=scores.device)
            scores = torch.where(self.allowed[:, :, :length, :length], scores, least)
        return self.attention_dropout(functional.softmax(scores, dim=-1))


class Tanh(nn.Module):
    """GELU approximated by tanh, in separate operators as in GPT-2's own code."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return a tensor of the same shape."""
        inner = math.sqrt(2.0 / math.pi) * (x + 0.044715 * torch.pow(x, 3.0))
        return 0.5 * x * (1.0 + torch.tanh(inner))


class FeedForward(nn.Module):
    """Two linear layers with an activation between them."""

    def __init__(self, sizes: Sizes, activation: nn.Module, *, joined: bool) -> None:
        super().__init__()
        kind = Projection if joined else nn.Linear
        self.inner, self.outer = kind(sizes.width, sizes.inner), kind(sizes.inner, sizes.width)
        self.activation, self.dropout = activation, nn.Dropout(sizes.dropout)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return tokens, shape ``(batch, length, width)``."""
        return self.dropout(self.outer(self.activation(self.inner(x))))


class Block(nn.Module):
    """Attention and feed-forward sublayers, each with a norm before it (decoders) or after it (encoders)."""

    def __init__(self, sizes: Sizes, feed: nn.Module, *, causal: bool, joined: bool, first: bool, fused: bool) -> None:
        super().__init__()
        self.attention = Attention(sizes, causal=causal, joined=joined, fused=fused)
        self.feed, self.first = feed, first
        self.norm1, self.norm2 = nn.LayerNorm(sizes.width), nn.LayerNorm(sizes.width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return tokens, shape ``(batch, length, width)``."""
        if self.first:
            x = x + self.attention(self.norm1(x))
            return x + self.feed(self.norm2(x))
        x = self.norm1(x + self.attention(x))
        return self.norm2(x + self.feed(x))
