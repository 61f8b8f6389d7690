"""Work of products, convolutions, attention and LSTM layers as MKL and oneDNN compute them, in packed blocks."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence

from roller.insight.cost.cpu.operator_work import OperatorWork, TensorTraffic
from roller.insight.cost.gpu.operator_view import OperatorView, element_count, itemsize
from roller.insight.trace.trace import TensorRecord

#: Share of the multiply-add rate probed in undisturbed time windows that MKL's products and oneDNN's convolutions reach
#: on all cores. Measured on a Zen 4 under a hypervisor with PyTorch 2.13: products with 192 to 1024 rows reach 0.61 to
#: 0.74 (medians of ten seconds each; 0.80 at best), and 3 x 3 convolutions with many channels reach 0.75 to 0.90.
PRODUCT_SHARE, CONVOLUTION_SHARE = 0.67, 0.83
#: Cost of the image loads that the vectors of results share, in multiply-adds of one vector. Measured: 102, 150 and 170
#: GFLOP/s with 16, 32 and 64 channels.
_LOADS = 0.6
#: Number of rows of the second operand in a block; the result is read and written once per block.
_DEPTH = 384
#: Vector length to which result columns and channels are padded.
_LANES = 16
#: Pairs of a minimum total number of queries and the number of queries in an attention block from there on, and number
#: of keys in a block (``sdp_utils_cpp``, ``FlashAttentionKernel.cpp``).
_QUERIES, _KEYS = ((768, 256), (192, 64), (0, 32)), 512
#: Time of a depthwise convolution's multiply-adds relative to a product's; most of it is loads.
_DEPTHWISE = 4.0
#: Number of gates of an LSTM cell, and time of their three sigmoids and two hyperbolic tangents in exponentials.
_GATES, _GATE_EXPONENTIALS = 4, 8.0


def _channels_padded_to_vectors(n: int) -> int:
    return -(-n // _LANES) * _LANES


def matrix_product_work(
    m: int, n: int, k: int, batch: int = 1, *, dtype: str = "float32",
    reads: Iterable[TensorRecord] = (), writes: Iterable[TensorRecord] = (),
) -> OperatorWork:  # fmt: skip
    """Return the work of ``batch`` products of an ``m`` by ``k`` matrix and a ``k`` by ``n`` matrix."""
    turns = math.ceil(k / _DEPTH)
    # The second operand is packed, except in products with a vector.
    packed = 0.0 if min(m, n) == 1 else float(batch * n * k)
    results = tuple(TensorTraffic(t, turns) for t in writes)
    multiplies = batch * (1 if n == 1 else m) * (m if n == 1 else _channels_padded_to_vectors(n)) * k
    # Packing reads the second operand column by column, in runs of one or two vectors.
    given = tuple(TensorTraffic(t, is_scattered=packed > 0 and at > 0) for at, t in enumerate(dict.fromkeys(reads)))
    return OperatorWork(
        given, results, multiplies=float(multiplies),
        share=PRODUCT_SHARE, packed_elements=packed, packers=float(batch), dtype=dtype,
        parallel_elements=float(multiplies), hides=False,
    )  # fmt: skip


def matrix_product_work_rule(first: str, second: str) -> Callable[[OperatorView], OperatorWork]:
    """Return the mapping for a matrix product of two named operands."""

    def map_operator(view: OperatorView) -> OperatorWork:
        left, right = view.required_tensor(first, 0), view.required_tensor(second, 1)
        return _product_work_of_tensors(left, right, view.out)

    return map_operator


def product_plus_addend_work_rule(first: str, second: str) -> Callable[[OperatorView], OperatorWork]:
    """Return the mapping for ``self + first @ second``, which begins by copying the addend to the result."""

    def map_operator(view: OperatorView) -> OperatorWork:
        addend, left, right = (
            view.required_tensor("self", 0),
            view.required_tensor(first, 1),
            view.required_tensor(second, 2),
        )
        adds = view.argument("beta", 1) != 0
        work = _product_work_of_tensors(left, right, view.out)
        if not adds or view.in_place:
            return work
        copied = TensorTraffic(view.out)
        return OperatorWork(
            **{**vars(work), "reads": (*work.reads, TensorTraffic(addend)), "writes": (copied, *work.writes)}
        )

    return map_operator


def _product_work_of_tensors(left: TensorRecord, right: TensorRecord, out: TensorRecord) -> OperatorWork:
    m, k = left.shape[-2:]
    n = right.shape[-1]
    batch = math.prod(left.shape[:-2])
    return matrix_product_work(m, n, k, batch, dtype=left.dtype, reads=(left, right), writes=(out,))


def matrix_vector_product_work(view: OperatorView) -> OperatorWork:
    """Return the work of a matrix-vector product or of an inner product of two vectors."""
    largest = max(view.inputs, key=element_count)
    reads = tuple(TensorTraffic(t) for t in dict.fromkeys(view.inputs))
    return OperatorWork(
        reads, (TensorTraffic(view.out),), multiplies=float(element_count(largest)), share=PRODUCT_SHARE,
        parallel_elements=float(element_count(largest)), dtype=largest.dtype,
    )  # fmt: skip


def convolution_work(view: OperatorView) -> OperatorWork:
    """Return the work of a convolution, including the conversion of its tensors to blocks of channels and back."""
    x, weight = view.tensor("self") or view.required_tensor("input", 0), view.required_tensor("weight", 1)
    bias = view.tensor("bias")
    turned = bool(view.argument("transposed", False))
    reads = (x, weight) if bias is None else (x, weight, bias)
    return _windowed_product_work(view, x if turned else view.out, weight, (turned,), reads, (view.out,))


def convolution_backward_work(view: OperatorView) -> OperatorWork:
    """Return the work of a convolution's input and weight gradients."""
    gradient, x, weight = (
        view.required_tensor("grad_output", 0),
        view.required_tensor("input", 1),
        view.required_tensor("weight", 2),
    )
    wanted = tuple(view.argument("output_mask", (True, True, False)))
    turned = bool(view.argument("transposed", False))
    reads = [gradient] * sum(wanted) + [weight] * wanted[0] + [x] * wanted[1]
    ways = [not turned] * wanted[0] + [turned] * wanted[1]
    return _windowed_product_work(
        view, x if turned else gradient, weight, ways, reads, [t for t in view.outputs if element_count(t)]
    )  # fmt: skip


