"""The suite ``whatif`` on this processor: what-ifs predicted from a profile, made for real, and measured.

Three small models train on the processor. For each change the original's profile is recorded, the step is predicted,
the change is really made, and both loops run in turns. What is compared is the changed step's time.
``python -m benchmarks.whatif_cpu`` holds the errors to limits.
"""

from __future__ import annotations

import contextlib
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, median
from typing import Annotated, Any, NamedTuple

import torch
import typer
from torch import nn

from roller.insight.step.recording import record
from roller.insight.step.replay import from_kineto
from roller.insight.whatif.predict import what_if
from roller.insight.whatif.what_if import WhatIf
from roller.insight.whatif.whatifs import (
    AMP,
    Batch,
    ForeachOptimizer,
    Freeze,
    FusedOptimizer,
    Gist,
    OtherOptimizer,
    Recompute,
    RemoveLayer,
)

BLOCKS, REPEATS = 6, 5
#: Changes, and the mean error that each group of them may have.
LIMITS = {"remove layers": 5, "fused Adam": 5, "SGD": 5, "freeze half": 8, "no activations": 8, "saved in bf16": 8,
          "foreach": 12, "recompute": 12, "batch x2": 12, "bf16": 12}  # fmt: skip


class Dense(nn.Module):
    """A layer of a perceptron."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.act = nn.Linear(768, 768), nn.ReLU()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the next layer's input."""
        return self.act(self.linear(x))  # type: ignore[no-any-return]


class Residual(nn.Module):
    """A convolution with what stands around it."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm, self.act = nn.Conv2d(48, 48, 3, padding=1), nn.BatchNorm2d(48), nn.ReLU()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the next block's input."""
        return self.act(self.norm(self.conv(x))) + x  # type: ignore[no-any-return]


