"""Products, convolutions, attention and recurrent layers as MKL and oneDNN compute them: in blocks put in order."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence

from roller.insight.cost.cpu.operator_work import Traffic, Work
from roller.insight.cost.gpu.operator_view import View, elements, itemsize
from roller.insight.trace.trace import TensorRecord

#: Of the rate of multiply-adds, as it is probed in undisturbed windows, what products of MKL and convolutions of oneDNN
#: keep up on all cores. Measured on a Zen 4 under a hypervisor, PyTorch 2.13: products of 192 to 1024 rows 0.61 to 0.74
#: (medians of ten seconds each; 0.80 at best), convolutions of 3 x 3 with many channels 0.75 to 0.90.
PRODUCT_SHARE, CONVOLUTION_SHARE = 0.67, 0.83
#: Loads of the image for each vector of results, in multiply-adds. Measured: 102, 150 and 170 GFLOP/s of 16, 32, 64
#: channels.
_LOADS = 0.6
#: Rows of the second operand that a block takes: the result is gone through once for each.
_DEPTH = 384
#: Result columns and channels are padded to vectors of so many.
_LANES = 16
#: Queries and keys of a block of attention (``sdp_utils_cpp``, ``FlashAttentionKernel.cpp``), by the longest sequence.
_QUERIES, _KEYS = ((768, 256), (192, 64), (0, 32)), 512
#: Times that the multiply-adds of a convolution of every channel alone take those of a product: most of it is loads.
_DEPTHWISE = 4.0
#: Exponentials of a gate: three sigmoids and two hyperbolic tangents of a long short-term memory's four.
_GATES, _GATE_EXPONENTIALS = 4, 8.0


def _padded(n: int) -> int:
    return -(-n // _LANES) * _LANES


def product(
    m: int, n: int, k: int, batch: int = 1, *, dtype: str = "float32",
    reads: Iterable[TensorRecord] = (), writes: Iterable[TensorRecord] = (),
) -> Work:  # fmt: skip
    """Return the work of products of ``m`` by ``k`` and ``k`` by ``n`` matrices.

    Parameters
    ----------
    m, n, k, batch
        Sizes.
    dtype
        Of the numbers.
    reads, writes
        Its tensors.
    """
    turns = math.ceil(k / _DEPTH)
    # The second operand is rearranged; of a vector nothing is.
    packed = 0.0 if min(m, n) == 1 else float(batch * n * k)
    results = tuple(Traffic(t, turns) for t in writes)
    multiplies = batch * (1 if n == 1 else m) * (m if n == 1 else _padded(n)) * k
    # The second operand is put in order column by column, in runs of a vector or two.
    given = tuple(Traffic(t, is_strewn=packed > 0 and at > 0) for at, t in enumerate(dict.fromkeys(reads)))
    return Work(
        given, results, multiplies=float(multiplies),
        share=PRODUCT_SHARE, packed_elements=packed, packers=float(batch), dtype=dtype,
        parallel_elements=float(multiplies), hides=False,
    )  # fmt: skip


def plain(first: str, second: str) -> Callable[[View], Work]:
    """Return the mapping of a product of the operands of these names."""

    def mapped(view: View) -> Work:
        left, right = view.need(first, 0), view.need(second, 1)
        return _product_of(left, right, view.out)

    return mapped


def with_addend(first: str, second: str) -> Callable[[View], Work]:
    """Return the mapping of ``self + first @ second``: the result is a copy of the addend first."""

    def mapped(view: View) -> Work:
        addend, left, right = view.need("self", 0), view.need(first, 1), view.need(second, 2)
        adds = view.arg("beta", 1) != 0
        work = _product_of(left, right, view.out)
        if not adds or view.in_place:
            return work
        copied = Traffic(view.out)
        return Work(**{**vars(work), "reads": (*work.reads, Traffic(addend)), "writes": (copied, *work.writes)})

    return mapped


def _product_of(left: TensorRecord, right: TensorRecord, out: TensorRecord) -> Work:
    m, k = left.shape[-2:]
    n = right.shape[-1]
    batch = math.prod(left.shape[:-2])
    return product(m, n, k, batch, dtype=left.dtype, reads=(left, right), writes=(out,))


def matrix_vector(view: View) -> Work:
    """Return the work of a matrix and a vector, or of two vectors: the bytes of the matrix."""
    largest = max(view.inputs, key=elements)
    reads = tuple(Traffic(t) for t in dict.fromkeys(view.inputs))
    return Work(
        reads, (Traffic(view.out),), multiplies=float(elements(largest)), share=PRODUCT_SHARE,
        parallel_elements=float(elements(largest)), dtype=largest.dtype,
    )  # fmt: skip


def convolution(view: View) -> Work:
    """Return the work of a convolution: image and filters come to blocks of channels, and the result back."""
    x, weight = view.tensor("self") or view.need("input", 0), view.need("weight", 1)
    bias = view.tensor("bias")
    turned = bool(view.arg("transposed", False))
    reads = (x, weight) if bias is None else (x, weight, bias)
    return _convolved(view, x if turned else view.out, weight, (turned,), reads, (view.out,))


def convolution_backward(view: View) -> Work:
    """Return the work of its gradients: of the image and of the filters, each with data of its own."""
    gradient, x, weight = view.need("grad_output", 0), view.need("input", 1), view.need("weight", 2)
    wanted = tuple(view.arg("output_mask", (True, True, False)))
    turned = bool(view.arg("transposed", False))
    reads = [gradient] * sum(wanted) + [weight] * wanted[0] + [x] * wanted[1]
    ways = [not turned] * wanted[0] + [turned] * wanted[1]
    return _convolved(
        view, x if turned else gradient, weight, ways, reads, [t for t in view.outputs if elements(t)]
    )  # fmt: skip


def _convolved(
    view: View, points: TensorRecord, weight: TensorRecord, ways: Sequence[bool], reads: Iterable[TensorRecord],
    writes: Iterable[TensorRecord],
) -> Work:  # fmt: skip
    """Return the work of one or two products over windows; ``ways`` say of each whether its results are channels in."""
    groups, window = int(view.arg("groups", 1)), weight.shape[2:]
    read, written = tuple(Traffic(t) for t in reads), tuple(Traffic(t) for t in writes)
    each = math.prod((points.shape[0], *points.shape[2:])) * elements(weight)
    channels = weight.shape[0] // groups, weight.shape[1]
    multiplies = each * sum(_effort(*(reversed(channels) if way else channels)) for way in ways)
    # Windows that do not overlap are the rows of a product.
    apart = all(n <= s for n, s in zip(window, view.arg("stride", (1,) * len(window)), strict=False))
    return Work(
        read, written, multiplies=multiplies, dtype=points.dtype,
        share=PRODUCT_SHARE if apart else CONVOLUTION_SHARE,
        parallel_elements=float(each), forks=4 * max(1, len(ways)), hides=False,
        buffers=tuple((t.size_bytes, 3.0) for t in (*read, *written)),
    )  # fmt: skip


def _effort(results: int, sums: int) -> float:
    """Return the multiply-adds that a convolution takes for each that counts, by its channels.

    They are padded to vectors, but for those of an image itself; and what is loaded of the image is used for as many
    vectors of results as there are.

    Examples
    --------
    >>> round(_effort(16, 16), 2), round(_effort(256, 256), 2), round(_effort(20, 20) / _effort(32, 32), 2)
    (1.6, 1.04, 2.56)
    """
    if results == sums == 1:
        return _DEPTHWISE
    padded = _padded(results) / results * (_padded(sums) / sums if sums > _LANES else 1.0)
    return padded * (1.0 + _LOADS / math.ceil(results / _LANES))


def attention(view: View) -> Work:
    """Return the work of attention in blocks: two products for each block of queries, and the exponentials between."""
    query, key, value = (view.need(n, i) for i, n in enumerate(("query", "key", "value")))
    return _attention(view, query, key, value, products=2)


def attention_backward(view: View) -> Work:
    """Return the work of its gradient: the weights again, and the products of four gradients."""
    query, key, value = (view.need(n, i + 1) for i, n in enumerate(("query", "key", "value")))
    return _attention(view, query, key, value, products=5)


def _attention(view: View, query: TensorRecord, key: TensorRecord, value: TensorRecord, *, products: int) -> Work:
    heads, rows, columns, depth = math.prod(query.shape[:-2]), query.shape[-2], key.shape[-2], query.shape[-1]
    block = next(n for least, n in _QUERIES if rows >= least)
    share = _seen(rows, columns, block) if view.arg("is_causal", False) else 1.0
    blocks = math.ceil(rows / block) * heads * share
    reads, writes = (tuple(Traffic(t) for t in ts if elements(t)) for ts in (view.inputs, view.outputs))
    pairs = share * heads * rows * columns
    return Work(
        reads, writes, multiplies=products * pairs * depth, share=PRODUCT_SHARE, dtype=query.dtype,
        # Each block of queries rearranges the keys and values it meets, on the core that has it.
        packed_elements=products * blocks * columns * depth, packers=blocks,
        exponentials=1.2 * pairs, vector_cycles=24 * pairs,
        parallel_elements=products * pairs * depth, hides=False,
    )  # fmt: skip


def _seen(rows: int, columns: int, block: int) -> float:
    """Return the share of pairs that a causal mask leaves: whole blocks of keys, up to the last query of a block.

    Examples
    --------
    >>> _seen(512, 512, 64), _seen(1024, 1024, 256)
    (1.0, 0.75)
    """
    starts = range(0, rows, block)
    seen = sum(min(columns, -(-min(at + block, columns) // _KEYS) * _KEYS) * min(block, rows - at) for at in starts)
    return seen / (rows * columns)


def recurrent(view: View) -> Work:
    """Return the work of one layer of oneDNN's long short-term memory: all inputs at once, then step after step."""
    return _recurrent(view, 1)


def recurrent_backward(view: View) -> Work:
    """Return the work of its gradient: of inputs, states and weights."""
    return _recurrent(view, 2)


def _recurrent(view: View, times: int) -> Work:
    x, weights = view.need("input", 0), [t for t in view.inputs if len(t.shape) == 2]
    hidden = int(view.arg("hidden_size"))
    steps, batch, width = x.shape[0], x.shape[1], x.shape[2]
    gates = _GATES * hidden
    reads = tuple(Traffic(t) for t in dict.fromkeys(view.inputs))
    kept = sum(elements(t) for t in weights[:2])
    points = steps * batch * hidden
    return Work(
        reads, tuple(Traffic(t) for t in view.outputs if elements(t)),
        multiplies=float(times * steps * batch * gates * (width + hidden)), share=PRODUCT_SHARE, dtype=x.dtype,
        packed_elements=float(times * kept), exponentials=times * _GATE_EXPONENTIALS * points,
        parallel_elements=float(steps * batch * gates * width), forks=4 * times * steps, hides=False,
        # Filters of the states are gone through again at every step.
        buffers=((float(gates * hidden * itemsize(x.dtype)), float(times * steps)),),
    )  # fmt: skip
