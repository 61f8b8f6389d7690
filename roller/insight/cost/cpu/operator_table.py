"""CPU work of PyTorch's operators: one row per operator, for all its overloads."""

from __future__ import annotations

from typing import Literal

from roller.insight.cost.cpu import compute_bound_operators
from roller.insight.cost.cpu.memory_bound_operators import (
    GREATEST,
    MEAN,
    batch_norm_work,
    embedding_backward_work,
    gather_work_rule,
    nll_loss_backward_work,
    nll_loss_work,
    per_element_work_rule,
    pooling_backward_work_rule,
    pooling_work_rule,
    random_draw_work_rule,
    reduction_work_rule,
    softmax_work_rule,
)
from roller.insight.cost.cpu.operator_work import Mapping, OperatorWork, TensorTraffic, streaming_work
from roller.insight.cost.gpu import returns_only_views
from roller.insight.cost.gpu.operator_table import COPYING, FILLING, NOTHING, POINTWISE, TABLE
from roller.insight.cost.gpu.operator_view import OperatorView, element_count
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
_MIXED_CYCLES, _SCATTERED_CYCLES = 2.5, 3.0

_ROWS: dict[str, Mapping] = {
    "_softmax": softmax_work_rule(), "_log_softmax": softmax_work_rule(logarithm=True),
    "_safe_softmax": per_element_work_rule(cycles=7.0, exponentials=1.2, reads=4.0, writes=3.0),
    "_softmax_backward_data": softmax_work_rule(gradient=True),
    "_log_softmax_backward_data": softmax_work_rule(gradient=True, logarithm=True),
    "native_layer_norm": per_element_work_rule(vector=28.0),
    "native_layer_norm_backward": per_element_work_rule(vector=34.0),
    "_fused_rms_norm": per_element_work_rule(vector=20.0),
    "_fused_rms_norm_backward": per_element_work_rule(vector=34.0),
    "native_batch_norm": batch_norm_work, "_native_batch_norm_legit": batch_norm_work,
    "_native_batch_norm_legit_functional": batch_norm_work, "_batch_norm_with_update": batch_norm_work,
    "_native_batch_norm_legit_no_training": per_element_work_rule(vector=8.0),
    "_batch_norm_no_update": per_element_work_rule(vector=8.0),
    "native_batch_norm_backward": per_element_work_rule(vector=24.0, reads=2.0),
    "batch_norm_backward": per_element_work_rule(vector=24.0, reads=2.0),
    "native_group_norm": per_element_work_rule(vector=22.0, reads=2.0),
    "native_group_norm_backward": per_element_work_rule(vector=26.0, reads=2.0),
}  # fmt: skip
_WINDOWS: dict[str, Mapping] = {
    **dict.fromkeys(("max_pool2d_with_indices", "max_pool3d_with_indices", "adaptive_max_pool2d"),
                    pooling_work_rule(GREATEST)),
    **dict.fromkeys(("avg_pool2d", "avg_pool3d"), pooling_work_rule(MEAN)),
    **dict.fromkeys(
        ("max_pool2d_with_indices_backward", "max_pool3d_with_indices_backward", "adaptive_max_pool2d_backward",
         "avg_pool2d_backward", "avg_pool3d_backward", "_adaptive_avg_pool2d_backward",
         "_adaptive_avg_pool3d_backward"),
        pooling_backward_work_rule(6.0),
    ),
    **dict.fromkeys(("_adaptive_avg_pool2d", "_adaptive_avg_pool3d"), per_element_work_rule(cycles=1.0)),
    **{f"upsample_{n}": per_element_work_rule(per="output", cycles=c) for n, c in (
        ("nearest1d", 4.0), ("nearest2d", 4.0), ("nearest3d", 4.0), ("linear1d", 5.0), ("bilinear2d", 8.0),
        ("bicubic2d", 30.0), ("trilinear3d", 15.0))},
    **{f"upsample_{n}_backward": pooling_backward_work_rule(6.0) for n in (
        "nearest1d", "nearest2d", "nearest3d", "linear1d", "bilinear2d", "bicubic2d", "trilinear3d")},
    **dict.fromkeys(("im2col", "col2im", "constant_pad_nd", "roll", "flip"), per_element_work_rule(cycles=2.0)),
}  # fmt: skip
_REDUCTIONS: dict[str, Mapping] = {
    **dict.fromkeys(("sum", "mean", "prod", "amax", "amin", "max", "min", "all", "any", "norm", "linalg_vector_norm"),
                    reduction_work_rule()),
    **dict.fromkeys(("argmax", "argmin", "count_nonzero"), reduction_work_rule(3.5)),
    **dict.fromkeys(("var", "var_mean", "std"), reduction_work_rule(6.5)),
    "logsumexp": per_element_work_rule(exponentials=1.6, reads=3.0),
    **dict.fromkeys(("nll_loss_forward", "nll_loss2d_forward"), nll_loss_work),
    **dict.fromkeys(("nll_loss_backward", "nll_loss2d_backward"), nll_loss_backward_work),
    **dict.fromkeys(("mse_loss", "smooth_l1_loss", "huber_loss", "soft_margin_loss"),
                    per_element_work_rule(vector=8.0, reads=2.0)),
    **dict.fromkeys(("binary_cross_entropy", "binary_cross_entropy_with_logits"),
                    per_element_work_rule(exponentials=6.0, reads=3.0)),
}  # fmt: skip
_MOVING: dict[str, Mapping] = {
    **dict.fromkeys(("cat", "stack"), per_element_work_rule(per="output", serial=True)),
    **dict.fromkeys(("embedding", "index_select"), gather_work_rule()),
    **dict.fromkeys(("index", "_unsafe_index", "gather", "take"), gather_work_rule(3.0)),
    **dict.fromkeys(("index_put", "_index_put_impl", "index_add", "index_copy", "index_fill", "scatter",
                     "scatter_add", "scatter_reduce", "masked_scatter"), per_element_work_rule(cycles=3.0,
                                                                                               serial=True)),
    **dict.fromkeys(("embedding_dense_backward", "_embedding_bag_dense_backward"), embedding_backward_work),
    **dict.fromkeys(("cumsum", "cumprod"), per_element_work_rule(cycles=3.0)),
    "sort": per_element_work_rule(cycles=140.0), "topk": per_element_work_rule(cycles=35.0),
    **dict.fromkeys(("tril", "triu"), per_element_work_rule(cycles=2.5)),
}  # fmt: skip
_PRODUCTS: dict[str, Mapping] = {
    "mm": compute_bound_operators.matrix_product_work_rule("self", "mat2"),
    "bmm": compute_bound_operators.matrix_product_work_rule("self", "mat2"),
    "addmm": compute_bound_operators.product_plus_addend_work_rule("mat1", "mat2"),
    "baddbmm": compute_bound_operators.product_plus_addend_work_rule("batch1", "batch2"),
    **dict.fromkeys(("mv", "addmv", "dot", "vdot"), compute_bound_operators.matrix_vector_product_work),
}  # fmt: skip
_CONVOLUTIONS: dict[str, Mapping] = {
    **dict.fromkeys(("convolution", "_convolution", "mkldnn_convolution"), compute_bound_operators.convolution_work),
    "convolution_backward": compute_bound_operators.convolution_backward_work,
}
_ATTENTION: dict[str, Mapping] = {
    "_scaled_dot_product_flash_attention_for_cpu": compute_bound_operators.attention_work,
    "_scaled_dot_product_flash_attention_for_cpu_backward": compute_bound_operators.attention_backward_work,
}
_RECURRENT: dict[str, Mapping] = {
    "mkldnn_rnn_layer": compute_bound_operators.lstm_work,
    "mkldnn_rnn_layer_backward": compute_bound_operators.lstm_backward_work,
}
_DRAWS: dict[str, Mapping] = {
    "bernoulli": random_draw_work_rule(21.0), "normal": random_draw_work_rule(12.0),
    "uniform": random_draw_work_rule(10.0),
    "rand": random_draw_work_rule(10.0), "randn": random_draw_work_rule(12.0),
    "exponential": random_draw_work_rule(20.0),
    "randint": random_draw_work_rule(10.0), "randperm": random_draw_work_rule(20.0),
    "native_dropout": per_element_work_rule(cycles=30.0, serial=True),
}  # fmt: skip


