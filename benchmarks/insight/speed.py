"""CPU seconds of a first forecast, and of one on a second device, with no price kept; no device is asked.

``python -m benchmarks.insight speed --models mbconv,resnet50 --base OTHER_CHECKOUT``. Models are those of
:mod:`benchmarks.insight.models`, ``mbconv`` (the blocks of EfficientNet-B0), and any of ``timm`` where it is installed
(``timm:swin_tiny_patch4_window7_224``). Every forecast runs in a process of its own with an empty cache; ``first`` and
``second`` are the prices of a traced step (``time.process_time``), ``trace`` is tracing it, imports included.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

#: Channels, blocks, stride, kernel and expansion of EfficientNet-B0's stages (Tan and Le 2019, table 1).
STAGES = (
    (16, 1, 1, 3, 1), (24, 2, 2, 3, 6), (40, 2, 2, 5, 6), (80, 3, 2, 3, 6), (112, 3, 1, 5, 6), (192, 4, 2, 5, 6),
    (320, 1, 1, 3, 6),
)  # fmt: skip
#: Where none are named.
MODELS, DEVICES = "mbconv,resnet50,vit", "h100,mi300x"


def mbconv() -> Any:
    """Return the convolutions of EfficientNet-B0: inverted bottlenecks with squeeze and excitation."""
    from torch import nn

    class Gate(nn.Module):
        def __init__(self, channels: int, inner: int) -> None:
            super().__init__()
            layers = nn.Conv2d(channels, inner, 1), nn.SiLU(), nn.Conv2d(inner, channels, 1), nn.Sigmoid()
            self.gate = nn.Sequential(nn.AdaptiveAvgPool2d(1), *layers)

        def forward(self, x: Any) -> Any:
            return x * self.gate(x)

    def unit(inputs: int, outputs: int, kernel: int = 1, stride: int = 1, groups: int = 1) -> Iterator[nn.Module]:
        yield nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, groups=groups, bias=False)
        yield nn.BatchNorm2d(outputs)
        yield nn.SiLU(inplace=True)

    layers, channels = list(unit(3, 32, 3, 2)), 32
    for outputs, blocks, stride, kernel, expansion in STAGES:
        for n in range(blocks):
            inner = channels * expansion
            layers += [*unit(channels, inner)] if expansion > 1 else []
            layers += [*unit(inner, inner, kernel, stride if n == 0 else 1, inner), Gate(inner, max(1, channels // 4))]
            layers += [nn.Conv2d(inner, outputs, 1, bias=False), nn.BatchNorm2d(outputs)]
            channels = outputs
    layers += [*unit(channels, 1280), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(1280, 1000)]
    return nn.Sequential(*layers)


def traced(name: str, batch: int) -> Any:
    """Return the trace of a model: forward, backward, and an optimizer."""
    import torch

    import roller
    from benchmarks.insight import models

    if name in models.SUITE:
        return models.trace(name, batch)

    def build() -> Any:
        if not name.startswith("timm:"):
            return mbconv()
        import timm

        return timm.create_model(name.removeprefix("timm:"), pretrained=False)

    images = torch.empty(batch, 3, 224, 224, device="meta")
    return roller.trace(build, images, optimizer="adam", loss=lambda found: found.float().mean(), targets=())


def measure(name: str, devices: list[str], batch: int) -> dict[str, float]:
    """Return the CPU seconds of tracing, and of prices on each device."""
    from roller.compiler import pipeline  # noqa: F401 - its modules are no part of a device's prices
    from roller.hardware import load_spec
    from roller.insight.cost.operator_price import Pricer

    begun = time.process_time()
    step = traced(name, batch).steady()
    found = {"trace": time.process_time() - begun}
    for place, device in zip(("first", "second"), devices, strict=True):
        spec, begun = load_spec(device).sustained, time.process_time()
        pricer = Pricer(spec)
        for operator in step:
            pricer.price_operator(operator)
        found[place] = time.process_time() - begun
    return found


def _in_child(root: Path, name: str, devices: str, batch: int) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as folder:
        environment = os.environ | {"PYTHONPATH": str(root), "ROLLER_CACHE_DIR": folder}
        command = [sys.executable, __file__, name, devices, str(batch)]
        done = subprocess.run(command, env=environment, cwd=folder, check=True, capture_output=True, text=True)
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def main(
    models: Annotated[str, typer.Option(help="Names, with commas between.")] = MODELS,
    devices: Annotated[str, typer.Option(help="Two specifications.")] = DEVICES,
    batch: Annotated[int, typer.Option(help="Samples of a step.")] = 16,
    base: Annotated[Path | None, typer.Option(help="Another checkout to compare with.")] = None,
) -> None:
    """Print the CPU seconds of first forecasts, and their ratio to another checkout's."""
    here = Path(__file__).resolve().parents[2]
    table = Table("model", "checkout", "trace", "first", "second", "before / after")
    for name in models.split(","):
        now = _in_child(here, name, devices, batch)
        before = None if base is None else _in_child(base.resolve(), name, devices, batch)
        ratio = (
            "" if before is None else f"{before['first'] / now['first']:.1f}, {before['second'] / now['second']:.1f}"
        )
        for label, found in (("before", before), ("after", now)):
            if found is not None:
                table.add_row(name, label, *(f"{found[x]:.2f}" for x in ("trace", "first", "second")), ratio)
    Console().print(table)


if __name__ == "__main__":
    print(json.dumps(measure(sys.argv[1], sys.argv[2].split(","), int(sys.argv[3]))))
