"""An entry file: a small decoder whose feed-forward networks are mixtures of experts, two for each token."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional as F

WIDTH, HEADS, LAYERS, INNER, EXPERTS, CHOSEN = 256, 4, 2, 512, 8, 2
WORDS, LENGTH = 8_000, 128
#: Weight of the loss that spreads tokens over experts.
BALANCE = 0.01


class Expert(nn.Module):
    """A gated feed-forward network."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(WIDTH, INNER, bias=False)
        self.up = nn.Linear(WIDTH, INNER, bias=False)
        self.down = nn.Linear(INNER, WIDTH, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the network's output, of the shape of ``x``."""
        return self.down(F.silu(self.gate(x)) * self.up(x))


class MixtureOfExperts(nn.Module):
    """A router picks the experts of each token, and each expert computes the tokens that picked it."""

    def __init__(self) -> None:
        super().__init__()
        self.router = nn.Linear(WIDTH, EXPERTS, bias=False)
        self.experts = nn.ModuleList(Expert() for _ in range(EXPERTS))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the weighted sum of the experts of each token, and how unevenly experts were picked."""
        tokens = x.flatten(0, 1)
        probabilities = self.router(tokens).softmax(-1)
        weights, chosen = probabilities.topk(CHOSEN, -1)
        weights = weights / weights.sum(-1, keepdim=True)
        y = torch.zeros_like(tokens)
        for number, expert in enumerate(self.experts):
            rows, places = torch.where(chosen == number)
            part = expert(tokens[rows]) * weights[rows, places, None]
            y = y.index_add(0, rows, part.to(y.dtype))
        load = F.one_hot(chosen, EXPERTS).sum(1).float().mean(0)
        uneven = EXPERTS * (load * probabilities.mean(0)).sum()
        return y.view_as(x), uneven


class Attention(nn.Module):
    """Causal attention of several heads."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH, bias=False)
        self.out = nn.Linear(WIDTH, WIDTH, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return what each token reads from those before it."""
        query, key, value = self.qkv(x).unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        return self.out(y.transpose(1, 2).flatten(2))


class Block(nn.Module):
    """Attention and a mixture of experts, each after layer norm and beside a residual."""

    def __init__(self) -> None:
        super().__init__()
        self.attention_norm, self.attention = nn.LayerNorm(WIDTH), Attention()
        self.mixture_norm, self.mixture = nn.LayerNorm(WIDTH), MixtureOfExperts()

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the block's output, and how unevenly its experts were picked."""
        x = x + self.attention(self.attention_norm(x))
        y, uneven = self.mixture(self.mixture_norm(x))
        return x + y, uneven


class Decoder(nn.Module):
    """A language model."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(WORDS, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WORDS, bias=False)

    def forward(self, tokens: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the logits of the word after each token, and how unevenly experts were picked."""
        x = self.words(tokens) + self.places(torch.arange(tokens.shape[1], device=tokens.device))
        total = x.new_zeros(())
        for block in self.blocks:
            x, uneven = block(x)
            total = total + uneven
        return self.head(self.norm(x)), total


def model_provider() -> nn.Module:
    """Return the model."""
    return Decoder()


def input_provider(batch_size: int = 16) -> tuple[torch.Tensor, torch.Tensor]:
    """Return tokens and the word after each."""
    text = torch.randint(WORDS, (batch_size, LENGTH + 1))
    return text[:, :-1], text[:, 1:]


def iteration_provider(model: nn.Module) -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor]:
    """Return a step of AdamW; it returns the loss."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    criterion = nn.CrossEntropyLoss()

    def step(tokens: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        logits, uneven = model(tokens)
        loss = criterion(logits.flatten(0, 1), wanted.flatten()) + BALANCE * uneven
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step
