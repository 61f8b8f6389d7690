"""BERT (Devlin et al., 2018, arXiv:1810.04805), base and large, with the head that locates SQuAD answers in a text."""

# Sequences have 384 tokens, as in the publication's run_squad.py; none of them is padding, so attention has no mask.

from __future__ import annotations

from functools import partial

import torch
from torch import nn
from torch.nn import functional

from roller.suite.entry import Workload
from roller.suite.models.supervised_step import supervised_step_factory
from roller.suite.models.transformer_blocks import Block, FeedForward, Sizes

BERT_BASE = Sizes(12, 768, 12, 3072, 30522, 512)
BERT_LARGE = Sizes(24, 1024, 16, 4096, 30522, 512)
LENGTH = 384


class Body(nn.Module):
    """Encoder that maps tokens and token types (question or text) to vectors."""

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

    def forward(self, tokens: torch.Tensor, kinds: torch.Tensor | None = None) -> torch.Tensor:
        """Return vectors, shape ``(batch, length, width)``; without ``kinds``, all tokens have type 0."""
        places = torch.arange(tokens.shape[1], device=tokens.device)
        x = (
            self.tokens(tokens) + self.kinds(torch.zeros_like(tokens) if kinds is None else kinds)
            + self.positions(places)
        )  # fmt: skip
        x = self.dropout(self.norm(x))
        for block in self.blocks:
            x = block(x)
        return x


class Answers(nn.Module):
    """BERT with two logits per token: for the start and the end of an answer."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.body, self.head = Body(sizes, fused=True), nn.Linear(sizes.width, 2)
        for module in self.modules():
            if isinstance(module, nn.Linear | nn.Embedding):
                nn.init.normal_(module.weight, std=0.02)

    def forward(self, tokens: torch.Tensor, kinds: torch.Tensor) -> torch.Tensor:
        """Return logits, shape ``(batch, length, 2)``."""
        return self.head(self.body(tokens, kinds))


def _loss(
    model: nn.Module, tokens: torch.Tensor, kinds: torch.Tensor, first: torch.Tensor, last: torch.Tensor
) -> torch.Tensor:
    begins, ends = model(tokens, kinds).unbind(-1)
    return (functional.cross_entropy(begins, first) + functional.cross_entropy(ends, last)) / 2


def _random_inputs(vocabulary: int, length: int, batch: int) -> tuple[torch.Tensor, ...]:
    """Return tokens and types, shape ``(batch, length)``, and starts and ends of answers, shape ``(batch,)``."""
    kinds = (torch.arange(length) >= length // 8).long().repeat(batch, 1)
    first, last = torch.randint(length // 8, length, (2, batch)).sort(0).values
    return torch.randint(vocabulary, (batch, length)), kinds, first, last


def _make_workload(published: Sizes, batch: int, *, reduced: bool) -> Workload:
    small = Sizes(published.layers, 64, 4, 256, 1_000, 64)
    sizes, length = (small, 32) if reduced else (published, LENGTH)
    adamw = partial(torch.optim.AdamW, lr=1e-3 if reduced else 3e-5)
    return Workload(
        partial(Answers, sizes), partial(_random_inputs, sizes.vocabulary, length), supervised_step_factory(adamw,
            _loss, clip_norm=1.0),
        batch=8 if reduced else batch,
    )  # fmt: skip


def bert_base(*, reduced: bool = False) -> Workload:
    """Return BERT base: 12 blocks, 108,893,186 parameters; reduced: a width of 64 and 32 tokens."""
    return _make_workload(BERT_BASE, 8, reduced=reduced)


def bert_large(*, reduced: bool = False) -> Workload:
    """Return BERT large: 24 blocks, 334,094,338 parameters; reduced: a width of 64 and 32 tokens."""
    return _make_workload(BERT_LARGE, 4, reduced=reduced)
