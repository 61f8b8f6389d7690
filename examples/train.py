"""An entry file: three functions that describe a training step, here of a language model with 350 million parameters.

roller sweep examples/train.py --device h100,2xa100 --batch max --amp bf16
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

WIDTH, HEADS, LAYERS, WORDS, LENGTH = 1024, 16, 24, 50_304, 1024


class Decoder(nn.Module):
    """A decoder of PyTorch's own layers, causal."""

    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(
            WIDTH, HEADS, 4 * WIDTH, activation="gelu", batch_first=True, norm_first=True
        )
        self.words, self.places = nn.Embedding(WORDS, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.blocks = nn.TransformerEncoder(layer, LAYERS, nn.LayerNorm(WIDTH))
        self.head = nn.Linear(WIDTH, WORDS, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return the logits of every token."""
        places = torch.arange(tokens.shape[1], device=tokens.device)
        mask = nn.Transformer.generate_square_subsequent_mask(tokens.shape[1], device=tokens.device)
        found: torch.Tensor = self.head(self.blocks(self.words(tokens) + self.places(places), mask, is_causal=True))
        return found


def model_provider() -> nn.Module:
    """Return the model, on the CPU or wherever you like."""
    return Decoder()


def input_provider(batch_size: int = 8) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the inputs of one step; values do not matter."""
    return torch.zeros(batch_size, LENGTH, dtype=torch.long), torch.zeros(batch_size, LENGTH, dtype=torch.long)


def iteration_provider(model: nn.Module) -> Callable[[torch.Tensor, torch.Tensor], None]:
    """Return what one step does."""
    optimizer, loss = torch.optim.AdamW(model.parameters()), nn.CrossEntropyLoss()

    def step(tokens: torch.Tensor, wanted: torch.Tensor) -> None:
        optimizer.zero_grad()
        loss(model(tokens).flatten(0, 1), wanted.flatten()).backward()
        optimizer.step()

    return step
