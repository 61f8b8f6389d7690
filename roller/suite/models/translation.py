"""Translation models: a recurrent encoder and decoder with attention (Seq2Seq), and the Transformer."""

# As in the published benchmark, sentences have 20 to 30 words of IWSLT'15, padded to 30, from a vocabulary of 17,188.

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import torch
from torch import nn
from torch.nn import functional

from roller.suite.entry import Workload
from roller.suite.models.supervised_step import supervised_step_factory

# Seq2Seq: Luong et al., "Effective Approaches to Attention-based Neural Machine Translation", 2015, arXiv:1508.04025
# with the benchmark's five LSTM layers of 512 units. Their split is not published; here two read the source and three
# write the target. Attention follows the last layer without feedback, so that each layer is one library call.
# Transformer: Vaswani et al., "Attention Is All You Need", 2017, arXiv:1706.03762, the base model: six encoder and six
# decoder layers, and one embedding table for both sides and the classifier.
VOCABULARY, SHORTEST, LONGEST = 17_188, 20, 30
#: Word index of padding.
PADDING = 0
WIDTH = 512


class Seq2Seq(nn.Module):
    """Five LSTM layers with attention; maps source and target words to the next target words."""

    def __init__(self, vocabulary: int = VOCABULARY, width: int = WIDTH, dropout: float = 0.2) -> None:
        super().__init__()
        self.source_words = nn.Embedding(vocabulary, width, padding_idx=PADDING)
        self.target_words = nn.Embedding(vocabulary, width, padding_idx=PADDING)
        self.encoder = nn.ModuleList(nn.LSTM(width, width, batch_first=True) for _ in range(2))
        self.decoder = nn.ModuleList(nn.LSTM(width, width, batch_first=True) for _ in range(3))
        self.dropout = nn.Dropout(dropout)
        self.score = nn.Linear(width, width, bias=False)
        self.join = nn.Linear(2 * width, width, bias=False)
        self.classifier = nn.Linear(width, vocabulary, bias=False)

    def forward(self, source: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        """Return logits, shape ``(batch, target length, vocabulary)``."""
        states, memory = [], self.source_words(source)
        for layer in self.encoder:
            memory, state = layer(self.dropout(memory))
            states.append(state)
        x = self.target_words(target)
        for number, layer in enumerate(self.decoder):
            x, _ = layer(self.dropout(x), states[number] if number < len(states) else None)
        scores = self.score(x) @ memory.transpose(1, 2)
        weights = scores.masked_fill((source == PADDING)[:, None, :], -torch.inf).softmax(-1)
        return self.classifier(torch.tanh(self.join(torch.cat([weights @ memory, x], -1))))


class Transformer(nn.Module):
    """Encoder layers for the source and the same number of decoder layers for the target."""

    def __init__(
        self, vocabulary: int = VOCABULARY, width: int = WIDTH, layers: int = 6, heads: int = 8, dropout: float = 0.1
    ) -> None:
        super().__init__()
        self.words = nn.Embedding(vocabulary, width, padding_idx=PADDING)
        nn.init.normal_(self.words.weight, std=width**-0.5)
        self.register_buffer("places", _position_encoding(LONGEST + 1, width), persistent=False)
        self.dropout, self.width = nn.Dropout(dropout), width
        self.encoder = nn.ModuleList(
            nn.TransformerEncoderLayer(width, heads, 4 * width, dropout, batch_first=True) for _ in range(layers)
        )
        self.decoder = nn.ModuleList(
            nn.TransformerDecoderLayer(width, heads, 4 * width, dropout, batch_first=True) for _ in range(layers)
        )

    def _embed(self, words: torch.Tensor) -> torch.Tensor:
        return self.dropout(self.words(words) * math.sqrt(self.width) + self.places[: words.shape[1]])

    def forward(self, source: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        """Return logits, shape ``(batch, target length, vocabulary)``."""
        padding = torch.zeros(source.shape, device=source.device).masked_fill(source == PADDING, -torch.inf)
        memory = self._embed(source)
        for layer in self.encoder:
            memory = layer(memory, src_key_padding_mask=padding)
        length = target.shape[1]
        later = torch.full((length, length), -torch.inf, device=target.device).triu(1)
        x = self._embed(target)
        for layer in self.decoder:
            x = layer(x, memory, tgt_mask=later, memory_key_padding_mask=padding)
        return x @ self.words.weight.t()


def _position_encoding(length: int, width: int) -> torch.Tensor:
    """Return the position encoding, shape ``(length, width)``: sines, then cosines."""
    rates = torch.exp(torch.arange(0, width, 2) * (-math.log(10_000.0) / width))
    angles = torch.arange(length)[:, None] * rates
    return torch.cat([angles.sin(), angles.cos()], 1)


def random_sentences(batch: int, vocabulary: int, words: int) -> torch.Tensor:
    """Return random sentences of at least 20 words, if ``words`` permits, padded to shape ``(batch, words)``."""
    lengths = torch.randint(min(SHORTEST, words), words + 1, (batch, 1))
    return torch.randint(1, vocabulary, (batch, words)).masked_fill(torch.arange(words) >= lengths, PADDING)


def _sentence_pair_generator(vocabulary: int, words: int) -> Callable[[int], tuple[torch.Tensor, torch.Tensor]]:
    """Return a function that maps a batch size to sources, shape ``(batch, words)``, and targets with a start token."""
    return lambda batch: (
        random_sentences(batch, vocabulary, words),
        functional.pad(random_sentences(batch, vocabulary, words), (1, 0), value=1),
    )


def _loss(smoothing: float, model: nn.Module, source: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    logits, wanted = model(source, target[:, :-1]), target[:, 1:]
    return functional.cross_entropy(
        logits.flatten(0, 1), wanted.flatten(), ignore_index=PADDING, label_smoothing=smoothing
    )


def seq2seq(*, reduced: bool = False) -> Workload:
    """Return the recurrent translator; reduced: 64 units and 1,000 words."""
    vocabulary, width = (1_000, 64) if reduced else (VOCABULARY, WIDTH)
    adam = partial(torch.optim.Adam, lr=1e-2 if reduced else 1e-3)
    return Workload(
        partial(Seq2Seq, vocabulary, width), _sentence_pair_generator(vocabulary, LONGEST),
        supervised_step_factory(adam, partial(_loss, 0.0), clip_norm=5.0), batch=8 if reduced else 64,
    )  # fmt: skip


def transformer(*, reduced: bool = False) -> Workload:
    """Return the base Transformer of twelve layers; reduced: a width of 64 and 1,000 words."""
    vocabulary, width = (1_000, 64) if reduced else (VOCABULARY, WIDTH)
    adam = partial(torch.optim.Adam, lr=1e-3 if reduced else 5e-4, betas=(0.9, 0.98), eps=1e-9)
    return Workload(
        partial(Transformer, vocabulary, width), _sentence_pair_generator(vocabulary, LONGEST),
        supervised_step_factory(adam, partial(_loss, 0.1)),
        batch=8 if reduced else 64,
    )  # fmt: skip
