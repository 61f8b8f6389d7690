"""CPU work of PyTorch's operators: one row per operator, for all its overloads."""

from __future__ import annotations

from typing import Literal

from roller.insight.cost.cpu import matrix_products
from roller.insight.cost.cpu.normalization import (
    GREATEST,
    MEAN,
    batch_norm,
    cost_per_element,
    embedding_backward,
    gather,
    nll_loss,
    nll_loss_backward,
    pooling,
    pooling_backward,
    random_draws,
    reduction,
    softmax,
)
from roller.insight.cost.cpu.operator_work import Mapping, Traffic, Work, stream_inputs_to_outputs
from roller.insight.cost.gpu import is_view
from roller.insight.cost.gpu.operator_table import COPYING, FILLING, NOTHING, POINTWISE, TABLE
from roller.insight.cost.gpu.operator_view import View, element_count
from roller.insight.trace.trace import Operator, TensorRecord

#: Classes of operators by which reports divide a step's time.
Kind = Literal[
    "products", "convolutions", "attention", "recurrent", "element-wise", "rows", "windows", "reductions", "moving"
]
#: Time of vector functions in probed exponentials; all other functions overlap with memory traffic. Measured on a Zen 4
#: with PyTorch 2.13, whose functions are those of SLEEF: the same polynomials for any vector width.
EXPONENTIALS = {
    "exp": 1.6, "erf": 1.4, "sigmoid": 1.2, "tanh": 6.0, "log": 3.0, "pow": 6.0, "sqrt": 0.8, "rsqrt": 0.6, "div": 0.2,
    "fmod": 4.0,
}  # fmt: skip
#: Cycles per element for mixed dtypes, which are not vectorized, and for a stride other than 1.
_MIXED_CYCLES, _STREWN_CYCLES = 2.5, 3.0

