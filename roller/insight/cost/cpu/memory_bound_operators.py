"""Work of norms, softmax, reductions, pooling, losses, gathers and random draws in ATen's CPU kernels."""

# All constants are per element. Vector cycles are the cycles of one core per vector of 16 elements (a narrower vector
# takes as many). They were measured on a Zen 4 with PyTorch 2.13, on tensors in the second-level cache, and exclude the
# time of memory traffic. Functions are counted in probed exponentials.

from __future__ import annotations

import math
from collections.abc import Callable

from roller.insight.cost.cpu.operator_work import Mapping, OperatorWork, TensorTraffic, streaming_work
from roller.insight.cost.gpu.operator_view import OperatorView, distinct_bytes, element_count


def per_element_work_rule(
    *, per: str = "input", serial: bool = False, cycles: float = 0.0, vector: float = 0.0,
    exponentials: float = 0.0, reads: float = 1.0, writes: float = 1.0,
) -> Mapping:  # fmt: skip
    """Return the mapping for an operator with constant costs per element."""
    # ``per`` selects the tensor whose elements count: the largest input or the first output. ``reads`` and ``writes``
    # are numbers of passes over the tensors.

    def map_operator(view: OperatorView) -> OperatorWork:
        count = float(max(map(element_count, view.inputs), default=0) if per == "input" else element_count(view.out))
        given = tuple(TensorTraffic(t, reads) for t in dict.fromkeys(view.inputs) if element_count(t))
        made = tuple(TensorTraffic(t, writes) for t in view.outputs if element_count(t))
        return OperatorWork(
            given, made, exponentials=exponentials * count, vector_cycles=vector * count,
            cycles=cycles * count, parallel_elements=0.0 if serial else count,
        )  # fmt: skip

    return map_operator


def batch_norm_work(view: OperatorView) -> OperatorWork:
    """Return the work of a batch norm, which sums batch statistics sequentially in double precision."""
    own = not view.has_tensor("running_mean") or bool(view.argument("training", True))
    x = view.required_tensor("input", 0)
    count = float(element_count(x))
    reads = (TensorTraffic(x, 3.0 if own else 1.0), *(TensorTraffic(t) for t in view.inputs if t != x))
    return OperatorWork(
        reads, tuple(TensorTraffic(t) for t in view.outputs if element_count(t)),
        cycles=_OWN_STATISTICS_CYCLES * count if own else 0.0, vector_cycles=8 * count, parallel_elements=count,
    )  # fmt: skip


#: Cycles per element for batch statistics: the conversion to double, and chains of additions for mean and squares.
_OWN_STATISTICS_CYCLES = 6.5


def reduction_work_rule(cycles: float = 0.0, vector: float = 2.0) -> Mapping:
    """Return the mapping for a reduction with given cycles per element."""
    # Rows are read in memory order. Columns are read in strips of a few vectors, so every row of a strip is fetched
    # from memory again.

    def map_operator(view: OperatorView) -> OperatorWork:
        x = view.inputs[0]
        given = view.argument("dim", ())
        dims = {d % max(1, len(x.shape)) for d in ((given,) if isinstance(given, int) else given)}
        inner = max((d for d, n in enumerate(x.shape) if n > 1), default=0, key=lambda d: -abs(x.stride[d]))
        across = bool(dims) and inner not in dims
        count = float(element_count(x))
        return streaming_work(
            view, cycles=cycles * count, vector_cycles=vector * count, parallel_elements=count,
            scattered_bytes=distinct_bytes(x) * _LINE_BYTES / _STRIP_BYTES if across else 0.0,
        )  # fmt: skip

    return map_operator


#: Width in bytes of the strip of columns that is summed at once (four vectors), and size in bytes of a cache line.
_STRIP_BYTES, _LINE_BYTES = 256, 64