class Attention(nn.Module):
    """A block of a transformer."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.LayerNorm(256), nn.LayerNorm(256)
        self.qkv, self.out = nn.Linear(256, 768), nn.Linear(256, 256)
        self.up, self.act, self.down = nn.Linear(256, 1024), nn.GELU(), nn.Linear(1024, 256)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the next block's input."""
        q, k, v = (t.unflatten(-1, (4, 64)).transpose(1, 2) for t in self.qkv(self.first(x)).chunk(3, -1))
        x = x + self.out(nn.functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
        return x + self.down(self.act(self.up(self.second(x))))  # type: ignore[no-any-return]


class Model(nn.Module):
    """Some blocks and a head."""

    def __init__(self, block: type[nn.Module], blocks: int, features: int) -> None:
        super().__init__()
        self.blocks, self.head = nn.ModuleList(block() for _ in range(blocks)), nn.Linear(features, 10)
        self.recomputes = False

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the logits."""
        for block in self.blocks:
            if self.recomputes:
                x = torch.utils.checkpoint.checkpoint(block, x, use_reentrant=False)
            else:
                x = block(x)
        return self.head(x.mean((2, 3)) if x.dim() == 4 else x)  # type: ignore[no-any-return]


@dataclass(frozen=True)
class Case:
    """A model and its batch."""

    name: str
    block: type[nn.Module]
    features: int
    shape: tuple[int, ...]


CASES = (
    Case("perceptron", Dense, 768, (256, 768)),
    Case("convolutions", Residual, 48, (16, 48, 28, 28)),
    Case("transformer", Attention, 256, (8, 64, 256)),
)


class Loop:
    """A training loop, with or without a change."""

    def __init__(self, case: Case, change: str = "") -> None:
        torch.manual_seed(0)
        self.change = change
        self.model = Model(case.block, BLOCKS // 2 if change == "remove layers" else BLOCKS, case.features)
        self.x = torch.randn((2 if change == "batch x2" else 1) * case.shape[0], *case.shape[1:])
        if change == "freeze half":
            for block in self.model.blocks[: BLOCKS // 2]:
                block.requires_grad_(False)
        if change == "no activations":
            for block in self.model.blocks:
                block.act = nn.Identity()
        self.model.recomputes = change == "recompute"
        parameters = [p for p in self.model.parameters() if p.requires_grad]
        if change == "SGD":
            self.optimizer: Any = torch.optim.SGD(parameters, lr=1e-3, foreach=False)
        else:
            grouped = {"fused": True} if change == "fused Adam" else {"foreach": change == "foreach"}
            self.optimizer = torch.optim.Adam(parameters, lr=1e-4, **grouped)

    def step(self) -> None:
        """Train once."""
        scope: Any = contextlib.nullcontext()
        if self.change == "bf16":
            scope = torch.autocast("cpu", torch.bfloat16)
        elif self.change == "saved in bf16":
            scope = torch.autograd.graph.saved_tensors_hooks(_pack, _unpack)
        self.optimizer.zero_grad()
        with scope:
            loss = self.model(self.x).square().mean()
        loss.backward()
        self.optimizer.step()


def _pack(tensor: torch.Tensor) -> Any:
    packs = tensor.is_floating_point() and not isinstance(tensor, nn.Parameter) and tensor.numel() >= 1 << 14
    return tensor.to(torch.bfloat16) if packs else tensor


def _unpack(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.float() if tensor.dtype == torch.bfloat16 else tensor


def whatifs(case: Case) -> Iterator[tuple[str, Callable[[], WhatIf]]]:
    """Yield what each change is called, and the what-if that predicts it."""
    half = tuple(f"blocks.{n}" for n in range(BLOCKS // 2))
    # not the first, whose input needs no gradient
    yield "remove layers", lambda: RemoveLayer(tuple(f"blocks.{n}" for n in range(1, 1 + BLOCKS // 2)))
    yield "fused Adam", lambda: FusedOptimizer("adam")
    yield "SGD", lambda: OtherOptimizer("sgd", "adam")
    yield "freeze half", lambda: Freeze(half)
    yield "no activations", lambda: RemoveLayer("blocks.*.act")
    yield "saved in bf16", lambda: Gist(bits=16)
    yield "foreach", lambda: ForeachOptimizer(group=1000)
    yield "recompute", lambda: Recompute(tuple(f"blocks.{n}" for n in range(BLOCKS)))
    yield "batch x2", lambda: Batch(2)
    yield "bf16", lambda: AMP(**_factors())


def _factors() -> dict[str, float]:
    """Measure what products and passes over memory take in bf16 beside fp32, alone: the user's own table."""
    a, b = torch.randn(512, 512), torch.randn(512, 512)
    found = {}
    for name, work in (("compute", lambda x, y: x @ y), ("memory", lambda x, y: x + y)):
        times: dict[torch.dtype, list[float]] = {torch.float32: [], torch.bfloat16: []}
        for _ in range(40):
            for dtype, own in times.items():
                x, y = a.to(dtype), b.to(dtype)
                began = time.perf_counter()
                for _ in range(10):
                    work(x, y)
                own.append(time.perf_counter() - began)
        found[name] = median(times[torch.bfloat16]) / median(times[torch.float32])
    return found


def paired(one: Loop, other: Loop, seconds: float) -> tuple[float, float]:
    """Return the medians of steps of two loops that take turns."""
    for loop in (one, other):
        for _ in range(3):
            loop.step()
    times: tuple[list[float], list[float]] = ([], [])
    until = time.perf_counter() + seconds
    while time.perf_counter() < until or len(times[0]) < 5:
        for loop, own in zip((one, other), times, strict=True):
            loop.step()  # the other one's data is out of the caches by then
            began = time.perf_counter()
            loop.step()
            own.append(time.perf_counter() - began)
    return median(times[0]), median(times[1])


class Compared(NamedTuple):
    """A change of a model: seconds of a step before it, predicted with it, and measured with it."""

    model: str
    change: str
    before_s: float
    predicted_s: float
    after_s: float

    @property
    def error(self) -> float:
        """Predicted over measured, less 1."""
        return self.predicted_s / self.after_s - 1.0

    @property
    def has_wrong_sign(self) -> bool:
        """Whether the change is beyond 5 % and its prediction goes the other way."""
        is_large = abs(self.after_s / self.before_s - 1.0) > 0.05
        return is_large and (self.predicted_s < self.before_s) != (self.after_s < self.before_s)


def compared(seconds: float, changes: Sequence[str], models: Sequence[str]) -> Iterator[Compared]:
    """Yield changes of models: each is predicted from a profile, made, and measured for some seconds."""
    torch.set_num_threads(2)
    for case in CASES:
        for name, make in whatifs(case) if case.name in models else ():
            if name not in changes:
                continue
            with tempfile.TemporaryDirectory() as folder:
                path, loop = Path(folder) / "profile.json", Loop(case)
                with record(path, warmup=3, timed=10, steps=10) as recorder:
                    while not recorder.is_done:
                        loop.step()
                answer = what_if(from_kineto(path), make())
            # where its buffers lie makes a loop faster or slower by some percent: new ones are made each time
            runs = [paired(Loop(case), Loop(case, name), seconds / REPEATS) for _ in range(REPEATS)]
            before = median(one for one, _ in runs)
            after = before * median(other / one for one, other in runs)
            yield Compared(case.name, name, before, before * answer.iteration_us / answer.baseline_us, after)


def main(
    seconds: Annotated[float, typer.Option(help="Of measuring, for each change.")] = 4.0,
    only: Annotated[str, typer.Option(help="Only the changes that have this in their name.")] = "",
    model: Annotated[str, typer.Option(help="Only the models that have this in their name.")] = "",
    strict: Annotated[bool, typer.Option(help="Exit with 1 where a limit is missed.")] = False,
) -> None:
    """Compare predicted and measured steps of every model and change."""
    errors: dict[str, list[float]] = {}
    wrong_signs = 0
    changes, models = [name for name in LIMITS if only in name], [c.name for c in CASES if model in c.name]
    print("| model | change | step ms | predicted ms | measured ms | error |\n|---|---|---|---|---|---|")
    for row in compared(seconds, changes, models):
        errors.setdefault(row.change, []).append(abs(row.error))
        wrong_signs += row.has_wrong_sign
        times = " | ".join(f"{1e3 * s:.2f}" for s in (row.before_s, row.predicted_s, row.after_s))
        print(f"| {row.model} | {row.change} | {times} | {100 * row.error:+.1f} % |", flush=True)
    missed = wrong_signs
    print("\n| change | mean error | limit |\n|---|---|---|")
    for name, own in errors.items():
        missed += 100 * mean(own) > LIMITS[name]
        print(f"| {name} | {100 * mean(own):.1f} % | {LIMITS[name]} % |")
    print(f"\n{wrong_signs} changes beyond 5 % with the wrong sign")
    raise typer.Exit(1 if strict and missed else 0)


if __name__ == "__main__":
    typer.run(main)
