"""A model beside other programs: roller and ONNX Runtime in turns, alone, beside bursts, beside one that never rests.

A burst takes 1 to 5 ms of one processor and 30 % of the time; what matters then is whether the other threads of a
section wait for the one whose processor was taken. The order of turns is drawn anew each round, because the threads of
one runtime go on looking for work for a while after its turn.
"""

from __future__ import annotations

import random
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import numpy as np
import typer

import roller

#: What disturbs: Python programs of a process of their own, which end with this one. Bursts of 1 to 5 ms take
#: three tenths of a processor.
PATTERNS = {
    "alone": "",
    "bursts": "import random, time\nwhile True:\n b = random.uniform(1e-3, 5e-3); e = time.perf_counter() + b\n"
    " while time.perf_counter() < e: pass\n time.sleep(b * 7 / 3)",
    "constant": "while True: pass",
}
#: An interpreter that disturbs has started by then (s).
STARTS_S = 0.2


@contextmanager
def beside(code: str) -> Iterator[None]:
    """Run a program as long as the block takes."""
    other = subprocess.Popen([sys.executable, "-c", code]) if code else None
    try:
        if other is not None:
            time.sleep(STARTS_S)
        yield
    finally:
        if other is not None:
            other.kill()
            other.wait()


def in_turns(calls: dict[str, Callable[[], object]], seconds: float, block: int) -> dict[str, list[float]]:
    """Return the seconds of calls by name, in blocks whose order is drawn."""
    taken: dict[str, list[float]] = {name: [] for name in calls}
    order, until = list(calls), time.monotonic() + seconds
    while time.monotonic() < until:
        random.shuffle(order)
        for name in order:
            for _ in range(block):
                start = time.perf_counter()
                calls[name]()
                taken[name].append(time.perf_counter() - start)
    return taken


def main(
    model: Annotated[Path, typer.Argument(help="An ONNX model of fixed shapes.")],
    seconds: Annotated[float, typer.Option(help="Per pattern.")] = 10.0,
    block: Annotated[int, typer.Option(help="Calls of a turn.")] = 8,
) -> None:
    """Print medians, means and 90th percentiles (ms) of both runtimes by pattern."""
    import onnxruntime

    session = roller.compile_model(model)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = session.cores
    rival = onnxruntime.InferenceSession(str(model), options, providers=["CPUExecutionProvider"])
    feeds = {d.name: np.zeros(d.shape, d.dtype) for d in session.inputs}
    calls = {"roller": lambda: session.run(feeds), "ONNX Runtime": lambda: rival.run(None, feeds)}
    for call in calls.values():
        call()
    for name, code in PATTERNS.items():
        with beside(code):
            for runtime, taken in in_turns(calls, seconds, block).items():
                ms = sorted(1e3 * t for t in taken)
                line = f"median {statistics.median(ms):7.3f}  mean {statistics.mean(ms):7.3f}"
                print(
                    f"{name:9} {runtime:13} {line} p90 {ms[9 * len(ms) // 10]:7.3f} ms of {len(ms)} calls", flush=True
                )


if __name__ == "__main__":
    typer.run(main)
