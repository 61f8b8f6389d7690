"""Proves a kernel correct without a GPU: runs it in every order and compares its results with the reference."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence

import numpy as np

from roller.artifact import KernelArtifact
from roller.emulator.budgeted_proof import prove_within_budget
from roller.emulator.emulate import ORDERS, emulator_of_artifact, round_to_dtype
from roller.emulator.proof_result import (
    NOTHING,
    WHOLE,
    Comparator,
    PointComparator,
    Proof,
    comparator_of_all_elements,
    describe_error_beyond_bound,
    describe_error_beyond_bound_at,
)
from roller.errors import EmulationError, EmulationTimeout
from roller.expr import Tensor, TensorExpr
from roller.expr.random_inputs_for_products import InputDrawing
from roller.expr.random_inputs_with_exact_sums import choose_exact_inputs
from roller_runtime.core.dtypes import DTYPES

#: Maximum number of random elements to draw for an input, a prime; longer inputs repeat them.
_DISTINCT = 4_194_301


def prove(
    artifact: KernelArtifact,
    arrays: Sequence[np.ndarray] | None = None,
    *,
    seed: int = 0,
    orders: Sequence[str] = ORDERS,
    compare: Comparator | None = None,
    check: bool = True,
    workers: int | None = None,
    cache_dir: str | os.PathLike[str] | None = None,
    budget_s: float | None = None,
    compare_at: PointComparator | None = None,
) -> Proof:
    """Run an artifact in several orders; compare the results with the reference and with each other."""
    # Results that differ between orders are a failure even within the bound: a barrier is missing, or the kernel adds
    # with atomics. budget_s is in processor seconds; the wall-clock limit is more than ten times as long. If not all
    # blocks fit into budget_s, blocks at corners and random ones run.
    if not orders or len(set(orders)) < len(orders) or not set(orders) <= set(ORDERS):
        raise EmulationError(f"orders: expected some of {', '.join(ORDERS)}, each once, got {list(orders)}.")
    expression, start = artifact.expression, time.monotonic()
    emulator = emulator_of_artifact(artifact)
    if budget_s is not None and not emulator.runs_blocks:
        needed_s = len(orders) * emulator.expected_s(artifact)
        if needed_s > budget_s:
            note = f"it runs whole or not at all: about {needed_s:.0f} s here, {budget_s:g} s are given"
            return Proof(True, (), NOTHING, note=note)
        budget_s, compare = None, comparator_of_all_elements(compare_at or describe_error_beyond_bound_at)
    emulated = None if budget_s is not None else emulator(artifact, check=check, cache_dir=cache_dir)
    inputs = [
        round_to_dtype(np.asarray(a), t.dtype)
        for a, t in zip(
            arrays if arrays is not None else _random_inputs(expression, seed), expression.inputs, strict=True
        )
    ]
    if emulated is None:
        assert budget_s is not None
        judge_at = compare_at or describe_error_beyond_bound_at
        return prove_within_budget(artifact, inputs, budget_s, judge_at, orders, seed=seed, check=check,
                                   workers=workers,
                             cache_dir=cache_dir)  # fmt: skip
    judge = compare or describe_error_beyond_bound
    failures: list[tuple[str, str]] = []
    first: tuple[str, tuple[np.ndarray, ...]] | None = None
    ended: list[str] = []
    for order in orders:
        try:
            outputs = emulated(inputs, order=order, seed=seed, workers=workers)
        except EmulationTimeout:  # without a limit it means no memory, which is not the kernel's fault
            raise
        except EmulationError as err:
            failures.append((order, str(err)))
            continue
        ended.append(order)
        wrong = judge(expression, inputs, outputs)
        if wrong:
            failures.append((order, wrong))
        if first is None:
            first = (order, outputs)
        elif not all(a.tobytes() == b.tobytes() for a, b in zip(first[1], outputs, strict=True)):
            failures.append((order, f"the result differs from that in {first[0]} order; a barrier may be missing"))
    blocks = sum(x.grid[0] * x.grid[1] * x.grid[2] for x in artifact.launches)
    points = sum(t.elements for t in expression.output_tensors)
    seconds = time.monotonic() - start
    if not ended:
        return Proof(False, tuple(failures), NOTHING, blocks=blocks, seconds=seconds)
    return Proof(not failures, tuple(failures), WHOLE, tuple(ended), blocks, blocks, points, "", seconds)


def _random_inputs(expression: TensorExpr, seed: int) -> list[np.ndarray]:
    rng, digits = np.random.default_rng(seed), choose_exact_inputs(expression)
    return [_random_array(t, rng, digits.get(t.name)) for t in expression.inputs]


def _random_array(t: Tensor, rng: np.random.Generator, digits: InputDrawing | None) -> np.ndarray:
    count = min(t.elements, _DISTINCT)
    out: np.ndarray
    if t.dtype == "bool":
        out = rng.integers(0, 2, count).astype(np.bool_)
    elif "int" in t.dtype:
        low, high = (0, 16) if t.dtype.startswith("u") else (-8, 8)
        out = rng.integers(low, high, count).astype(t.dtype)
        out = digits.of(out, rng) if digits else out
    else:
        x = rng.standard_normal(count).astype(np.float32)
        if digits:
            x = digits.of(x.reshape(t.shape) if count == t.elements else x, rng)
        out = np.asarray(x if DTYPES[t.dtype].bits else x.astype(t.dtype))
    return np.resize(out, t.shape)
