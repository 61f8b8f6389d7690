"""An entry file: a recurrent translator like "Google's Neural Machine Translation System" (Wu et al., 2016).

Four layers in place of eight, as in the benchmark of MLPerf.

roller forecast examples/training/gnmt.py --device a100 --amp bf16
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

WIDTH, LAYERS, DROPOUT = 1024, 4, 0.2
#: Subwords of both languages; word 0 fills sentences up.
WORDS, PADDING = 32_320, 0
LENGTH = 25


class Encoder(nn.Module):
    """A layer that reads both ways, then layers that read forward; from the third on with residuals."""

    def __init__(self, words: nn.Embedding) -> None:
        super().__init__()
        self.words = words
        self.both_ways = nn.LSTM(WIDTH, WIDTH, batch_first=True, bidirectional=True)
        self.second = nn.LSTM(2 * WIDTH, WIDTH, batch_first=True)
        self.residual = nn.ModuleList(nn.LSTM(WIDTH, WIDTH, batch_first=True) for _ in range(LAYERS - 2))
        self.dropout = nn.Dropout(DROPOUT)

    def forward(self, source: torch.Tensor) -> torch.Tensor:
        """Return a vector of ``WIDTH`` for each word."""
        x, _ = self.both_ways(self.dropout(self.words(source)))
        x, _ = self.second(self.dropout(x))
        for layer in self.residual:
            y, _ = layer(self.dropout(x))
            x = x + y
        return x


class AdditiveAttention(nn.Module):
    """Attention whose scores are a small network of query and key (Bahdanau et al., 2015)."""

    def __init__(self) -> None:
        super().__init__()
        self.query = nn.Linear(WIDTH, WIDTH, bias=False)
        self.key = nn.Linear(WIDTH, WIDTH)
        self.score = nn.Linear(WIDTH, 1, bias=False)

    def forward(self, x: torch.Tensor, memory: torch.Tensor, hidden: torch.Tensor) -> torch.Tensor:
        """Return what each word of ``x`` reads from ``memory``, except where ``hidden`` is true."""
        pairs = self.query(x)[:, :, None] + self.key(memory)[:, None]
        scores = self.score(pairs.tanh()).squeeze(-1)
        weights = scores.masked_fill(hidden, -torch.inf).softmax(-1)
        return weights @ memory


class Decoder(nn.Module):
    """The first layer asks the encoder's output; all others read the answer beside the layer below."""

    def __init__(self, words: nn.Embedding) -> None:
        super().__init__()
        self.words = words
        self.first = nn.LSTM(WIDTH, WIDTH, batch_first=True)
        self.attention = AdditiveAttention()
        self.others = nn.ModuleList(nn.LSTM(2 * WIDTH, WIDTH, batch_first=True) for _ in range(LAYERS - 1))
        self.dropout = nn.Dropout(DROPOUT)
        self.classifier = nn.Linear(WIDTH, WORDS)

    def forward(self, target: torch.Tensor, memory: torch.Tensor, hidden: torch.Tensor) -> torch.Tensor:
        """Return the logits of the word after each one of ``target``."""
        x, _ = self.first(self.dropout(self.words(target)))
        context = self.attention(x, memory, hidden)
        for number, layer in enumerate(self.others):
            y, _ = layer(self.dropout(torch.cat([x, context], -1)))
            x = x + y if number > 0 else y
        return self.classifier(x)


class GNMT(nn.Module):
    """Encoder and decoder, which share the embedding of words."""

    def __init__(self) -> None:
        super().__init__()
        words = nn.Embedding(WORDS, WIDTH, padding_idx=PADDING)
        self.encoder, self.decoder = Encoder(words), Decoder(words)

    def forward(self, source: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        """Return the logits of the word after each one of ``target``."""
        hidden = (source == PADDING)[:, None, :]
        return self.decoder(target, self.encoder(source), hidden)


def model_provider() -> nn.Module:
    """Return the model."""
    return GNMT()


def input_provider(batch_size: int = 128) -> tuple[torch.Tensor, torch.Tensor]:
    """Return sentences and their translations, which have one word more: the first one begins a sentence."""
    source = torch.randint(1, WORDS, (batch_size, LENGTH))
    target = torch.randint(1, WORDS, (batch_size, LENGTH + 1))
    return source, target


def iteration_provider(model: nn.Module) -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor]:
    """Return a step of Adam with clipped gradients; it returns the loss."""
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    criterion = nn.CrossEntropyLoss(ignore_index=PADDING, label_smoothing=0.1)

    def step(source: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        logits = model(source, target[:, :-1])
        loss = criterion(logits.flatten(0, 1), target[:, 1:].flatten())
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        optimizer.step()
        return loss.detach()

    return step