def _elementwise_operator_work(view: OperatorView) -> OperatorWork:
    """Return the work of an element-wise operator, vectorized if all tensors are contiguous and have one dtype."""
    functions = POINTWISE[view.packet.removeprefix("aten.")]
    if functions == ("pow",) and view.argument("exponent") in (2, 3, 0.5, 1, -1, -2, 2.0, 3.0):
        functions = ("mul",)
    return _pointwise_work(view, sum(EXPONENTIALS.get(f, 0.0) for f in functions))


def _pointwise_work(view: OperatorView, exponentials: float) -> OperatorWork:
    count = float(element_count(view.out))
    given = [t for t in view.inputs if element_count(t) > 1]
    mixed = any(t.dtype != view.out.dtype for t in given)
    whole = _strides_of_long_axes(view.out)
    apart = (_strides_of_long_axes(t) for t in given if t.shape == view.out.shape)
    scattered = any(step and step[-1] != whole[-1] and 0 not in step for step in apart)
    cycles = _MIXED_CYCLES * mixed + _SCATTERED_CYCLES * scattered
    writes = tuple(TensorTraffic(t) for t in view.outputs if element_count(t))
    reads = tuple(TensorTraffic(t) for t in dict.fromkeys(view.inputs) if element_count(t))
    serial = scattered and len(given) == 1 and len(view.out.shape) == 2  # a transposed copy runs in a serial loop
    return OperatorWork(
        reads, writes, exponentials=exponentials * count, vector_cycles=3 * count, cycles=cycles * count,
        parallel_elements=0.0 if serial else count,
    )  # fmt: skip