_ROWS: dict[str, Mapping] = {
    "_softmax": softmax(), "_log_softmax": softmax(logarithm=True),
    "_safe_softmax": cost_per_element(cycles=7.0, exponentials=1.2, reads=4.0, writes=3.0),
    "_softmax_backward_data": softmax(gradient=True),
    "_log_softmax_backward_data": softmax(gradient=True, logarithm=True),
    "native_layer_norm": cost_per_element(vector=28.0), "native_layer_norm_backward": cost_per_element(vector=34.0),
    "_fused_rms_norm": cost_per_element(vector=20.0), "_fused_rms_norm_backward": cost_per_element(vector=34.0),
    "native_batch_norm": batch_norm, "_native_batch_norm_legit": batch_norm,
    "_native_batch_norm_legit_functional": batch_norm, "_batch_norm_with_update": batch_norm,
    "_native_batch_norm_legit_no_training": cost_per_element(vector=8.0),
    "_batch_norm_no_update": cost_per_element(vector=8.0),
    "native_batch_norm_backward": cost_per_element(vector=24.0, reads=2.0),
    "batch_norm_backward": cost_per_element(vector=24.0, reads=2.0),
    "native_group_norm": cost_per_element(vector=22.0, reads=2.0),
    "native_group_norm_backward": cost_per_element(vector=26.0, reads=2.0),
}  # fmt: skip
_WINDOWS: dict[str, Mapping] = {
    **dict.fromkeys(("max_pool2d_with_indices", "max_pool3d_with_indices", "adaptive_max_pool2d"), pooling(GREATEST)),
    **dict.fromkeys(("avg_pool2d", "avg_pool3d"), pooling(MEAN)),
    **dict.fromkeys(
        ("max_pool2d_with_indices_backward", "max_pool3d_with_indices_backward", "adaptive_max_pool2d_backward",
         "avg_pool2d_backward", "avg_pool3d_backward", "_adaptive_avg_pool2d_backward",
         "_adaptive_avg_pool3d_backward"),
        pooling_backward(6.0),
    ),
    **dict.fromkeys(("_adaptive_avg_pool2d", "_adaptive_avg_pool3d"), cost_per_element(cycles=1.0)),
    **{f"upsample_{n}": cost_per_element(per="output", cycles=c) for n, c in (
        ("nearest1d", 4.0), ("nearest2d", 4.0), ("nearest3d", 4.0), ("linear1d", 5.0), ("bilinear2d", 8.0),
        ("bicubic2d", 30.0), ("trilinear3d", 15.0))},
    **{f"upsample_{n}_backward": pooling_backward(6.0) for n in (
        "nearest1d", "nearest2d", "nearest3d", "linear1d", "bilinear2d", "bicubic2d", "trilinear3d")},
    **dict.fromkeys(("im2col", "col2im", "constant_pad_nd", "roll", "flip"), cost_per_element(cycles=2.0)),
}  # fmt: skip
_REDUCTIONS: dict[str, Mapping] = {
    **dict.fromkeys(("sum", "mean", "prod", "amax", "amin", "max", "min", "all", "any", "norm", "linalg_vector_norm"),
                    reduction()),
    **dict.fromkeys(("argmax", "argmin", "count_nonzero"), reduction(3.5)),
    **dict.fromkeys(("var", "var_mean", "std"), reduction(6.5)),
    "logsumexp": cost_per_element(exponentials=1.6, reads=3.0),
    **dict.fromkeys(("nll_loss_forward", "nll_loss2d_forward"), nll_loss),
    **dict.fromkeys(("nll_loss_backward", "nll_loss2d_backward"), nll_loss_backward),
    **dict.fromkeys(("mse_loss", "smooth_l1_loss", "huber_loss", "soft_margin_loss"),
                    cost_per_element(vector=8.0, reads=2.0)),
    **dict.fromkeys(("binary_cross_entropy", "binary_cross_entropy_with_logits"),
                    cost_per_element(exponentials=6.0, reads=3.0)),
}  # fmt: skip
_MOVING: dict[str, Mapping] = {
    **dict.fromkeys(("cat", "stack"), cost_per_element(per="output", serial=True)),
    **dict.fromkeys(("embedding", "index_select"), gather()),
    **dict.fromkeys(("index", "_unsafe_index", "gather", "take"), gather(3.0)),
    **dict.fromkeys(("index_put", "_index_put_impl", "index_add", "index_copy", "index_fill", "scatter",
                     "scatter_add", "scatter_reduce", "masked_scatter"), cost_per_element(cycles=3.0, serial=True)),
    **dict.fromkeys(("embedding_dense_backward", "_embedding_bag_dense_backward"), embedding_backward),
    **dict.fromkeys(("cumsum", "cumprod"), cost_per_element(cycles=3.0)),
    "sort": cost_per_element(cycles=140.0), "topk": cost_per_element(cycles=35.0),
    **dict.fromkeys(("tril", "triu"), cost_per_element(cycles=2.5)),
}  # fmt: skip
_PRODUCTS: dict[str, Mapping] = {
    "mm": matrix_products.matrix_product("self", "mat2"), "bmm": matrix_products.matrix_product("self", "mat2"),
    "addmm": matrix_products.matrix_product_with_addend("mat1", "mat2"),
    "baddbmm": matrix_products.matrix_product_with_addend("batch1", "batch2"),
    **dict.fromkeys(("mv", "addmv", "dot", "vdot"), matrix_products.matrix_vector_product),
}  # fmt: skip
_CONVOLUTIONS: dict[str, Mapping] = {
    **dict.fromkeys(("convolution", "_convolution", "mkldnn_convolution"), matrix_products.convolution),
    "convolution_backward": matrix_products.convolution_backward,
}
_ATTENTION: dict[str, Mapping] = {
    "_scaled_dot_product_flash_attention_for_cpu": matrix_products.attention,
    "_scaled_dot_product_flash_attention_for_cpu_backward": matrix_products.attention_backward,
}
_RECURRENT: dict[str, Mapping] = {
    "mkldnn_rnn_layer": matrix_products.lstm,
    "mkldnn_rnn_layer_backward": matrix_products.lstm_backward,
}
_DRAWS: dict[str, Mapping] = {
    "bernoulli": random_draws(21.0), "normal": random_draws(12.0), "uniform": random_draws(10.0),
    "rand": random_draws(10.0), "randn": random_draws(12.0), "exponential": random_draws(20.0),
    "randint": random_draws(10.0), "randperm": random_draws(20.0),
    "native_dropout": cost_per_element(cycles=30.0, serial=True),
}  # fmt: skip


def _pointwise(view: View) -> Work:
    """Return the work of an element-wise operator, vectorized if all tensors are contiguous and of one dtype."""
    functions = POINTWISE[view.packet.removeprefix("aten.")]
    if functions == ("pow",) and view.argument("exponent") in (2, 3, 0.5, 1, -1, -2, 2.0, 3.0):
        functions = ("mul",)
    return _pointwise_work(view, sum(EXPONENTIALS.get(f, 0.0) for f in functions))


