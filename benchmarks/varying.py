"""``python -m benchmarks.varying``: kernels of a range beside the kernel compiled for each extent, in turns.

For every extent the kernel of the range and one of that extent, chosen by timing ten candidates, run in alternating
turns on the same arrays; the ratio of their medians is what the range costs there. Dispatch is the time of a call of
the range beside its kernel's.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import geometric_mean, median
from typing import Annotated

import numpy as np
import typer

import roller
from roller.expr import TensorExpr
from roller.ops import parse
from roller.varying.kernel import VaryingKernel

#: Speed beside the kernel of an extent: of each, and of all together.
LEAST, MEAN = 0.9, 0.97
#: Turns of each, and the seconds of one.
TURNS, TURN_S = 15, 0.01


def main(
    operator: Annotated[str, typer.Argument(help="An operator, its varying argument written as N.")] = (
        "matmul(N, 768, 768, epilogue=('bias', 'gelu'))"
    ),
    axis: Annotated[str, typer.Option(help="The axis that varies.")] = "i",
    high: Annotated[int, typer.Option(help="Largest extent.")] = 4096,
    extents: Annotated[str, typer.Option(help="Extents to measure.")] = (
        "1,2,3,5,8,13,21,34,55,89,144,233,377,610,987,1597,2584,4096"
    ),
) -> None:
    """Compile a range and single extents, and print the speed of the range; exit with 1 where it falls short."""

    def at(extent: int) -> TensorExpr:
        return parse(operator.replace("N", str(extent)))

    begin = time.perf_counter()
    kernel = roller.compile(at(high), shapes={axis: (1, high)})
    whole_s = time.perf_counter() - begin
    assert isinstance(kernel, VaryingKernel)
    print(f"{operator}, {axis} from 1 to {high}: {len(kernel.variants)} kernels, {whole_s:.1f} s; {kernel.doubt}\n")
    print("| extent | range us | own us | speed | compile s |\n|---|---|---|---|---|")
    speeds, own_s = [], []
    for extent in map(int, extents.split(",")):
        begin = time.perf_counter()
        single = roller.compile(at(extent), cache=False, top_k=10)
        own_s.append(time.perf_counter() - begin)
        rng = np.random.default_rng(extent)
        arrays = [rng.standard_normal(t.shape).astype(t.dtype) for t in at(extent).inputs]
        ours, _ = kernel.at(extent).launcher.bind(*arrays)
        theirs, _ = single.launcher.bind(*arrays)
        one, other = in_turns(ours, theirs)
        speeds.append(other / one)
        print(f"| {extent} | {one * 1e6:.1f} | {other * 1e6:.1f} | {other / one:.3f} | {own_s[-1]:.1f} |", flush=True)
    print(
        f"\ngeometric mean {geometric_mean(speeds):.3f} (limit {MEAN}), least {min(speeds):.3f} (limit {LEAST}), ",
        end="",
    )
    print(f"compile {whole_s / median(own_s):.1f} times one extent, dispatch {dispatch_s(kernel, at(1)) * 1e9:.0f} ns")
    raise typer.Exit(0 if geometric_mean(speeds) >= MEAN and min(speeds) >= LEAST else 1)


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


def dispatch_s(kernel: VaryingKernel, expr: TensorExpr) -> float:
    """Return what finding the kernel of a call takes: medians of turns of calls of a kernel that does nothing."""

    def nothing(*arrays: object, out: object = None) -> None:
        del arrays, out

    arrays = [np.ones(t.shape, t.dtype) for t in expr.inputs]
    kernel(*arrays)
    kernel._ready[1] = nothing  # type: ignore[assignment]
    one, other = in_turns(lambda: kernel(*arrays), lambda: nothing(*arrays))
    return one - other


if __name__ == "__main__":
    typer.run(main)
