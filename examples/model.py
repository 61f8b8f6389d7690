"""Compile a whole network for this CPU, hold it to ONNX Runtime, and race the two.

Run by ``make demo`` behind the operators: SqueezeNet as the onnx package has it, with random weights. With a path
(``python -m examples.model resnet50.onnx``) any ONNX model of fixed shapes.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnxruntime

import roller
from benchmarks.models.feeds import random_feeds
from benchmarks.models.registry import build

NETWORK = "light_squeezenet"
#: Largest error allowed, relative to the largest magnitude of an output.
TOLERANCE = 1e-3
ROUNDS = 15


def main() -> int:
    """Run the example; return 1 where an output was wrong."""
    if len(sys.argv) > 1:
        if sys.argv[1].startswith("-"):
            sys.stdout.write(f"{__doc__}\n")
            return 0
        try:
            return run(Path(sys.argv[1]))
        except roller.errors.RollerError as err:
            sys.stderr.write(f"{err}\n")
            return 1
    with tempfile.TemporaryDirectory() as folder:
        return run(build(NETWORK, Path(folder)))


def run(path: Path) -> int:
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
    seconds: dict[str, list[float]] = {"roller": [], "ONNX Runtime": []}
    for _ in range(ROUNDS):  # in turn, so that whatever disturbs the machine meets both
        seconds["roller"].append(timed(lambda: session.run(None, feeds)))
        seconds["ONNX Runtime"].append(timed(lambda: peer.run(None, feeds)))
    right = error <= TOLERANCE
    times = ", ".join(f"{name} {statistics.median(t) * 1e3:.3f} ms" for name, t in seconds.items())
    sys.stdout.write(
        f"{path.stem}: {'correct' if right else 'WRONG'} (error {error:.1e} of ONNX Runtime's largest output), "
        f"compiled in {compile_s:.1f} s, {times} (measured in turn)\n"
    )
    return 0 if right else 1


def timed(call: Callable[[], object]) -> float:
    """Return the seconds of a second call in a row: threads of the other runtime still spin during the first."""
    call()
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


if __name__ == "__main__":
    sys.exit(main())