def _windowed_product_work(
    view: OperatorView, points: TensorRecord, weight: TensorRecord, ways: Sequence[bool], reads: Iterable[TensorRecord],
    writes: Iterable[TensorRecord],
) -> OperatorWork:  # fmt: skip
    """Return the work of one product over windows per entry of ``ways``; a true entry's results are input channels."""
    groups, window = int(view.argument("groups", 1)), weight.shape[2:]
    read, written = tuple(TensorTraffic(t) for t in reads), tuple(TensorTraffic(t) for t in writes)
    each = math.prod((points.shape[0], *points.shape[2:])) * element_count(weight)
    channels = weight.shape[0] // groups, weight.shape[1]
    multiplies = each * sum(_convolution_cost_factor(*(reversed(channels) if way else channels)) for way in ways)
    # Windows that do not overlap form the rows of a matrix product.
    apart = all(n <= s for n, s in zip(window, view.argument("stride", (1,) * len(window)), strict=False))
    return OperatorWork(
        read, written, multiplies=multiplies, dtype=points.dtype,
        share=PRODUCT_SHARE if apart else CONVOLUTION_SHARE,
        parallel_elements=float(each), forks=4 * max(1, len(ways)), hides=False,
        buffers=tuple((t.size_bytes, 3.0) for t in (*read, *written)),
    )  # fmt: skip


def _convolution_cost_factor(results: int, sums: int) -> float:
    """Return the cost of a convolution with padding and image loads, relative to its useful multiply-adds.

    Examples
    --------
    >>> round(_convolution_cost_factor(16, 16), 2), round(_convolution_cost_factor(256, 256), 2)
    (1.6, 1.04)
    >>> round(_convolution_cost_factor(20, 20) / _convolution_cost_factor(32, 32), 2)
    2.56
    """
    # Channels are padded to whole vectors, except for the few channels of an input image. The vectors of results share
    # the image loads.
    if results == sums == 1:
        return _DEPTHWISE
    padded = (
        _channels_padded_to_vectors(results)
        / results
        * (_channels_padded_to_vectors(sums) / sums if sums > _LANES else 1.0)
    )
    return padded * (1.0 + _LOADS / math.ceil(results / _LANES))