def _pointwise_work(view: View, exponentials: float) -> Work:
    count = float(element_count(view.out))
    given = [t for t in view.inputs if element_count(t) > 1]
    mixed = any(t.dtype != view.out.dtype for t in given)
    whole = _strides_of_long_axes(view.out)
    apart = (_strides_of_long_axes(t) for t in given if t.shape == view.out.shape)
    strewn = any(step and step[-1] != whole[-1] and 0 not in step for step in apart)
    cycles = _MIXED_CYCLES * mixed + _STREWN_CYCLES * strewn
    writes = tuple(Traffic(t) for t in view.outputs if element_count(t))
    reads = tuple(Traffic(t) for t in dict.fromkeys(view.inputs) if element_count(t))
    serial = strewn and len(given) == 1 and len(view.out.shape) == 2  # a transposed copy runs in a serial loop
    return Work(
        reads, writes, exponentials=exponentials * count, vector_cycles=3 * count, cycles=cycles * count,
        parallel_elements=0.0 if serial else count,
    )  # fmt: skip


def _strides_of_long_axes(tensor: TensorRecord) -> tuple[int, ...]:
    return tuple(s for n, s in zip(tensor.shape, tensor.stride, strict=True) if n > 1)


def _copy(view: View) -> Work:
    """Return the work of a copy to another layout or dtype."""
    return _pointwise_work(view, 0.0)


def _fill(view: View) -> Work:
    return Work((), (Traffic(view.out),), parallel_elements=float(element_count(view.out)))


def _foreach(view: View) -> Work:
    """Return the work of an operator over tensor lists, which writes to its inputs if it returns nothing."""
    work = stream_inputs_to_outputs(view)
    return work if work.writes else Work(**{**vars(work), "writes": work.reads})


#: Classes of operators, and the rows of each.
_CLASSES: dict[Kind, dict[str, Mapping]] = {
    "element-wise": {**dict.fromkeys(POINTWISE, _pointwise), **_DRAWS},
    "moving": {**dict.fromkeys(FILLING, _fill), **dict.fromkeys(COPYING, _copy), **_MOVING},
    "windows": _WINDOWS, "reductions": _REDUCTIONS, "rows": _ROWS, "products": _PRODUCTS,
    "convolutions": _CONVOLUTIONS, "attention": _ATTENTION, "recurrent": _RECURRENT,
}  # fmt: skip
ROWS = {f"aten.{name}": row for rows in _CLASSES.values() for name, row in rows.items()}
_KINDS = {f"aten.{name}": kind for kind, rows in _CLASSES.items() for name in rows}
_IDLE = frozenset(f"aten.{name}" for name in NOTHING)


def operator_work(operator: Operator) -> tuple[Work | None, bool]:
    """Return an operator's work, and whether the table has a row for it; ``None`` for views and empty tensors.

    Examples
    --------
    >>> x = TensorRecord((8, 16), (16, 1), "float32", 0)
    >>> w, y = TensorRecord((16, 4), (4, 1), "float32", 1), TensorRecord((8, 4), (4, 1), "float32", 2)
    >>> found, mapped = operator_work(Operator(0, "aten.mm.default", "forward", (x, w), (y,)))
    >>> found.multiplies >= 8 * 4 * 16, mapped
    (True, True)
    """
    view = View(operator)
    if view.packet in _IDLE or is_view(view) or not any(map(element_count, (*view.inputs, *view.outputs))):
        return None, True
    mapping = ROWS.get(view.packet)
    if mapping is not None:
        try:
            return mapping(view), True
        except (KeyError, IndexError, ValueError, TypeError):
            return _foreach(view), False  # arguments that the row does not handle
    return _foreach(view), view.packet in TABLE


def operator_class(packet: str) -> Kind:
    """Return the class of an operator, named as in traces and profiles: ``"aten.mm"``."""
    name = packet if packet in _KINDS else packet.rstrip("_")
    return _KINDS.get(name, "element-wise")


def has_row(packet: str) -> bool:
    """Return whether the table has a row for an operator of this name, in place or not."""
    return packet in _KINDS or packet.rstrip("_") in _KINDS
