"""An entry file: ViT-Base/16 on ImageNet, as in "An Image is Worth 16x16 Words" (Dosovitskiy et al., 2020).

roller forecast examples/training/vit.py --device a100 --amp bf16
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional as F

CLASSES, SIDE, PATCH = 1000, 224, 16
WIDTH, HEADS, LAYERS, INNER, DROPOUT = 768, 12, 12, 3072, 0.1


class SelfAttention(nn.Module):
    """Attention of several heads; one linear layer makes queries, keys and values."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return what each patch reads from all others."""
        query, key, value = self.qkv(x).unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(query, key, value)
        return self.out(y.transpose(1, 2).flatten(2))


class MLP(nn.Module):
    """Two linear layers, for each patch by itself."""

    def __init__(self) -> None:
        super().__init__()
        self.fc1 = nn.Linear(WIDTH, INNER)
        self.fc2 = nn.Linear(INNER, WIDTH)
        self.dropout = nn.Dropout(DROPOUT)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the network's output, of the shape of ``x``."""
        return self.fc2(self.dropout(F.gelu(self.fc1(x))))


class Block(nn.Module):
    """Attention and an MLP, each after layer norm and beside a residual."""

    def __init__(self) -> None:
        super().__init__()
        self.attention_norm, self.attention = nn.LayerNorm(WIDTH, eps=1e-6), SelfAttention()
        self.mlp_norm, self.mlp = nn.LayerNorm(WIDTH, eps=1e-6), MLP()
        self.dropout = nn.Dropout(DROPOUT)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the block's output, of the shape of ``x``."""
        x = x + self.dropout(self.attention(self.attention_norm(x)))
        return x + self.dropout(self.mlp(self.mlp_norm(x)))


class ViT(nn.Module):
    """Patches of an image and a token for its class, as words of a transformer."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, WIDTH, PATCH, stride=PATCH)
        self.class_token = nn.Parameter(torch.zeros(1, 1, WIDTH))
        self.places = nn.Parameter(torch.empty(1, 1 + (SIDE // PATCH) ** 2, WIDTH).normal_(std=0.02))
        self.dropout = nn.Dropout(DROPOUT)
        self.blocks = nn.Sequential(*(Block() for _ in range(LAYERS)))
        self.norm = nn.LayerNorm(WIDTH, eps=1e-6)
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Return the logits of every image."""
        x = self.patches(images).flatten(2).transpose(1, 2)
        x = torch.cat([self.class_token.expand(len(x), -1, -1), x], 1)
        x = self.norm(self.blocks(self.dropout(x + self.places)))
        return self.head(x[:, 0])


def model_provider() -> nn.Module:
    """Return the model."""
    return ViT()


def input_provider(batch_size: int = 64) -> tuple[torch.Tensor, torch.Tensor]:
    """Return images and their classes."""
    return torch.randn(batch_size, 3, SIDE, SIDE), torch.randint(CLASSES, (batch_size,))


def iteration_provider(model: nn.Module) -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor]:
    """Return a step of AdamW with clipped gradients; it returns the loss."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.3)
    criterion = nn.CrossEntropyLoss()

    def step(images: torch.Tensor, classes: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = criterion(model(images), classes)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return loss.detach()

    return step
