"""``python -m benchmarks.lint_cpu``: what padding brings on this processor, predicted by `roller lint` and measured.

For every operator the padding with the least predicted time is taken, whether `roller lint` would tell it or not. The
kernel of the sizes as they are and that of the padded sizes, each the fastest of the candidates, run in alternating
turns on arrays of their own; the ratio of their medians is the gain. Advice is right where both gains are on the same
side of what `roller lint` tells.
"""

from __future__ import annotations

from statistics import geometric_mean

import numpy as np
import typer

import roller
from benchmarks.common import FilterOption
from benchmarks.varying import in_turns
from roller.compile_arguments import spec_and_local_device
from roller.expr import TensorExpr
from roller.expr.sizes_growable_by_padding import growing_sizes
from roller.hardware import DeviceSpec
from roller.insight.cost.kernel_prices import KernelPricer
from roller.insight.cost.worthwhile_size_padding import (
    LEAST_GAIN,
    allowed_padded_extents,
    enlarge_sizes,
    paddings_to_common_multiples,
)
from roller.ops import parse

#: Operators whose sizes are multiples of nothing: wide ones, then those of few columns, for which padding is advised
#: where vectors are long. The latter were drawn at random.
OPERATORS = (
    "matmul(64, 999, 1001)",
    "matmul(197, 193, 193)",
    "matmul(512, 50, 17)",
    "matmul(1000, 33, 65)",
    "matmul(5, 513, 1025)",
    "matmul(9, 1024, 1023)",
    "matmul(1021, 1021, 1021)",
    "matmul(2048, 128, 18)",
    "matmul(1, 999, 4001)",
    "matmul(129, 2049, 257)",
    "conv2d(1, 17, 28, 28, 33, 3, 3, padding=1)",
    "conv2d(8, 31, 14, 14, 49, 3, 3, padding=1)",
    "conv2d(1, 33, 56, 56, 65, 1, 1)",
    "conv2d(4, 67, 7, 7, 129, 1, 1)",
    "matmul(232, 6, 290)",
    "matmul(116, 7, 409)",
    "matmul(292, 6, 561)",
    "matmul(99, 6, 252)",
    "matmul(152, 6, 17)",
    "matmul(5, 12, 225)",
    "matmul(261, 12, 390)",
    "matmul(159, 12, 308)",
    "matmul(208, 13, 149)",
    "matmul(276, 15, 579)",
    "matmul(182, 20, 456)",
    "matmul(193, 18, 423)",
)
#: What gains differ by beside each other on a machine that others use.
NOISE = 0.05


def main(filter_: FilterOption = "*") -> None:
    """Print predicted and measured gains; exit with 1 where advice is wrong."""
    spec = spec_and_local_device("cpu")[0]
    prices = KernelPricer(spec.sustained, "roller")
    chosen = [o for o in OPERATORS if filter_ == "*" or filter_ in o]
    print("| operator | padded | predicted gain | measured gain | told | right |\n|---|---|---:|---:|---|---|")
    ratios, wrong = [], 0
    for operator in chosen:
        expr = parse(operator)
        sizes = [s for s in growing_sizes(expr) if allowed_padded_extents(s.extent)]
        best = min(
            paddings_to_common_multiples(sizes), key=lambda c: prices.price_expression(enlarge_sizes(expr, c)).seconds
        )
        padded = enlarge_sizes(expr, best)
        predicted = prices.price_expression(expr).seconds / prices.price_expression(padded).seconds
        measured = gain(expr, padded, spec)
        told = predicted >= LEAST_GAIN
        right = measured >= LEAST_GAIN - NOISE if told else measured <= LEAST_GAIN + NOISE
        wrong += not right
        ratios.append(measured / predicted)
        text = ", ".join(f"{s.name} {s.extent} -> {e}" for s, e in best.items())
        print(
            f"| `{operator}` | {text} | {predicted:.2f} | {measured:.2f} | {'yes' if told else 'no'} "
            f"| {'yes' if right else 'NO'} |", flush=True,
        )  # fmt: skip
    print(f"\n{len(chosen) - wrong} of {len(chosen)} right; ", end="")
    print(f"measured over predicted, geometric mean {geometric_mean(ratios):.2f}")
    raise typer.Exit(bool(wrong))


def gain(expr: TensorExpr, padded: TensorExpr, spec: DeviceSpec) -> float:
    """Return the measured time of an expression over that of the padded one."""
    runs = []
    for e in (expr, padded):
        rng = np.random.default_rng(0)
        arrays = [rng.standard_normal(t.shape).astype(t.dtype) for t in e.inputs]
        runs.append(roller.compile(e, spec, cache=False, top_k=10).launcher.bind(*arrays)[0])
    one, other = in_turns(*runs)
    return one / other


if __name__ == "__main__":
    typer.run(main)