def softmax_work_rule(gradient: bool = False, logarithm: bool = False) -> Mapping:
    """Return the mapping for a softmax: vectorized over the last axis, column by column over any other."""

    def map_operator(view: OperatorView) -> OperatorWork:
        x = view.inputs[0]
        dim, rank = int(view.argument("dim", -1)), max(1, len(x.shape))
        inner = dim % rank != rank - 1
        count = float(element_count(x))
        powers = 0.0 if gradient and not logarithm else 1.2
        return streaming_work(
            view, exponentials=powers * count, vector_cycles=(28.0 if inner else 16.0) * count,
            parallel_elements=count,
        )  # fmt: skip

    return map_operator


#: Cycles per result of a pooling operator and per element of its window: for max pooling, whose branches are
#: mispredicted, and for average pooling.
GREATEST, MEAN = (75.0, 5.0), (15.0, 3.0)


def pooling_work_rule(taken: tuple[float, float]) -> Mapping:
    """Return the mapping for a pooling operator; ``taken`` has the cycles per result and per element of its window."""

    def map_operator(view: OperatorView) -> OperatorWork:
        count = float(element_count(view.out))
        # An adaptive pool names no window; its windows partition the input.
        given = view.argument("kernel_size", ())
        size = math.prod(given) if given else element_count(view.inputs[0]) / max(1.0, count)
        return streaming_work(view, cycles=(taken[0] + taken[1] * size) * count, parallel_elements=count)

    return map_operator


def pooling_backward_work_rule(cycles: float) -> Mapping:
    """Return the mapping for a pooling gradient, scattered into zeros in ``cycles`` per read element."""

    def map_operator(view: OperatorView) -> OperatorWork:
        gradient, out = view.inputs[0], view.out
        reads = tuple(TensorTraffic(t) for t in view.inputs if t.shape == gradient.shape)
        return OperatorWork(
            reads, (TensorTraffic(out, 2.0),), cycles=cycles * element_count(gradient),
            parallel_elements=float(element_count(out)),
        )  # fmt: skip

    return map_operator


def nll_loss_work(view: OperatorView) -> OperatorWork:
    """Return the work of a negative log-likelihood: one thread reads one element, and thus one cache line, per row."""
    target = view.tensor("target", 1) or view.inputs[-1]
    return OperatorWork(
        (TensorTraffic(target),), scattered_bytes=64.0 * element_count(target), cycles=8.0 * element_count(target)
    )


def nll_loss_backward_work(view: OperatorView) -> OperatorWork:
    """Return the work of the loss's gradient, which fills the result with zeros and then writes one element per row."""
    target = view.tensor("target", 2) or view.inputs[-1]
    count = float(element_count(view.out))
    return OperatorWork(
        (TensorTraffic(target),),
        (TensorTraffic(view.out),),
        cycles=12.0 * element_count(target),
        parallel_elements=count,
    )


def random_draw_work_rule(cycles: float) -> Callable[[OperatorView], OperatorWork]:
    """Return the mapping for an operator that draws its elements sequentially from one random generator."""

    def map_operator(view: OperatorView) -> OperatorWork:
        return OperatorWork((), (TensorTraffic(view.out),), cycles=cycles * element_count(view.out))

    return map_operator


def gather_work_rule(cycles: float = 0.0) -> Mapping:
    """Return the mapping for a gather, which reads the indices and the gathered elements."""

    def map_operator(view: OperatorView) -> OperatorWork:
        table, places = view.inputs[0], view.inputs[1:]
        count = float(element_count(view.out))
        reads = [TensorTraffic(t) for t in places if element_count(t)]
        if element_count(table):
            reads.append(TensorTraffic(table, min(1.0, distinct_bytes(view.out) / distinct_bytes(table))))
        return OperatorWork(tuple(reads), (TensorTraffic(view.out),), cycles=cycles * count, parallel_elements=count)

    return map_operator


def embedding_backward_work(view: OperatorView) -> OperatorWork:
    """Return the work of an embedding's gradient, which fills the result with zeros and then adds rows sequentially."""
    gradient = view.inputs[0]
    return OperatorWork(
        tuple(TensorTraffic(t) for t in view.inputs), (TensorTraffic(view.out),), cycles=0.5 * element_count(gradient),
        parallel_elements=float(element_count(view.out)),
    )  # fmt: skip
