"""Networks of images and of sequences, in plain ``torch.nn``: ResNet-50, a vision transformer, a UNet, an LSTM."""

from __future__ import annotations

import torch
from torch import nn

from roller.suite.models.transformer_blocks import Block, FeedForward, Sizes

VIT_BASE = Sizes(12, 768, 12, 3072, 1000, 197, dropout=0.0)


class VisionTransformer(nn.Module):
    """Images of 224 x 224 as 196 patches and a token of their class."""

    def __init__(self, sizes: Sizes = VIT_BASE) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, sizes.width, 16, 16)
        self.token = nn.Parameter(torch.zeros(1, 1, sizes.width))
        self.places = nn.Parameter(torch.zeros(1, sizes.positions, sizes.width))
        self.blocks = nn.ModuleList(
            Block(
                sizes, FeedForward(sizes, nn.GELU(), joined=False), causal=False, joined=False, first=True, fused=True
            )
            for _ in range(sizes.layers)
        )
        self.norm, self.head = nn.LayerNorm(sizes.width), nn.Linear(sizes.width, sizes.vocabulary)

    def forward(self, x: torch.Tensor) -> torch.Tensor:  # noqa: D102 - as the class says
        x = self.patches(x).flatten(2).transpose(1, 2)
        x = torch.cat((self.token.expand(x.shape[0], -1, -1), x), dim=1) + self.places
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x)[:, 0])


class Doubled(nn.Sequential):
    """Two convolutions, each with group norm."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__(
            nn.Conv2d(inputs, outputs, 3, padding=1), nn.GroupNorm(8, outputs), nn.SiLU(),
            nn.Conv2d(outputs, outputs, 3, padding=1), nn.GroupNorm(8, outputs), nn.SiLU(),
        )  # fmt: skip


class UNet(nn.Module):
    """Down and up again through levels of half the size, each handed across."""

    def __init__(self, channels: tuple[int, ...] = (64, 128, 256, 512)) -> None:
        super().__init__()
        self.down = nn.ModuleList(Doubled(i, o) for i, o in zip((3, *channels), channels, strict=False))
        self.pool = nn.MaxPool2d(2)
        pairs = list(zip(channels[::-1], channels[-2::-1], strict=False))
        self.grow = nn.ModuleList(nn.ConvTranspose2d(i, o, 2, 2) for i, o in pairs)
        self.up = nn.ModuleList(Doubled(2 * o, o) for _, o in pairs)
        self.head = nn.Conv2d(channels[0], 2, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:  # noqa: D102 - as the class says
        kept = []
        for number, level in enumerate(self.down):
            x = level(x if number == 0 else self.pool(x))
            kept.append(x)
        for grow, up, across in zip(self.grow, self.up, kept[-2::-1], strict=True):
            x = up(torch.cat((across, grow(x)), dim=1))
        return self.head(x)


class Tagger(nn.Module):
    """Two layers of an LSTM, both ways, over a table of tokens."""

    def __init__(self, vocabulary: int = 10000, width: int = 512, layers: int = 2, classes: int = 64) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.lstm = nn.LSTM(width, width, layers, batch_first=True, dropout=0.2, bidirectional=True)
        self.head = nn.Linear(2 * width, classes)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:  # noqa: D102 - as the class says
        return self.head(self.lstm(self.tokens(tokens))[0])
