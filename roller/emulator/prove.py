"""Prove a kernel without a GPU: run it in every order and compare with the expression's own reference."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from roller.artifact import KernelArtifact
from roller.emulator.emulate import ORDERS, Emulated, rounded
from roller.errors import EmulationError
from roller.expr import TensorExpr

#: Says what is wrong with outputs, or returns an empty text: ``(expression, inputs, outputs) -> text``.
Comparator = Callable[[TensorExpr, Sequence[np.ndarray], Sequence[np.ndarray]], str]
#: Unit roundoff of a result, doubled.
_EPS = {"float64": 2.0**-52, "float32": 2.0**-23, "float16": 2.0**-10, "bfloat16": 2.0**-7}


@dataclass(frozen=True)
class Proof:
    """Outcome of :func:`prove`.

    Parameters
    ----------
    ok
        Whether the kernel behaved and was right in every order.
    failures
        Per order that failed, what was wrong.
    """

    ok: bool
    failures: tuple[tuple[str, str], ...]

    def __str__(self) -> str:
        """Return the failures, one a line."""
        return "\n".join(f"{order}: {text}" for order, text in self.failures) or "ok"


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
) -> Proof:
    """Run an artifact in several orders and compare each result with the reference, and with each other.

    Parameters
    ----------
    artifact
        Language ``"cuda"``.
    arrays
        Inputs in call order; standard normal floats and small integers where ``None``.
    seed
        Of the inputs and of the random order.
    orders
        Subset of :data:`roller.emulator.ORDERS`.
    compare
        Comparator; :func:`roller.runtime.check.check` bounds every expression. Where ``None``, the bound of one sum:
        ``4 eps sqrt(K) sum|terms| + eps |reference|``, with ten times that for expressions of several stages.
    check, workers, cache_dir
        As for :func:`roller.emulator.emulate`.

    Returns
    -------
    Proof
        Results that differ between orders are a failure even where each is within its bound: a barrier is missing
        (or the kernel adds with atomics).

    Raises
    ------
    EmulationError
        Where the kernel cannot be emulated at all.
    """
    expression = artifact.expression
    emulated = Emulated(artifact, check=check, cache_dir=cache_dir)
    inputs = [
        rounded(np.asarray(a), t.dtype)
        for a, t in zip(arrays if arrays is not None else _inputs(expression, seed), expression.inputs, strict=True)
    ]
    judge = compare or within_bound
    failures: list[tuple[str, str]] = []
    first: tuple[str, tuple[np.ndarray, ...]] | None = None
    for order in orders:
        try:
            outputs = emulated(inputs, order=order, seed=seed, workers=workers)
        except EmulationError as err:
            failures.append((order, str(err)))
            continue
        wrong = judge(expression, inputs, outputs)
        if wrong:
            failures.append((order, wrong))
        if first is None:
            first = (order, outputs)
        elif not all(a.tobytes() == b.tobytes() for a, b in zip(first[1], outputs, strict=True)):
            failures.append((order, f"the result differs from that in {first[0]} order; a barrier may be missing"))
    return Proof(not failures, tuple(failures))


def within_bound(expression: TensorExpr, arrays: Sequence[np.ndarray], outputs: Sequence[np.ndarray]) -> str:
    """Compare outputs with ``expression.evaluate``; see :func:`prove` for the bound."""
    reference = expression.evaluate(arrays)
    magnitude = expression.evaluate(arrays, magnitude=True)
    terms = max(int(np.prod([a.extent for a in s.reduction_axes], dtype=np.int64)) for s in expression.stages)
    factor = 4.0 * float(np.sqrt(terms)) * (1 if len(expression.stages) == 1 else 10)
    for t, got, ref, size in zip(expression.output_tensors, outputs, reference, magnitude, strict=True):
        accumulate = max((_EPS.get(s.acc_dtype, 0.0) for s in expression.stages), default=0.0)
        bound = factor * accumulate * np.abs(size.astype(np.float64)) + _EPS.get(t.dtype, 0.0) * np.abs(ref)
        error = np.abs(got.astype(np.float64) - ref.astype(np.float64))
        wrong = ~(error <= bound)
        if wrong.any():
            at = tuple(int(x) for x in np.argwhere(wrong)[0])
            return f"output '{t.name}'{list(at)}: expected {ref[at]!r}, got {got[at]!r}, error bound {bound[at]:.3g}"
    return ""


def _inputs(expression: TensorExpr, seed: int) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    out: list[np.ndarray] = []
    for t in expression.inputs:
        if t.dtype == "bool":
            out.append(rng.integers(0, 2, t.shape).astype(np.bool_))
        elif "int" in t.dtype:
            low, high = (0, 16) if t.dtype.startswith("u") else (-8, 8)
            out.append(rng.integers(low, high, t.shape).astype(t.dtype))
        else:
            x = rng.standard_normal(t.shape).astype(np.float32)
            out.append(np.asarray(x if t.dtype == "bfloat16" else x.astype(t.dtype)))
    return out
