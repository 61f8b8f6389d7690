"""Norms, softmax, windows, losses and draws as ATen's kernels compute them on a processor.

Cycles are of one core, in vectors of 16 numbers (they take the same for narrower ones), measured on a Zen 4 with
PyTorch 2.13 on tensors that lie in the second cache, bytes taken off; exponentials are those the probe times.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from roller.insight.cost.cpu.operator_work import Mapping, Traffic, Work, through
from roller.insight.cost.gpu.operator_view import View, distinct_bytes, elements


def counted(
    *, per: str = "input", serial: bool = False, cycles: float = 0.0, vector: float = 0.0,
    exponentials: float = 0.0, reads: float = 1.0, writes: float = 1.0,
) -> Mapping:  # fmt: skip
    """Return the mapping of an operator that takes so much for each element.

    Parameters
    ----------
    per
        Of which elements: those of the largest ``"input"``, or of the first ``"output"``.
    serial
        Whether one thread does it all.
    cycles, vector, exponentials
        For each element: cycles of scalar code; cycles of a vector; exponentials.
    reads, writes
        Times the inputs and the first result go through memory.
    """

    def mapped(view: View) -> Work:
        count = float(max(map(elements, view.inputs), default=0) if per == "input" else elements(view.out))
        given = tuple(Traffic(t, reads) for t in dict.fromkeys(view.inputs) if elements(t))
        made = tuple(Traffic(t, writes) for t in view.outputs if elements(t))
        return Work(
            given, made, exponentials=exponentials * count, vector_cycles=vector * count,
            cycles=cycles * count, parallel_elements=0.0 if serial else count,
        )  # fmt: skip

    return mapped


def batch_norm(view: View) -> Work:
    """Return the work of a batch norm: sums of a batch's own statistics are taken in double, one after the other."""
    own = not view.has("running_mean") or bool(view.arg("training", True))
    x = view.need("input", 0)
    count = float(elements(x))
    reads = (Traffic(x, 3.0 if own else 1.0), *(Traffic(t) for t in view.inputs if t != x))
    return Work(
        reads, tuple(Traffic(t) for t in view.outputs if elements(t)),
        cycles=_OWN_STATISTICS_CYCLES * count if own else 0.0, vector_cycles=8 * count, parallel_elements=count,
    )  # fmt: skip


#: Of an element's moments: conversion to double, mean and squares, each a chain of additions.
_OWN_STATISTICS_CYCLES = 6.5


def reduced(cycles: float = 0.0, vector: float = 2.0) -> Mapping:
    """Return the mapping of a reduction, with cycles for each element.

    Rows are gone through as they lie. Columns are taken in strips of a few vectors, of which memory brings every row
    anew.
    """

    def mapped(view: View) -> Work:
        x = view.inputs[0]
        given = view.arg("dim", ())
        dims = {d % max(1, len(x.shape)) for d in ((given,) if isinstance(given, int) else given)}
        inner = max((d for d, n in enumerate(x.shape) if n > 1), default=0, key=lambda d: -abs(x.stride[d]))
        across = bool(dims) and inner not in dims
        count = float(elements(x))
        return through(
            view, cycles=cycles * count, vector_cycles=vector * count, parallel_elements=count,
            strewn_bytes=distinct_bytes(x) * _LINE_BYTES / _STRIP_BYTES if across else 0.0,
        )  # fmt: skip

    return mapped


#: Columns that are summed at once, four vectors of them, and what memory brings at least.
_STRIP_BYTES, _LINE_BYTES = 256, 64


def softmax(gradient: bool = False, logarithm: bool = False) -> Mapping:
    """Return the mapping of a softmax: over the last axis in vectors, over another column by column."""

    def mapped(view: View) -> Work:
        x = view.inputs[0]
        dim, rank = int(view.arg("dim", -1)), max(1, len(x.shape))
        inner = dim % rank != rank - 1
        count = float(elements(x))
        powers = 0.0 if gradient and not logarithm else 1.2
        return through(
            view, exponentials=powers * count, vector_cycles=(28.0 if inner else 16.0) * count,
            parallel_elements=count,
        )  # fmt: skip

    return mapped


#: Cycles of a result of a pool, and of an element of its window: of the greatest, whose comparisons are foretold
#: wrongly; of the mean.
GREATEST, MEAN = (75.0, 5.0), (15.0, 3.0)


def window(taken: tuple[float, float]) -> Mapping:
    """Return the mapping of a pool, with cycles for every result and for each element of its window."""

    def mapped(view: View) -> Work:
        count = float(elements(view.out))
        # An adaptive pool names no window: its windows share the input out.
        given = view.arg("kernel_size", ())
        size = math.prod(given) if given else elements(view.inputs[0]) / max(1.0, count)
        return through(view, cycles=(taken[0] + taken[1] * size) * count, parallel_elements=count)

    return mapped


def spread(cycles: float) -> Mapping:
    """Return the mapping of a gradient that is scattered over zeros, with cycles for each of its elements."""

    def mapped(view: View) -> Work:
        gradient, out = view.inputs[0], view.out
        reads = tuple(Traffic(t) for t in view.inputs if t.shape == gradient.shape)
        return Work(
            reads, (Traffic(out, 2.0),), cycles=cycles * elements(gradient),
            parallel_elements=float(elements(out)),
        )  # fmt: skip

    return mapped


def loss(view: View) -> Work:
    """Return the work of a loss that takes one element of each row: a line of memory each, by one thread."""
    target = view.tensor("target", 1) or view.inputs[-1]
    return Work((Traffic(target),), strewn_bytes=64.0 * elements(target), cycles=8.0 * elements(target))


def loss_backward(view: View) -> Work:
    """Return the work of its gradient: zeros, and one element of each row."""
    target = view.tensor("target", 2) or view.inputs[-1]
    count = float(elements(view.out))
    return Work((Traffic(target),), (Traffic(view.out),), cycles=12.0 * elements(target), parallel_elements=count)


def drawn(cycles: float) -> Callable[[View], Work]:
    """Return the mapping of an operator that draws every element, one after the other from one generator."""

    def mapped(view: View) -> Work:
        return Work((), (Traffic(view.out),), cycles=cycles * elements(view.out))

    return mapped


def gathered(cycles: float = 0.0) -> Mapping:
    """Return the mapping of an operator that reads the elements of its result, and where they lie."""

    def mapped(view: View) -> Work:
        table, places = view.inputs[0], view.inputs[1:]
        count = float(elements(view.out))
        reads = [Traffic(t) for t in places if elements(t)]
        if elements(table):
            reads.append(Traffic(table, min(1.0, distinct_bytes(view.out) / distinct_bytes(table))))
        return Work(tuple(reads), (Traffic(view.out),), cycles=cycles * count, parallel_elements=count)

    return mapped


def table_backward(view: View) -> Work:
    """Return the work of the gradient of a table: zeros, and rows added one after the other."""
    gradient = view.inputs[0]
    return Work(
        tuple(Traffic(t) for t in view.inputs), (Traffic(view.out),), cycles=0.5 * elements(gradient),
        parallel_elements=float(elements(view.out)),
    )  # fmt: skip
