"""Compile whole networks for this CPU, hold them to ONNX Runtime, and race the two.

Run by ``make demo``, first of all: SqueezeNet and MobileNet V2 with random weights. With paths
(``python -m examples.model resnet50.onnx --batch 4``) any ONNX models.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import numpy as np
import onnxruntime
import typer
from rich import box
from rich.table import Table

import roller
from benchmarks.models.feeds import random_feeds
from benchmarks.models.registry import build
from examples.racing import Raced, raced
from roller.cli.compile_model import BatchOption, ShapeOption, parse_shapes
from roller.cli.screen import console

NETWORKS = ("light_squeezenet", "mobilenet_v2")
#: Largest error allowed, relative to the largest magnitude of an output.
TOLERANCE = 1e-3
PEER = "ONNX Runtime"


@dataclass(frozen=True)
class Race:
    """One network: seconds to compile it, the largest error, and the times of a call of either."""

    name: str
    compile_s: float
    error: float
    raced: Raced

    @property
    def correct(self) -> bool:
        """Whether both compute the same."""
        return self.error <= TOLERANCE


def main(
    models: Annotated[list[Path] | None, typer.Argument(help="ONNX files; two light networks when absent.")] = None,
    batch: BatchOption = None,
    shapes: ShapeOption = None,
) -> None:
    """Compile networks for this CPU, hold them to ONNX Runtime, and race the two; exit code 1 where one is wrong."""
    try:
        if models:
            code = show([run(path, batch, parse_shapes(shapes)) for path in models])
        else:
            with tempfile.TemporaryDirectory() as folder:
                code = show([run(build(name, Path(folder), batch or 1)) for name in NETWORKS])
    except roller.RollerError as err:
        sys.stderr.write(f"{err}\n")
        code = 1
    raise typer.Exit(code)


def run(path: Path, batch: int | None = None, shapes: Mapping[str, tuple[int, ...]] | None = None) -> Race:
    """Compile, check and race one model."""
    start = time.perf_counter()
    # Without the cache: the demo times the whole road.
    session = roller.compile_model(path, device="cpu", batch=batch, shapes=shapes or {}, cache=False)
    compile_s = time.perf_counter() - start
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = roller.load_spec("cpu").units
    peer = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    feeds = random_feeds(path, shapes={d.name: d.shape for d in session.inputs})
    pairs = list(zip(session.run(None, feeds), peer.run(None, feeds), strict=True))
    error = max(float(np.abs(a - b).max() / np.abs(b).max()) for a, b in pairs)
    times = raced({"roller": lambda: session.run(None, feeds), PEER: lambda: peer.run(None, feeds)})
    return Race(path.stem, compile_s, error, times)


def show(races: Sequence[Race]) -> int:
    """Print the races; return 1 where an output was wrong."""
    table = Table(title="Whole networks on this CPU, measured in turn", box=box.SIMPLE, title_justify="left")
    table.add_column("network")
    for name in ("compile s", "roller ms", "ONNX Runtime ms", "speed-up", "error"):
        table.add_column(name, justify="right")
    table.add_column("check")
    for race in races:
        times = (f"{race.raced.median_s(name) * 1e3:.3f}" for name in ("roller", PEER))
        ratio, check = race.raced.ratio("roller"), "correct" if race.correct else "WRONG"
        faster = "-" if ratio is None else f"{ratio.median:.2f}x"
        table.add_row(race.name, f"{race.compile_s:.1f}", *times, faster, f"{race.error:.1e}", check)
    screen = console()
    screen.print(table)
    screen.print("error: largest difference from ONNX Runtime, relative to its largest output")
    for race in races:
        spreads = ", ".join(f"{name} {race.raced.text(name)}" for name in ("roller", PEER))
        screen.print(f"{race.name}: {spreads}", soft_wrap=True)
        if race.raced.why("roller"):
            screen.print(f"{race.name}: no ratio, times are doubtful: {race.raced.why('roller')}", soft_wrap=True)
    return 0 if all(race.correct for race in races) else 1


if __name__ == "__main__":
    typer.run(main)
