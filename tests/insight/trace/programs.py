"""Random small training programs, as entry files, and the bytes that a real run of one holds."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import torch

from roller.insight.trace.trace import AllocEvent, Trace

OPTIMIZERS = (
    "torch.optim.SGD(P, lr=0.1)", "torch.optim.SGD(P, lr=0.1, momentum=0.9)", "torch.optim.Adam(P)",
    "torch.optim.AdamW(P, amsgrad=True)", "torch.optim.Adagrad(P)", "torch.optim.RMSprop(P, momentum=0.9)",
    "torch.optim.Adamax(P)", "torch.optim.NAdam(P)", "torch.optim.RAdam(P)", "torch.optim.Adadelta(P)",
    "torch.optim.AdamW([{'params': P}], foreach=True)",
)  # fmt: skip
HEAD = """
import copy
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint


class LoRA(nn.Module):
    def __init__(self, base, rank):
        super().__init__()
        self.base = base.requires_grad_(False)
        self.a = nn.Parameter(torch.randn(rank, base.in_features) * 0.01)
        self.b = nn.Parameter(torch.zeros(base.out_features, rank))

    def forward(self, x):
        return self.base(x) + x @ self.a.to(x.dtype).T @ self.b.to(x.dtype).T


class Net(nn.Module):
    def __init__(self, words, width, depth, tied, recompute):
        super().__init__()
        self.words, self.recompute = nn.Embedding(words, width, padding_idx=0), recompute
        self.body = nn.ModuleList(nn.Sequential(nn.Linear(width, width), nn.GELU(), nn.LayerNorm(width))
                                  for _ in range(depth))
        self.head = nn.Linear(width, words, bias=False)
        self.register_buffer("scale", torch.ones(width))
        if tied:
            self.head.weight = self.words.weight

    def forward(self, x):
        places = torch.arange(x.shape[1], device=x.device)
        x = self.words(x) * self.scale + (places[:, None] * 0).to(self.scale.dtype)
        for block in self.body:
            x = checkpoint(block, x, use_reentrant=False) if self.recompute else x + block(x)
        return self.head(x)
"""


def program(seed: int) -> str:
    """Return the text of an entry file."""
    draw = random.Random(seed)
    words, width, depth = draw.randint(5, 60), draw.choice((2, 8, 24)), draw.randint(1, 3)
    lines = [HEAD, "def model_provider():"]
    lines.append(f"    net = Net({words}, {width}, {depth}, {draw.random() < 0.3}, {draw.random() < 0.3})")
    if draw.random() < 0.3:
        lines.append(f"    net.body[0][0] = LoRA(net.body[0][0], {draw.randint(1, 4)})")
    if draw.random() < 0.3:
        lines.append(f"    net = net.{draw.choice(('double', 'bfloat16'))}()")
    if draw.random() < 0.3:
        lines.append(f"    net.{draw.choice(('words', 'body', 'head'))}.requires_grad_(False)")
        lines.append("    net.body[-1][2].requires_grad_(True)")
    lines += ["    return net", "def input_provider(batch_size=4):"]
    lines.append(f"    return torch.zeros(batch_size, {draw.randint(4, 9)}, dtype=torch.long)")
    lines += ["def iteration_provider(net):", "    learning = [p for p in net.parameters() if p.requires_grad]"]
    two = draw.random() < 0.4
    for n, part in enumerate(("learning[::2]", "learning[1::2]") if two else ("learning",)):
        lines.append(f"    P = {part}\n    o{n} = {draw.choice(OPTIMIZERS)}")
    if draw.random() < 0.2:
        lines.append("    average = copy.deepcopy(net).requires_grad_(False)")
    lines += ["    calls = [0]", "    def step(x):", "        calls[0] += 1"]
    return "\n".join([*lines, *_step(draw, ("o0", "o1") if two else ("o0",)), "    return step", ""])


def _step(draw: random.Random, optimizers: tuple[str, ...]) -> list[str]:
    every, order = draw.choice((1, 1, 1, 2, 3, 4)), list(optimizers)
    draw.shuffle(order)
    clear = [f"{o}.zero_grad(set_to_none={draw.random() < 0.8})" for o in order]
    first = draw.random() < 0.5
    body = []
    if draw.random() < 0.3:
        body.append(f"x = x[:, :(4, 3, 2)[calls[0] % {draw.choice((2, 3))}]]")
    if first:
        body += [f"if calls[0] % {every} == {1 % every}:", *(f"    {line}" for line in clear)]
    body.append(f"(net(x).float().square().mean() / {every}).backward()")
    update = [f"{o}.step()" for o in draw.sample(order, len(order))]
    if draw.random() < 0.3:
        kind = draw.choice(("clip_grad_norm_", "clip_grad_value_"))
        update.insert(0, f"nn.utils.{kind}([p for p in learning if p.grad is not None], 1.0)")
    if not first:
        update += clear
    body += [f"if calls[0] % {every} == 0:", *(f"    {line}" for line in update)]
    if draw.random() < 0.2:
        body += ["with torch.no_grad():", "    net.eval(); float(net(x).float().mean()); net.train()"]
    return [f"        {line}" for line in body]


def real_bytes(path: Path, calls: int) -> dict[str, int]:
    """Return the bytes of weights, gradients and optimizer state after so many calls on this processor."""
    names: dict[str, Any] = {}
    exec(compile(path.read_text(), str(path), "exec"), names)
    model, made = names["model_provider"](), []
    before = torch.optim.Optimizer.__init__

    def make(optimizer: Any, *args: Any, **kwargs: Any) -> None:
        before(optimizer, *args, **kwargs)
        made.append(optimizer)

    torch.optim.Optimizer.__init__ = make
    try:
        inputs, step = names["input_provider"](), names["iteration_provider"](model)
    finally:
        torch.optim.Optimizer.__init__ = before
    for _ in range(calls):
        step(*inputs) if isinstance(inputs, tuple) else step(inputs)
    parameters = list(model.parameters())
    # A counter of steps has no axis, and is kept on the host.
    states = [t for o in made for s in o.state.values() for t in s.values() if isinstance(t, torch.Tensor) and t.dim()]
    return {
        "parameter": _bytes(parameters), "gradient": _bytes([p.grad for p in parameters if p.grad is not None]),
        "optimizer_state": _bytes(states),
    }  # fmt: skip


def _bytes(tensors: list[torch.Tensor]) -> int:
    return sum({t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors}.values())


def traced_bytes(trace: Trace) -> dict[str, int]:
    """Return the bytes of weights, gradients and optimizer state that are alive at the end of a trace."""
    alive: dict[int, int] = {}
    for event in trace.events:
        if isinstance(event, AllocEvent):
            alive[event.storage] = event.size_bytes
        else:
            del alive[event.storage]
    return {
        kind: sum(size for number, size in alive.items() if trace.storages[number].kind == kind)
        for kind in ("parameter", "gradient", "optimizer_state")
    }
