"""``python -m benchmarks.saved_ranges``: models with ranges of sizes, saved and loaded in new processes.

For each model: compiled and saved (once, in a folder that stays); loaded in new processes, without TVM's compiler;
right at drawn sizes, beside ONNX Runtime; the time to prepare new sizes; and, at
some of these sizes, raced in alternating blocks against the session compiled for the size alone.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from statistics import geometric_mean, median
from typing import Annotated, Any

import numpy as np
import onnxruntime
import typer

import roller
from benchmarks.alternating_blocks import median_seconds_in_blocks
from benchmarks.models import bert, detector, gpt2
from benchmarks.models.feeds import random_feeds

#: Goals: seconds to load, milliseconds to prepare new sizes, and speed beside sessions of one size.
LOAD_S, FIRST_MS, MEAN, LEAST = 0.3, 20.0, 0.95, 0.85
#: Largest difference to ONNX Runtime, of the largest absolute value.
CLOSE = 1e-4
#: Processes that load a folder, of which the median counts.
_PROCESSES = 5
_LOADING = """
import json, sys, time
start = time.perf_counter()
import roller
imported = time.perf_counter()
session = roller.load_model(sys.argv[1])
loaded = time.perf_counter()
print(json.dumps([imported - start, loaded - imported, "tvm" in sys.modules]))
"""


@dataclass(frozen=True)
class Model:
    """A model and the dimensions of its inputs: numbers, names of sizes, or ranges."""

    build: Callable[[Path], None]
    shapes: Mapping[str, tuple[Any, ...]]
    fixed: Mapping[str, tuple[int, ...]] = field(default_factory=dict)

    def at(self, sizes: Mapping[str, int]) -> dict[str, tuple[int, ...]]:
        """Return the shapes of all inputs at some sizes."""
        varying = {
            n: tuple(sizes[d[0]] if isinstance(d, tuple) else d for d in dims) for n, dims in self.shapes.items()
        }
        return {**self.fixed, **varying}


def models(layers: int) -> dict[str, Model]:
    """Return the models by name; encoder and decoder have the given number of layers."""
    encoder = bert.Bert(layers=layers, sequence=512, free=True)
    decoder = gpt2.Gpt2(layers=layers)
    token = (("batch", 1, 8), ("sequence", 1, 512))
    side = range(64, 641, 32)
    past = (1, decoder.heads, ("past", 1, decoder.positions - 1), decoder.width // decoder.heads)
    pasts = {f"past_key_values.{n}.{kind}": past for n in range(layers) for kind in ("key", "value")}
    return {
        "bert": Model(lambda path: bert.build(path, 1, encoder),
                      dict.fromkeys(("input_ids", "token_type_ids", "attention_mask"), token)),
        "gpt2": Model(lambda path: gpt2.build(path, 1, decoder), pasts,
                      dict.fromkeys(("input_ids", "position_ids"), (1, 1))),
        "detector": Model(lambda path: detector.build(path, 1, detector.Detector()),
                          {"image": (1, 3, ("height", side), ("width", side))}),
    }  # fmt: skip


def main(
    folder: Annotated[Path, typer.Argument(help="Where models, saved sessions and results stay.")],
    only: Annotated[str, typer.Option(help="One of bert, gpt2, detector.")] = "",
    layers: Annotated[int, typer.Option(help="Of encoder and decoder.")] = 12,
    drawn: Annotated[int, typer.Option(help="Sizes that are checked.")] = 60,
    raced: Annotated[int, typer.Option(help="Sizes, of those drawn, that are raced.")] = 12,
) -> None:
    """Measure models with ranges; exit with 1 if one misses a goal."""
    folder.mkdir(parents=True, exist_ok=True)
    good = [measured(name, model, folder, drawn, raced) for name, model in models(layers).items() if only in ("", name)]
    raise typer.Exit(0 if all(good) else 1)


def measured(name: str, model: Model, folder: Path, drawn: int, raced: int) -> bool:
    """Measure one model and print a table; return whether it meets the goals."""
    path, saved = folder / f"{name}.onnx", folder / f"{name}.model"
    if not path.exists():
        model.build(path)
    if not saved.exists():
        begin, cpu = time.perf_counter(), _cpu_s()
        session = roller.compile_model(path, shapes=model.shapes)
        compiled, used = time.perf_counter() - begin, _cpu_s() - cpu
        begin, cpu = time.perf_counter(), _cpu_s()
        session.save(saved)
        print(f"{name}: compiled in {compiled:.0f} s ({used:.0f} s of processors), proven and saved in "
              f"{time.perf_counter() - begin:.0f} s ({_cpu_s() - cpu:.0f} s)", flush=True)  # fmt: skip
    load_s = _load_seconds(saved)
    session = roller.load_model(saved)
    known = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    draw, firsts, off, speeds = random.Random(2026), [], [], []
    print(f"\n{name}: {session!r}\n\n| sizes | preparing ms | range us | own us | speed |")
    print("|---|---|---|---|---|")
    for number in range(drawn):
        sizes = {n: _drawn_size(draw, *ends, session.steps.get(n, 1)) for n, ends in session.ranges.items()}
        feeds = random_feeds(path, number, shapes=model.at(sizes))
        firsts.append(1e3 * _seconds(lambda sizes=sizes: session.at(**sizes)))  # what the first call does before others
        found = list(session.run(feeds).values())
        off.append(max(_difference(x, y) for x, y in zip(found, known.run(None, feeds), strict=True)))
        if number >= raced:
            continue
        single = roller.compile_model(path, shapes=model.at(sizes))
        one, other = median_seconds_in_blocks(
            lambda feeds=feeds: session.run(feeds), lambda s=single, feeds=feeds: s.run(feeds)
        )
        speeds.append(other / one)
        said = " ".join(f"{n}={x}" for n, x in sizes.items())
        times = f"{firsts[-1]:.1f} | {one * 1e6:.0f} | {other * 1e6:.0f} | {other / one:.3f}"
        print(f"| {said} | {times} |", flush=True)
    mean, least = (geometric_mean(speeds), min(speeds)) if speeds else (1.0, 1.0)
    print(f"\nloaded in {load_s:.3f} s (goal {LOAD_S}); at {drawn} drawn sizes off by at most {max(off):.1e} (allowed "
          f"{CLOSE}); new sizes took {median(firsts):.1f} ms once, at most {max(firsts):.1f} (goal {FIRST_MS}); "
          f"speed at {len(speeds)} sizes {mean:.3f} (goal {MEAN}), least {least:.3f} (goal {LEAST})",
          flush=True)  # fmt: skip
    return load_s <= LOAD_S and max(off) < CLOSE and max(firsts) < FIRST_MS and mean >= MEAN and least >= LEAST


def _load_seconds(saved: Path) -> float:
    """Return the median time of importing roller and loading a folder in new processes."""
    found = []
    for _ in range(_PROCESSES):
        done = subprocess.run([sys.executable, "-c", _LOADING, saved], capture_output=True, text=True, check=True)
        imported, loaded, has_tvm = json.loads(done.stdout)
        assert not has_tvm
        found.append(imported + loaded)
        time.sleep(0.2)
    return median(found)


def _drawn_size(draw: random.Random, low: int, high: int, step: int) -> int:
    """Return a multiple of the step whose logarithm is evenly drawn."""
    return min(high, max(low, int(low * ((high + step) / low) ** draw.random()) // step * step))


def _seconds(run: Callable[[], object]) -> float:
    begin = time.perf_counter()
    run()
    return time.perf_counter() - begin


def _difference(found: np.ndarray, meant: np.ndarray) -> float:
    return float(np.abs(found - meant).max() / np.abs(meant).max())


def _cpu_s() -> float:
    import resource

    return sum(sum(resource.getrusage(who)[:2]) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))


if __name__ == "__main__":
    typer.run(main)
