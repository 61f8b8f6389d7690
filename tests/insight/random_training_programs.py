"""Writes small training programs at random: entry files, as text, that PyTorch also runs on the CPU."""

from __future__ import annotations

import random
from dataclasses import dataclass

_OPTIMIZERS = (
    "torch.optim.SGD({}, lr=.01)", "torch.optim.SGD({}, lr=.01, momentum=.9)", "torch.optim.Adam({})",
    "torch.optim.Adam({}, amsgrad=True)", "torch.optim.AdamW({})", "torch.optim.AdamW({}, foreach=False)",
    "torch.optim.Adagrad({})", "torch.optim.RMSprop({}, momentum=.9)", "torch.optim.NAdam({})",
    "torch.optim.Adamax({})", "torch.optim.Adadelta({})",
)  # fmt: skip
_CLIPS = (
    "", "", "torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)",
    "torch.nn.utils.clip_grad_value_(model.parameters(), .1)",
    "[p.grad.mul_(.5) for p in model.parameters() if p.grad is not None]",
)  # fmt: skip
_HEAD = '''import torch
from torch import nn

class Adapted(nn.Module):
    """A layer that is frozen, and a product of two small ones that learn beside it."""
    def __init__(self, layer, rank):
        super().__init__()
        self.layer = layer.requires_grad_(False)
        self.down = nn.Linear(layer.in_features, rank, bias=False)
        self.up = nn.Linear(rank, layer.out_features, bias=False)
    def forward(self, x):
        return self.layer(x) + self.up(self.down(x))

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding({words}, {width})
        self.blocks = nn.ModuleList([{blocks}])
        self.head = nn.Linear({width}, {words}, bias=False)
{tie}
    def forward(self, x):
        x = self.embed(x)
        for block in self.blocks:
            x = {residual}block(x)
        return self.head(x)
'''
_FEET = """
calls = [0]  # of the step

def model_provider():
    torch.manual_seed(0)
    model = Model()
{freeze}    return model

def input_provider(batch_size={batch}):
    torch.manual_seed(1)
    return torch.randint(0, {words}, (batch_size, {length}))

def iteration_provider(model):
    learning = [p for p in model.parameters() if p.requires_grad]
    optimizers = {optimizers}
    def step(x):
        calls[0] += 1
{body}
    return step
"""


@dataclass(frozen=True)
class Program:
    """A training program.

    Parameters
    ----------
    first, last
        Its text with gradients dropped before the forward, and after the update.
    zeroes_in_place
        Whether gradients are not dropped, but set to zero by kernels, which run at another place of the step then.
    """

    first: str
    last: str
    zeroes_in_place: bool


def program(seed: int, *, accumulates_over_calls: bool = True) -> Program:
    """Return the program of a seed."""
    draw = random.Random(seed)
    width, words, batch = draw.choice((4, 8, 24, 64)), draw.choice((5, 11, 100)), draw.choice((1, 2, 4, 6))
    length, rank = draw.choice((1, 3, 8)), draw.choice((1, 2))
    kinds = (
        f"nn.Linear({width}, {width})", f"nn.Linear({width}, {width}, bias=False)", f"nn.LayerNorm({width})",
        "nn.GELU()", "nn.Dropout(.1)", f"Adapted(nn.Linear({width}, {width}), {rank})",
        f"nn.Sequential(nn.Linear({width}, {2 * width}), nn.ReLU(), nn.Linear({2 * width}, {width}))",
        f"nn.Linear({width}, {width}).requires_grad_(False)",
    )  # fmt: skip
    blocks = ", ".join(draw.choice(kinds) for _ in range(draw.randint(1, 5)))
    tie = draw.choice(("", "        self.head.weight = self.embed.weight\n"))
    head = _HEAD.format(
        words=words, width=width, blocks=blocks, residual=draw.choice(("", "x + ")),
        tie=tie,
    )  # fmt: skip
    freeze = draw.choice(("", "", "" if tie else "    model.embed.requires_grad_(False)\n"))
    if draw.random() < 0.3:
        one, two = draw.choice(_OPTIMIZERS), draw.choice(_OPTIMIZERS)
        optimizers = f"[{one.format('learning[::2]')}] + ([{two.format('learning[1::2]')}] if learning[1:] else [])"
    else:
        optimizers = f"[{draw.choice(_OPTIMIZERS).format('learning')}]"
    clip, kept = draw.choice(_CLIPS), draw.random() < 0.2
    inner = draw.choice((1, 1, 2, 3)) if not kept else 1
    over_calls = draw.choice((1, 1, 2, 4)) if accumulates_over_calls else 1
    shorter = draw.random() < 0.2 and length > 1
    zero = [f"for o in optimizers: o.zero_grad(set_to_none={not kept})"]
    losses = ("model({}).square().mean()", "model({}).float().logsumexp(-1).mean()", "model({}).tanh().sum()")
    loss = draw.choice(losses)
    forward = ["x = x[:, :2 + calls[0] % 2]"] if shorter else []
    forward += [f"for _ in range({inner}):", f"    ({loss.format('x')} / {inner * over_calls}).backward()"]
    update = [*([clip] if clip else []), "for o in optimizers: o.step()"]
    texts = []
    for before in (True, False):
        if over_calls == 1:
            body = [*zero, *forward, *update] if before else [*forward, *update, *zero]
        else:
            rest = [*update, *zero]
            begun = [f"if calls[0] % {over_calls} == 1:", *(f"    {line}" for line in zero)] if before else []
            whole = update if before else rest
            body = [*begun, *forward, f"if calls[0] % {over_calls} == 0:", *(f"    {line}" for line in whole)]
        foot = _FEET.format(
            freeze=freeze, batch=batch, words=words, length=length, optimizers=optimizers,
            body="\n".join(f"        {line}" for line in body),
        )  # fmt: skip
        texts.append(head + foot)
    return Program(*texts, kept)
