"""Gradients of four batches, checkpointed blocks, clipped; a sampler of batches of its own."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, TensorDataset

ACCUMULATE = 4


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.inner = nn.Linear(width, 4 * width)
        self.outer = nn.Linear(4 * width, width)

    def forward(self, x):
        return x + self.outer(F.gelu(self.inner(self.norm(x))))


class Model(nn.Module):
    def __init__(self, words=100, width=32, blocks=3):
        super().__init__()
        self.words = nn.Embedding(words, width, padding_idx=0)
        self.blocks = nn.ModuleList(Block(width) for _ in range(blocks))
        self.head = nn.Linear(width, words, bias=False)
        self.head.weight = self.words.weight

    def forward(self, tokens):
        x = self.words(tokens)
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False)
        return self.head(x)


device = "cuda:0"
data = TensorDataset(torch.randint(1, 100, (200, 17)))
loader = DataLoader(data, batch_size=5, shuffle=True)
model = Model().to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, betas=(0.9, 0.95))
model.train()
for step, (tokens,) in enumerate(loader):
    tokens = tokens.to(device)
    logits = model(tokens[:, :-1])
    loss = F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten()) / ACCUMULATE
    loss.backward()
    if (step + 1) % ACCUMULATE == 0:
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