def _strides_of_long_axes(tensor: TensorRecord) -> tuple[int, ...]:
    return tuple(s for n, s in zip(tensor.shape, tensor.stride, strict=True) if n > 1)


def _copy_work(view: OperatorView) -> OperatorWork:
    """Return the work of a copy to another layout or dtype."""
    return _pointwise_work(view, 0.0)


def _fill_work(view: OperatorView) -> OperatorWork:
    return OperatorWork((), (TensorTraffic(view.out),), parallel_elements=float(element_count(view.out)))


def _foreach_work(view: OperatorView) -> OperatorWork:
    """Return the work of an operator over tensor lists, which writes to its inputs if it returns nothing."""
    work = streaming_work(view)
    return work if work.writes else OperatorWork(**{**vars(work), "writes": work.reads})


#: Classes of operators, and the rows of each.
_CLASSES: dict[Kind, dict[str, Mapping]] = {
    "element-wise": {**dict.fromkeys(POINTWISE, _elementwise_operator_work), **_DRAWS},
    "moving": {**dict.fromkeys(FILLING, _fill_work), **dict.fromkeys(COPYING, _copy_work), **_MOVING},
    "windows": _WINDOWS, "reductions": _REDUCTIONS, "rows": _ROWS, "products": _PRODUCTS,
    "convolutions": _CONVOLUTIONS, "attention": _ATTENTION, "recurrent": _RECURRENT,
}  # fmt: skip
ROWS = {f"aten.{name}": row for rows in _CLASSES.values() for name, row in rows.items()}
_KINDS = {f"aten.{name}": kind for kind, rows in _CLASSES.items() for name in rows}
_IDLE = frozenset(f"aten.{name}" for name in NOTHING)


def operator_work(operator: Operator) -> tuple[OperatorWork | None, bool]:
    """Return an operator's work (``None`` for views and empty tensors) and whether the table has a row for it.

    Examples
    --------
    >>> x = TensorRecord((8, 16), (16, 1), "float32", 0)
    >>> w, y = TensorRecord((16, 4), (4, 1), "float32", 1), TensorRecord((8, 4), (4, 1), "float32", 2)
    >>> found, mapped = operator_work(Operator(0, "aten.mm.default", "forward", (x, w), (y,)))
    >>> found.multiplies >= 8 * 4 * 16, mapped
    (True, True)
    """
    view = OperatorView(operator)
    if view.packet in _IDLE or returns_only_views(view) or not any(map(element_count, (*view.inputs, *view.outputs))):
        return None, True
    mapping = ROWS.get(view.packet)
    if mapping is not None:
        try:
            return mapping(view), True
        except (KeyError, IndexError, ValueError, TypeError):
            return _foreach_work(view), False  # arguments that the row does not handle
    return _foreach_work(view), view.packet in TABLE


def operator_kind(packet: str) -> Kind:
    """Return the class of an operator by its name in traces and profiles, such as ``"aten.mm"``."""
    name = packet if packet in _KINDS else packet.rstrip("_")
    return _KINDS.get(name, "element-wise")


def has_table_row(packet: str) -> bool:
    """Return whether the table has a row for an operator of this name, in place or not."""
    return packet in _KINDS or packet.rstrip("_") in _KINDS
