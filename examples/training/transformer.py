"""An entry file: the base Transformer that translates, as in "Attention Is All You Need" (Vaswani et al., 2017).

roller forecast examples/training/transformer.py --device a100 --amp bf16
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import nn

WIDTH, HEADS, LAYERS, INNER, DROPOUT = 512, 8, 6, 2048, 0.1
#: Subwords that both languages share; word 0 fills sentences up.
WORDS, PADDING = 37_000, 0
LENGTH = 50


class MultiHeadAttention(nn.Module):
    """Scaled dot-product attention of several heads."""

    def __init__(self) -> None:
        super().__init__()
        self.query = nn.Linear(WIDTH, WIDTH)
        self.key = nn.Linear(WIDTH, WIDTH)
        self.value = nn.Linear(WIDTH, WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH)
        self.dropout = nn.Dropout(DROPOUT)

    def forward(self, x: torch.Tensor, memory: torch.Tensor, hidden: torch.Tensor) -> torch.Tensor:
        """Return what each word of ``x`` reads from ``memory``, except where ``hidden`` is true."""
        query, key, value = (self.split(y) for y in (self.query(x), self.key(memory), self.value(memory)))
        scores = query @ key.transpose(-2, -1) / math.sqrt(query.shape[-1])
        scores = scores.masked_fill(hidden, -math.inf)
        weights = self.dropout(scores.softmax(-1))
        return self.out((weights @ value).transpose(1, 2).flatten(2))

    @staticmethod
    def split(x: torch.Tensor) -> torch.Tensor:
        """Return ``(batch, length, width)`` as ``(batch, heads, length, width of a head)``."""
        return x.unflatten(-1, (HEADS, -1)).transpose(1, 2)


class FeedForward(nn.Sequential):
    """Two linear layers, for each word by itself."""

    def __init__(self) -> None:
        super().__init__(nn.Linear(WIDTH, INNER), nn.ReLU(), nn.Linear(INNER, WIDTH))


class EncoderLayer(nn.Module):
    """Self-attention and a feed-forward network, each with a residual and layer norm."""

    def __init__(self) -> None:
        super().__init__()
        self.attention, self.attention_norm = MultiHeadAttention(), nn.LayerNorm(WIDTH)
        self.feed_forward, self.feed_forward_norm = FeedForward(), nn.LayerNorm(WIDTH)
        self.dropout = nn.Dropout(DROPOUT)

    def forward(self, x: torch.Tensor, hidden: torch.Tensor) -> torch.Tensor:
        """Return the layer's output, of the shape of ``x``."""
        x = self.attention_norm(x + self.dropout(self.attention(x, x, hidden)))
        return self.feed_forward_norm(x + self.dropout(self.feed_forward(x)))


class DecoderLayer(nn.Module):
    """As an encoder's layer, with attention to the encoder's output in between."""

    def __init__(self) -> None:
        super().__init__()
        self.attention, self.attention_norm = MultiHeadAttention(), nn.LayerNorm(WIDTH)
        self.cross_attention, self.cross_attention_norm = MultiHeadAttention(), nn.LayerNorm(WIDTH)
        self.feed_forward, self.feed_forward_norm = FeedForward(), nn.LayerNorm(WIDTH)
        self.dropout = nn.Dropout(DROPOUT)

    def forward(
        self, x: torch.Tensor, memory: torch.Tensor, future: torch.Tensor, hidden: torch.Tensor
    ) -> torch.Tensor:
        """Return the layer's output, of the shape of ``x``."""
        x = self.attention_norm(x + self.dropout(self.attention(x, x, future)))
        x = self.cross_attention_norm(x + self.dropout(self.cross_attention(x, memory, hidden)))
        return self.feed_forward_norm(x + self.dropout(self.feed_forward(x)))


class Embedding(nn.Module):
    """Words and their places, whose encoding are waves."""

    places: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        nn.init.normal_(self.words.weight, std=WIDTH**-0.5)
        self.dropout = nn.Dropout(DROPOUT)
        frequencies = torch.exp(torch.arange(0, WIDTH, 2) * (-math.log(10_000) / WIDTH))
        angles = torch.arange(LENGTH)[:, None] * frequencies
        self.register_buffer("places", torch.stack([angles.sin(), angles.cos()], -1).flatten(1))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return a vector for each token."""
        return self.dropout(self.words(tokens) * math.sqrt(WIDTH) + self.places[: tokens.shape[1]])


class Transformer(nn.Module):
    """Encoder and decoder; one matrix embeds the words of both and predicts the next one."""

    future: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.embedding = Embedding()
        self.encoder = nn.ModuleList(EncoderLayer() for _ in range(LAYERS))
        self.decoder = nn.ModuleList(DecoderLayer() for _ in range(LAYERS))
        self.register_buffer("future", torch.ones(LENGTH, LENGTH, dtype=torch.bool).triu(1))

    def forward(self, source: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        """Return the logits of the word after each one of ``target``."""
        hidden = (source == PADDING)[:, None, None, :]
        future = self.future[: target.shape[1], : target.shape[1]]
        memory = self.embedding(source)
        for layer in self.encoder:
            memory = layer(memory, hidden)
        x = self.embedding(target)
        for layer in self.decoder:
            x = layer(x, memory, future, hidden)
        return nn.functional.linear(x, self.embedding.words.weight)


def model_provider() -> nn.Module:
    """Return the model."""
    return Transformer()


def input_provider(batch_size: int = 64) -> tuple[torch.Tensor, torch.Tensor]:
    """Return sentences and their translations, which have one word more: the first one begins a sentence."""
    source = torch.randint(1, WORDS, (batch_size, LENGTH))
    target = torch.randint(1, WORDS, (batch_size, LENGTH + 1))
    return source, target


def iteration_provider(model: nn.Module) -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor]:
    """Return a step of Adam; it returns the loss."""
    optimizer = torch.optim.Adam(model.parameters(), lr=7e-4, betas=(0.9, 0.98), eps=1e-9)
    criterion = nn.CrossEntropyLoss(ignore_index=PADDING, label_smoothing=0.1)

    def step(source: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        logits = model(source, target[:, :-1])
        loss = criterion(logits.flatten(0, 1), target[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step
