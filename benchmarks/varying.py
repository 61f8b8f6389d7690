"""``python -m benchmarks.varying``: kernels of ranges beside the kernel compiled for each size, in turns.

For every size the kernel of the range and one of that size, chosen by timing ten candidates, run in alternating turns
on the same arrays; the ratio of their medians is what the range costs there. Dispatch is the time of a call of the
range beside its kernel's; what a new size costs is the time until its kernel is ready, beside the load of a library.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import geometric_mean, median
from typing import Annotated, Any

import numpy as np
import typer

import roller
from roller.compiler.dynamic.kernel import VaryingKernel
from roller.expr import TensorExpr
from roller.ops import parse

#: Speed beside the kernel of a size: of each, and of all together. Kernels; compile time over that of one size.
LEAST, MEAN, KERNELS, TIMES = 0.9, 0.97, 8, 5.0
#: Seconds in which the kernel of a call is found.
DISPATCH_S = 1e-6
#: Turns of each, and the seconds of one.
TURNS, TURN_S = 15, 0.01
#: Sizes whose cost, when first met, is measured.
_NEW = 3


@dataclass(frozen=True)
class Case:
    """An operator over ranges.

    Parameters
    ----------
    name
        What it is called.
    operator
        Its varying arguments written as ``{name}``.
    axes
        Axis of the result by argument.
    ends
        Least and largest of every argument.
    sizes
        Values of the arguments to measure.
    """

    name: str
    operator: str
    axes: Mapping[str, str]
    ends: Mapping[str, tuple[int, int]]
    sizes: Sequence[tuple[int, ...]]

    def at(self, size: tuple[int, ...]) -> TensorExpr:
        """Return the expression of a size."""
        return parse(self.operator.format(**dict(zip(self.axes, size, strict=True))))


IMAGE = (7, 9, 12, 14, 19, 23, 28, 33, 40, 45, 56, 64)
CASES = (
    Case("rows", "matmul({m}, 768, 768, epilogue=('bias', 'gelu'))", {"m": "i"}, {"m": (1, 4096)},
         [(n,) for n in (1, 2, 3, 5, 8, 13, 21, 34, 55, 89, 144, 233, 377, 610, 987, 1597, 2584, 4096)]),
    Case("image", "conv2d(1, 64, {h}, {w}, 64, 3, 3, padding=1)", {"h": "ho", "w": "wo"},
         {"h": (7, 64), "w": (7, 64)}, [*((n, n) for n in IMAGE), (14, 28), (57, 33), (9, 61), (48, 8)]),
    Case("batch", "conv2d({n}, 64, 28, 28, 64, 3, 3, padding=1)", {"n": "n"}, {"n": (1, 16)},
         [(n,) for n in (1, 2, 3, 4, 5, 6, 8, 11, 13, 16)]),
)  # fmt: skip


def main(
    only: Annotated[str, typer.Option(help="Cases, by their names with commas; all where empty.")] = "",
) -> None:
    """Compile ranges and single sizes, and print the speed of the ranges; exit with 1 where one falls short."""
    wanted = [c for c in CASES if not only or c.name in only.split(",")]
    good = [measured(case) for case in wanted]
    raise typer.Exit(0 if all(good) and good else 1)


def measured(case: Case) -> bool:
    """Measure a case; return whether it holds what it must."""
    expr = case.at(tuple(high for _, high in case.ends.values()))
    begin = time.perf_counter()
    kernel: Any = roller.compile(expr, shapes={case.axes[n]: ends for n, ends in case.ends.items()})
    whole_s = time.perf_counter() - begin
    kernels = len(kernel.variants if isinstance(kernel, VaryingKernel) else kernel.kernels)
    print(f"\n{case.operator}, {dict(case.ends)}: {kernels} kernels, {whole_s:.1f} s. {kernel.doubt}\n")
    print("| size | range us | own us | speed | compile s |\n|---|---|---|---|---|")
    speeds, own_s, new_s = [], [], []
    for size in case.sizes:
        begin = time.perf_counter()
        single = roller.compile(case.at(size), cache=False, top_k=10)
        own_s.append(time.perf_counter() - begin)
        arrays = arrays_of(case.at(size))
        begin = time.perf_counter()
        ours, _ = kernel.at(*size).launcher.bind(*arrays)
        new_s.append(time.perf_counter() - begin)
        theirs, _ = single.launcher.bind(*arrays)
        one, other = in_turns(ours, theirs)
        speeds.append(other / one)
        shown = " x ".join(map(str, size))
        print(f"| {shown} | {one * 1e6:.1f} | {other * 1e6:.1f} | {other / one:.3f} | {own_s[-1]:.1f} |", flush=True)
    mean, least, times = geometric_mean(speeds), min(speeds), whole_s / median(own_s)
    dispatch = dispatch_s(kernel, arrays_of(case.at(case.sizes[0])))
    print(f"\ngeometric mean {mean:.3f} (limit {MEAN}), least {least:.3f} (limit {LEAST}), compile {times:.1f} times "
          f"one size (limit {TIMES:.0f}), dispatch {dispatch * 1e9:.0f} ns, a new size {median(new_s) * 1e3:.0f} ms",
          flush=True)  # fmt: skip
    return mean >= MEAN and least >= LEAST and kernels <= KERNELS and times <= TIMES and dispatch < DISPATCH_S


def arrays_of(expr: TensorExpr) -> list[np.ndarray]:
    """Return random inputs."""
    rng = np.random.default_rng(0)
    return [rng.standard_normal(t.shape).astype(t.dtype) for t in expr.inputs]


def in_turns(one: Callable[[], None], other: Callable[[], None]) -> tuple[float, float]:
    """Return medians of seconds a call."""
    calls = max(1, int(TURN_S / max(1e-6, turn(other, 3))))
    turn(one, 3)
    pairs = [(turn(one, calls), turn(other, calls)) for _ in range(TURNS)]
    return median(p[0] for p in pairs), median(p[1] for p in pairs)


def turn(run: Callable[[], object], calls: int) -> float:
    """Return seconds a call."""
    begin = time.perf_counter()
    for _ in range(calls):
        run()
    return (time.perf_counter() - begin) / calls


def dispatch_s(kernel: Any, arrays: Sequence[np.ndarray]) -> float:
    """Return what finding the kernel of a call takes: medians of turns of calls of a kernel that does nothing."""

    def nothing(*arrays: object, out: object = None) -> None:
        del arrays, out

    kernel(*arrays)
    for key in kernel._ready:
        kernel._ready[key] = nothing
    one, other = in_turns(lambda: kernel(*arrays), lambda: nothing(*arrays))
    return one - other


if __name__ == "__main__":
    typer.run(main)
