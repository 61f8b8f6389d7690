"""A modern text decoder: grouped-query attention, rotary embeddings, RMS norm and a gated feed-forward layer."""

# It has the sizes of SmolLM2-135M (Allal et al., "SmolLM2", 2025, arXiv:2502.02737; its config.json), and sequences of
# 1,024 of its 8,192 tokens, so that devices with 8 GB can train it.

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import torch
from torch import nn
from torch.nn import functional

from roller.suite.entry import Workload
from roller.suite.models.supervised_step import supervised_step_factory


@dataclass(frozen=True)
class Sizes:
    """Decoder dimensions; ``groups`` counts key and value heads, and ``length`` counts tokens per sequence."""

    layers: int
    width: int
    heads: int
    groups: int
    inner: int
    vocabulary: int
    length: int
    theta: float = 100_000.0


SMOLLM2 = Sizes(30, 576, 9, 3, 1536, 49_152, 1024)


class RMSNorm(nn.Module):
    """Root-mean-square normalization with a weight."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return tokens, shape ``(batch, length, width)``."""
        return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5))


def rotary_table(sizes: Sizes) -> torch.Tensor:
    """Return the cosines and sines for all positions, shape ``(2, length, elements per head)``."""
    each = sizes.width // sizes.heads
    rates = sizes.theta ** (-torch.arange(0, each, 2) / each)
    angles = torch.arange(sizes.length)[:, None] * torch.cat([rates, rates])
    return torch.stack([angles.cos(), angles.sin()])


def rotate_heads(x: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
    """Return heads, shape ``(batch, heads, length, elements)``, rotated by their positions (rotary embedding)."""
    first, second = x.chunk(2, -1)
    return x * places[0] + torch.cat([-second, first], -1) * places[1]


class GroupedAttention(nn.Module):
    """Causal attention in which several query heads share one key and value head."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.each, self.shared = sizes.width // sizes.heads, sizes.heads // sizes.groups
        self.q = nn.Linear(sizes.width, sizes.width, bias=False)
        self.k, self.v = (nn.Linear(sizes.width, sizes.groups * self.each, bias=False) for _ in range(2))
        self.out = nn.Linear(sizes.width, sizes.width, bias=False)

    def forward(self, x: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
        """Return tokens, shape ``(batch, length, width)``."""
        q, k, v = (part(x).unflatten(-1, (-1, self.each)).transpose(1, 2) for part in (self.q, self.k, self.v))
        q, k = rotate_heads(q, places), rotate_heads(k, places)
        k, v = (t.repeat_interleave(self.shared, 1) for t in (k, v))
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(mixed.transpose(1, 2).flatten(2))


class GatedFeedForward(nn.Module):
    """Gated linear unit with SiLU, followed by a projection back to the input width."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.gate, self.up = (nn.Linear(sizes.width, sizes.inner, bias=False) for _ in range(2))
        self.down = nn.Linear(sizes.inner, sizes.width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return tokens, shape ``(batch, length, width)``."""
        return self.down(functional.silu(self.gate(x)) * self.up(x))


class DecoderBlock(nn.Module):
    """Attention and feed-forward sublayers, each preceded by a norm."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.norm1, self.attention = RMSNorm(sizes.width), GroupedAttention(sizes)
        self.norm2, self.feed = RMSNorm(sizes.width), GatedFeedForward(sizes)

    def forward(self, x: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
        """Return tokens, shape ``(batch, length, width)``."""
        x = x + self.attention(self.norm1(x), places)
        return x + self.feed(self.norm2(x))


class Decoder(nn.Module):
    """Decoder that maps tokens to logits of the next tokens; the head shares the embedding table."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.tokens = nn.Embedding(sizes.vocabulary, sizes.width)
        self.register_buffer("places", rotary_table(sizes), persistent=False)
        self.blocks = nn.ModuleList(DecoderBlock(sizes) for _ in range(sizes.layers))
        self.norm = RMSNorm(sizes.width)
        self.head = nn.Linear(sizes.width, sizes.vocabulary, bias=False)
        for module in self.modules():
            if isinstance(module, nn.Linear | nn.Embedding):
                nn.init.normal_(module.weight, std=0.02)
        self.head.weight = self.tokens.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return logits, shape ``(batch, length, vocabulary)``."""
        x, places = self.tokens(tokens), self.places[:, : tokens.shape[1]]
        for block in self.blocks:
            x = block(x, places)
        return self.head(self.norm(x))


def _loss(model: nn.Module, tokens: torch.Tensor) -> torch.Tensor:
    logits = model(tokens[:, :-1])
    return functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())


def decoder(*, reduced: bool = False) -> Workload:
    """Return the decoder: 134,515,008 parameters; reduced: a width of 72, 500 tokens, sequences of 32."""
    sizes = Sizes(30, 72, 9, 3, 192, 500, 32) if reduced else SMOLLM2
    adamw = partial(torch.optim.AdamW, lr=3e-3 if reduced else 5e-4, betas=(0.9, 0.95))
    return Workload(
        partial(Decoder, sizes), lambda batch: (torch.randint(sizes.vocabulary, (batch, sizes.length + 1)),),
        supervised_step_factory(adamw, _loss, clip_norm=1.0), batch=4 if reduced else 2, units_per_sample=sizes.length,
    )  # fmt: skip
