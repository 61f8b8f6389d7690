"""Compile whole networks for this CPU, hold them to ONNX Runtime, and race the two.

Run by ``make demo``, first of all: SqueezeNet and MobileNet V2 with random weights. With paths
(``python -m examples.model resnet50.onnx``) any ONNX models of fixed shapes.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnxruntime
from rich import box
from rich.table import Table

import roller
from benchmarks.models.feeds import random_feeds
from benchmarks.models.registry import build
from roller.cli.screen import console

NETWORKS = ("light_squeezenet", "mobilenet_v2")
#: Largest error allowed, relative to the largest magnitude of an output.
TOLERANCE = 1e-3
ROUNDS = 15


@dataclass(frozen=True)
class Race:
    """One network: seconds to compile it, the largest error, and median seconds of a call of either."""

    name: str
    compile_s: float
    error: float
    roller_s: float
    peer_s: float

    @property
    def correct(self) -> bool:
        """Whether both compute the same."""
        return self.error <= TOLERANCE


def main() -> int:
    """Run the example; return 1 where an output was wrong."""
    words = sys.argv[1:]
    if any(word.startswith("-") for word in words):
        sys.stdout.write(f"{__doc__}\n")
        return 0
    try:
        if words:
            return show([run(Path(word)) for word in words])
        with tempfile.TemporaryDirectory() as folder:
            return show([run(build(name, Path(folder))) for name in NETWORKS])
    except roller.RollerError as err:
        sys.stderr.write(f"{err}\n")
        return 1


def run(path: Path) -> Race:
    """Compile, check and race one model."""
    start = time.perf_counter()
    session = roller.compile_model(path, device="cpu", cache=False)  # the demo times the whole road
    compile_s = time.perf_counter() - start
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = roller.load_spec("cpu").units
    peer = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    feeds = random_feeds(path)
    pairs = list(zip(session.run(None, feeds), peer.run(None, feeds), strict=True))
    error = max(float(np.abs(a - b).max() / np.abs(b).max()) for a, b in pairs)
    seconds: dict[str, list[float]] = {"roller": [], "peer": []}
    for _ in range(ROUNDS):  # in turn, so that whatever disturbs the machine meets both
        seconds["roller"].append(timed(lambda: session.run(None, feeds)))
        seconds["peer"].append(timed(lambda: peer.run(None, feeds)))
    medians = {name: statistics.median(times) for name, times in seconds.items()}
    return Race(path.stem, compile_s, error, medians["roller"], medians["peer"])


def timed(call: Callable[[], object]) -> float:
    """Return the seconds of a second call in a row: threads of the other runtime still spin during the first."""
    call()
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def show(races: Sequence[Race]) -> int:
    """Print the races; return 1 where an output was wrong."""
    table = Table(title="Whole networks on this CPU, measured in turn", box=box.SIMPLE, title_justify="left")
    table.add_column("network")
    for name in ("compile s", "roller ms", "ONNX Runtime ms", "speed-up", "error"):
        table.add_column(name, justify="right")
    table.add_column("check")
    for race in races:
        cells = (f"{race.compile_s:.1f}", f"{race.roller_s * 1e3:.3f}", f"{race.peer_s * 1e3:.3f}")
        check = "correct" if race.correct else "WRONG"
        table.add_row(race.name, *cells, f"{race.peer_s / race.roller_s:.2f}x", f"{race.error:.1e}", check)
    screen = console()
    screen.print(table)
    screen.print("error: largest difference from ONNX Runtime, relative to its largest output")
    return 0 if all(race.correct for race in races) else 1


if __name__ == "__main__":
    sys.exit(main())
