"""``python -m benchmarks.varying_models``: sessions of a range beside the session compiled for each size, in blocks.

Every size is checked against ONNX Runtime first. Then the session of the range and one of that size run in alternating
blocks of calls with pauses between; the ratio of their medians is what the range costs, or gains, there.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import geometric_mean, median
from typing import Annotated, Any

import numpy as np
import onnxruntime
import typer

import roller
from benchmarks.alternating_blocks import median_seconds_in_blocks
from benchmarks.models import bert, image
from benchmarks.models.feeds import random_feeds

#: Speed beside the session of a size: of each, and of all together.
LEAST, MEAN = 0.9, 0.97
#: Largest difference to ONNX Runtime, of the largest absolute value.
CLOSE = 1e-4


@dataclass(frozen=True)
class Case:
    """A model, the ranges of its sizes, and those that are measured."""

    build: Callable[[Path], None]
    shapes: Mapping[str, tuple[Any, ...]]
    sizes: tuple[dict[str, int], ...]

    def at(self, sizes: Mapping[str, int]) -> dict[str, tuple[int, ...]]:
        """Return the shapes of the inputs at some sizes."""
        return {n: tuple(sizes[d[0]] if isinstance(d, tuple) else d for d in dims) for n, dims in self.shapes.items()}


def bert_case(layers: int) -> Case:
    """Return an encoder of BERT's width over batch and sequence."""
    free = (("batch", 1, 8), ("sequence", 1, 512))
    pairs = ((1, 1), (1, 7), (1, 16), (1, 64), (1, 128), (2, 33), (4, 100), (8, 48), (1, 512), (8, 128))
    size = bert.Bert(layers=layers, sequence=512, free=True)
    return Case(
        lambda path: bert.build(path, 1, size),
        dict.fromkeys(("input_ids", "token_type_ids", "attention_mask"), free),
        tuple({"batch": b, "sequence": s} for b, s in pairs),
    )


def image_case() -> Case:
    """Return a small convolutional network over batch, height and width."""
    free = (("batch", 1, 4), 3, ("height", 32, 96), ("width", 32, 96))
    several = ((1, 32, 32), (1, 47, 61), (1, 64, 64), (2, 33, 95), (4, 72, 40), (1, 96, 96), (4, 96, 96))
    return Case(image.build, {"image": free}, tuple({"batch": b, "height": h, "width": w} for b, h, w in several))


def main(
    layers: Annotated[int, typer.Option(help="Of the encoder.")] = 2,
    only: Annotated[str, typer.Option(help="'bert' or 'image' alone.")] = "",
) -> None:
    """Compile models over ranges, check and measure them; exit with 1 where they fall short."""
    cases = {"bert": bert_case(layers), "image": image_case()}
    good = [measured(name, case) for name, case in cases.items() if only in ("", name)]
    raise typer.Exit(0 if all(good) else 1)


def measured(name: str, case: Case) -> bool:
    """Compile, check and race one model, and print a table; return whether it is fast enough."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"{name}.onnx"
        case.build(path)
        begin = time.perf_counter()
        session = roller.compile_model(path, shapes=case.shapes)
        whole_s = time.perf_counter() - begin
        known = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
        kernels = max(len(several) for several in session.plan.kernels.values())
        print(f"\n{name}: {session!r}, at most {kernels} an operator, compiled in {whole_s:.1f} s\n")
        print("| sizes | first call ms | range us | own us | speed | own compile s |\n|---|---|---|---|---|---|")
        speeds, own_s = [], []
        for sizes in case.sizes:
            feeds = random_feeds(path, shapes=case.at(sizes))
            begin = time.perf_counter()
            session.at(**sizes)
            first_ms = 1e3 * (time.perf_counter() - begin)
            begin = time.perf_counter()
            single = roller.compile_model(path, shapes=case.at(sizes), cache=False)
            own_s.append(time.perf_counter() - begin)
            meant = known.run(None, feeds)
            for runner in (session, single):
                check(list(runner.run(feeds).values()), meant, f"{name} at {sizes}")
            one, other = median_seconds_in_blocks(
                lambda feeds=feeds: session.run(feeds), lambda s=single, feeds=feeds: s.run(feeds)
            )
            speeds.append(other / one)
            said = " ".join(f"{n}={x}" for n, x in sizes.items())
            print(f"| {said} | {first_ms:.0f} | {one * 1e6:.0f} | {other * 1e6:.0f} | {other / one:.3f} "
                  f"| {own_s[-1]:.1f} |", flush=True)  # fmt: skip
    mean, least = geometric_mean(speeds), min(speeds)
    print(f"\ngeometric mean {mean:.3f} (limit {MEAN}), least {least:.3f} (limit {LEAST}), "
          f"compile {whole_s / median(own_s):.1f} times one size\n")  # fmt: skip
    return mean >= MEAN and least >= LEAST


def check(found: list[np.ndarray], meant: list[np.ndarray], where: str) -> None:
    """Make sure that results are those of ONNX Runtime.

    Raises
    ------
    AssertionError
        Where one is not.
    """
    for x, y in zip(found, meant, strict=True):
        off = float(np.abs(x - y).max() / np.abs(y).max())
        assert off < CLOSE, f"{where}: off by {off:.1e} of the largest value"


if __name__ == "__main__":
    typer.run(main)
