"""An entry file: a small decoder like Llama that is fine-tuned by low-rank adapters on queries and values."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional as F

WIDTH, HEADS, KEY_HEADS, LAYERS, INNER = 256, 8, 2, 2, 688
WORDS, LENGTH, THETA = 8_000, 128, 10_000.0
RANK, ALPHA = 8, 16
HEAD = WIDTH // HEADS


class LoRALinear(nn.Module):
    """A frozen linear layer beside a product of two thin matrices, which learn."""

    def __init__(self, base: nn.Linear) -> None:
        super().__init__()
        self.base = base
        self.down = nn.Linear(base.in_features, RANK, bias=False)
        self.up = nn.Linear(RANK, base.out_features, bias=False)
        nn.init.zeros_(self.up.weight)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return ``base(x) + ALPHA / RANK * up(down(x))``."""
        return self.base(x) + self.up(self.down(x)) * (ALPHA / RANK)


class RMSNorm(nn.Module):
    """Divides by the root of the mean square."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the norm of each token, of the shape of ``x``."""
        y = x.float()
        y = y * torch.rsqrt(y.square().mean(-1, keepdim=True) + 1e-5)
        return self.weight * y.type_as(x)


def rotate(x: torch.Tensor, cosines: torch.Tensor, sines: torch.Tensor) -> torch.Tensor:
    """Return queries or keys, rotated by their places: one half of a head's axes is paired with the other."""
    first, second = x.chunk(2, -1)
    return x * cosines + torch.cat([-second, first], -1) * sines


class Attention(nn.Module):
    """Causal attention; several heads of queries share a head of keys and values."""

    def __init__(self) -> None:
        super().__init__()
        self.query = LoRALinear(nn.Linear(WIDTH, HEADS * HEAD, bias=False))
        self.key = nn.Linear(WIDTH, KEY_HEADS * HEAD, bias=False)
        self.value = LoRALinear(nn.Linear(WIDTH, KEY_HEADS * HEAD, bias=False))
        self.out = nn.Linear(HEADS * HEAD, WIDTH, bias=False)

    def forward(self, x: torch.Tensor, cosines: torch.Tensor, sines: torch.Tensor) -> torch.Tensor:
        """Return what each token reads from those before it."""
        query, key, value = (
            y.unflatten(-1, (-1, HEAD)).transpose(1, 2) for y in (self.query(x), self.key(x), self.value(x))
        )
        query, key = rotate(query, cosines, sines), rotate(key, cosines, sines)
        key, value = (y.repeat_interleave(HEADS // KEY_HEADS, 1) for y in (key, value))
        y = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        return self.out(y.transpose(1, 2).flatten(2))


class SwiGLU(nn.Module):
    """A gated feed-forward network."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(WIDTH, INNER, bias=False)
        self.up = nn.Linear(WIDTH, INNER, bias=False)
        self.down = nn.Linear(INNER, WIDTH, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the network's output, of the shape of ``x``."""
        return self.down(F.silu(self.gate(x)) * self.up(x))


class Block(nn.Module):
    """Attention and a feed-forward network, each after RMS norm and beside a residual."""

    def __init__(self) -> None:
        super().__init__()
        self.attention_norm, self.attention = RMSNorm(), Attention()
        self.feed_forward_norm, self.feed_forward = RMSNorm(), SwiGLU()

    def forward(self, x: torch.Tensor, cosines: torch.Tensor, sines: torch.Tensor) -> torch.Tensor:
        """Return the block's output, of the shape of ``x``."""
        x = x + self.attention(self.attention_norm(x), cosines, sines)
        return x + self.feed_forward(self.feed_forward_norm(x))


class Llama(nn.Module):
    """A language model with rotary positions."""

    cosines: torch.Tensor
    sines: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm, self.head = RMSNorm(), nn.Linear(WIDTH, WORDS, bias=False)
        frequencies = THETA ** (-torch.arange(0, HEAD, 2) / HEAD)
        angles = (torch.arange(LENGTH)[:, None] * frequencies).repeat(1, 2)
        self.register_buffer("cosines", angles.cos())
        self.register_buffer("sines", angles.sin())

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return the logits of the word after each token."""
        x = self.words(tokens)
        for block in self.blocks:
            x = block(x, self.cosines[: tokens.shape[1]], self.sines[: tokens.shape[1]])
        return self.head(self.norm(x))


def model_provider() -> nn.Module:
    """Return the model; only its adapters learn."""
    model = Llama().requires_grad_(False)
    for module in model.modules():
        if isinstance(module, LoRALinear):
            module.down.requires_grad_(True)
            module.up.requires_grad_(True)
    return model


def input_provider(batch_size: int = 16) -> tuple[torch.Tensor, torch.Tensor]:
    """Return tokens and the word after each."""
    text = torch.randint(WORDS, (batch_size, LENGTH + 1))
    return text[:, :-1], text[:, 1:]


def iteration_provider(model: nn.Module) -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor]:
    """Return a step of AdamW on the adapters; it returns the loss."""
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=2e-4, weight_decay=0.0)
    criterion = nn.CrossEntropyLoss()

    def step(tokens: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = criterion(model(tokens).flatten(0, 1), wanted.flatten())
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step