def attention_work(view: OperatorView) -> OperatorWork:
    """Return the work of blocked attention: two products per block of queries, with exponentials between them."""
    query, key, value = (view.required_tensor(n, i) for i, n in enumerate(("query", "key", "value")))
    return _blocked_attention_work(view, query, key, value, products=2)


def attention_backward_work(view: OperatorView) -> OperatorWork:
    """Return the work of attention's gradient: one product recomputes the weights, and four compute gradients."""
    query, key, value = (view.required_tensor(n, i + 1) for i, n in enumerate(("query", "key", "value")))
    return _blocked_attention_work(view, query, key, value, products=5)


def _blocked_attention_work(
    view: OperatorView, query: TensorRecord, key: TensorRecord, value: TensorRecord, *, products: int
) -> OperatorWork:
    heads, rows, columns, depth = math.prod(query.shape[:-2]), query.shape[-2], key.shape[-2], query.shape[-1]
    block = next(n for least, n in _QUERIES if rows >= least)
    share = _causal_mask_computed_share(rows, columns, block) if view.argument("is_causal", False) else 1.0
    blocks = math.ceil(rows / block) * heads * share
    reads, writes = (tuple(TensorTraffic(t) for t in ts if element_count(t)) for ts in (view.inputs, view.outputs))
    pairs = share * heads * rows * columns
    return OperatorWork(
        reads, writes, multiplies=products * pairs * depth, share=PRODUCT_SHARE, dtype=query.dtype,
        # Each block of queries packs the keys and values that it needs, on its own core.
        packed_elements=products * blocks * columns * depth, packers=blocks,
        exponentials=1.2 * pairs, vector_cycles=24 * pairs,
        parallel_elements=products * pairs * depth, hides=False,
    )  # fmt: skip


def _causal_mask_computed_share(rows: int, columns: int, block: int) -> float:
    """Return the share of query-key pairs computed under a causal mask, in whole blocks of keys.

    Examples
    --------
    >>> _causal_mask_computed_share(512, 512, 64), _causal_mask_computed_share(1024, 1024, 256)
    (1.0, 0.75)
    """
    starts = range(0, rows, block)
    seen = sum(min(columns, -(-min(at + block, columns) // _KEYS) * _KEYS) * min(block, rows - at) for at in starts)
    return seen / (rows * columns)


def lstm_work(view: OperatorView) -> OperatorWork:
    """Return the work of one oneDNN LSTM layer: one product for all inputs, then one product per step."""
    return _lstm_layer_work(view, 1)


def lstm_backward_work(view: OperatorView) -> OperatorWork:
    """Return the work of the gradients with respect to an LSTM layer's inputs, states and weights."""
    return _lstm_layer_work(view, 2)


def _lstm_layer_work(view: OperatorView, times: int) -> OperatorWork:
    x, weights = view.required_tensor("input", 0), [t for t in view.inputs if len(t.shape) == 2]
    hidden = int(view.argument("hidden_size"))
    steps, batch, width = x.shape[0], x.shape[1], x.shape[2]
    gates = _GATES * hidden
    reads = tuple(TensorTraffic(t) for t in dict.fromkeys(view.inputs))
    kept = sum(element_count(t) for t in weights[:2])
    points = steps * batch * hidden
    return OperatorWork(
        reads, tuple(TensorTraffic(t) for t in view.outputs if element_count(t)),
        multiplies=float(times * steps * batch * gates * (width + hidden)), share=PRODUCT_SHARE, dtype=x.dtype,
        packed_elements=float(times * kept), exponentials=times * _GATE_EXPONENTIALS * points,
        parallel_elements=float(steps * batch * gates * width), forks=4 * times * steps, hides=False,
        buffers=(
            # The recurrent weights are read again at every step.
            (float(gates * hidden * itemsize(x.dtype)), float(times * steps)),
            # Weights are copied to oneDNN's layout and their gradients from it; each copy is fetched, written and read.
            (float(kept * itemsize(x.dtype)), 3.0 * times),
        ),
    )  # fmt: skip
