"""Loop nodes for every operator: norms, softmax and biases become reductions and element-wise nodes."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

from roller.insight.cost.compiled.loop_nodes import NodeBuilder, are_innermost_dims, gathered_table_read
from roller.insight.cost.gpu import returns_only_views
from roller.insight.cost.gpu.operator_table import COPYING, FILLING, NOTHING, POINTWISE
from roller.insight.cost.gpu.operator_view import OperatorView, element_count
from roller.insight.trace.trace import Operator, TensorRecord

#: Minimum number of reduced elements for a loop; with fewer, a reduction is unrolled (``unroll_reductions_threshold``).
UNROLLED = 8
#: Function that adds the nodes for the operator at an index.
Rule = Callable[[NodeBuilder, int, OperatorView], None]


class _UnsupportedArguments(Exception):
    """No rule describes an operator with these arguments."""


def add_operator_nodes(builder: NodeBuilder, index: int, operator: Operator) -> None:
    """Add the nodes for an operator: none for a view, a library call if no rule describes the operator."""
    view = OperatorView(operator)
    name = view.packet.removeprefix("aten.")
    if returns_only_views(view) or name in NOTHING or not any(map(element_count, (*view.inputs, *view.outputs))):
        return
    rule = _RULES.get(name, add_library_call)
    if not view.outputs or not all(len(t.stride) == len(t.shape) for t in (*view.inputs, *view.outputs)):
        rule = add_library_call  # tensor lists, or a sparse tensor
    if rule is not add_library_call and _writes_part_of_tensor(view):
        rule = add_library_call  # a part of a tensor, written in place
    before = len(builder.nodes)
    try:
        rule(builder, index, view)
    except (_UnsupportedArguments, KeyError):  # KeyError: a missing tensor
        builder.undo(before)
        add_library_call(builder, index, view)


def _require_first_inputs(view: OperatorView, count: int = 1) -> tuple[TensorRecord, ...]:
    """Return the first ``count`` inputs, or raise an error if there are fewer, as for an operator on host tensors."""
    if len(view.inputs) < count:
        raise _UnsupportedArguments(f"{view.operator.name}: {len(view.inputs)} inputs")
    return view.inputs[:count]


def _writes_part_of_tensor(view: OperatorView) -> bool:
    """Return whether an in-place operator writes only part of its storage's tensor."""
    return view.in_place and bool(view.outputs) and (view.out.offset != 0 or not _is_dense(view.out))


def _is_dense(t: TensorRecord) -> bool:
    span = 1 + sum((n - 1) * s for n, s in zip(t.shape, t.stride, strict=True))
    return span == element_count(t)


def add_library_call(builder: NodeBuilder, index: int, view: OperatorView) -> None:
    """Add a library call, which is never fused."""
    written = view.outputs if not view.in_place else (view.out,)
    builder.add(index, view.operator, "extern", view.inputs, written)


def pointwise_rule(operations: int = 1, windowed: bool = False, read: Sequence[str] = ()) -> Rule:
    """Return the rule for an element-wise operator, which reads all inputs or only the named ones."""

    def rule(builder: NodeBuilder, index: int, view: OperatorView) -> None:
        named = [t for t in (view.tensor(n) for n in read) if t is not None]
        builder.add(
            index, view.operator, "pointwise", named if read else view.inputs, view.outputs or (view.out,),
            rows=element_count(view.out), operations=operations, windowed=windowed,
        )  # fmt: skip

    return rule


def add_fill(builder: NodeBuilder, index: int, view: OperatorView) -> None:
    """Add an element-wise node that reads nothing."""
    builder.add(index, view.operator, "pointwise", (), (view.out,), rows=element_count(view.out))


def add_random_draw(builder: NodeBuilder, index: int, view: OperatorView) -> None:
    """Add a node that draws random numbers; only ``bernoulli`` reads a tensor, its probabilities."""
    own = view.tensor("self") if view.packet == "aten.bernoulli" and view.overload in ("default", "out") else None
    given = [t for t in (view.tensor("p"), own) if t is not None and not (view.in_place and t is own)]
    builder.add(
        index, view.operator, "pointwise", given, (view.out,), rows=element_count(view.out)
    ).is_random = True  # fmt: skip


def add_copy(builder: NodeBuilder, index: int, view: OperatorView) -> None:
    """Add a copy to another layout or dtype; a copy from the host is a library call."""
    name = "src" if view.packet == "aten.copy" else "self"
    source = view.tensor(name, 1 if name == "src" else 0)
    if source is None:
        add_library_call(builder, index, view)
    else:
        builder.add(index, view.operator, "pointwise", (source,), (view.out,), rows=element_count(view.out))


def add_max_pool(builder: NodeBuilder, index: int, view: OperatorView) -> None:
    """Add a maximum over windows; the positions of the maxima are stored as one-byte offsets."""
    out, *places = view.outputs
    short = [replace(t, dtype="int8") for t in places]
    builder.add(
        index, view.operator, "pointwise", view.inputs, (out, *short), rows=element_count(out), operations=4,
        windowed=True,
    )  # fmt: skip


def add_max_pool_backward(builder: NodeBuilder, index: int, view: OperatorView) -> None:
    """Add the gradient of a maximum over windows."""
    places = replace(view.required_tensor("indices", len(view.inputs) - 1), dtype="int8")
    builder.add(
        index, view.operator, "pointwise", (view.required_tensor("grad_output", 0), places), (view.out,),
        rows=element_count(view.out), operations=4, windowed=True,
    )  # fmt: skip


def add_dropout(builder: NodeBuilder, index: int, view: OperatorView) -> None:
    """Add a random mask and its product with the input."""
    if len(view.outputs) < 2:
        raise _UnsupportedArguments(f"{view.operator.name}: no mask")
    out, mask = view.outputs[:2]
    builder.add(index, view.operator, "pointwise", (), (mask,), rows=element_count(mask)).is_random = True
    builder.add(
        index, view.operator, "pointwise", (*_require_first_inputs(view), mask), (out,), rows=element_count(out)
    )


def add_concatenation(builder: NodeBuilder, index: int, view: OperatorView) -> None:
    """Add an element-wise node that concatenates all inputs."""
    builder.add(
        index, view.operator, "pointwise", view.inputs, (view.out,), rows=element_count(view.out),
        joins=len(view.inputs),
    )  # fmt: skip


def add_gather(builder: NodeBuilder, index: int, view: OperatorView) -> None:
    """Add a gather, which reads the indices and as many table elements as it writes."""
    (table,), rest = _require_first_inputs(view), view.inputs[1:]
    taken = replace(gathered_table_read(table, view.out), offset=-1 - index)
    builder.add(
        index, view.operator, "pointwise", (taken, *(t for t in rest if t.dtype in ("int64", "int32", "bool"))),
        (view.out,), rows=element_count(view.out), windowed=True,
    )  # fmt: skip


def add_reduction(builder: NodeBuilder, index: int, view: OperatorView) -> None:
    """Add a reduction over some dimensions or, for two tensors, an element-wise maximum or minimum."""
    (x,) = _require_first_inputs(view)
    if view.overload == "other":
        pointwise_rule()(builder, index, view)
        return
    given = view.argument("dim", ())
    dims = (given,) if isinstance(given, int) else tuple(given) or tuple(range(len(x.shape)))
    length = math.prod(x.shape[d] for d in dims) if x.shape else 1
    _add_reduction_node(builder, index, view, view.inputs, view.outputs, length, are_innermost_dims(x, dims))


def _add_reduction_node(
    builder: NodeBuilder, index: int, view: OperatorView, reads: Sequence[TensorRecord], writes: Sequence[TensorRecord],
    length: int, trailing: bool,
) -> None:  # fmt: skip
    points = max(map(element_count, reads))
    if 1 < length < UNROLLED:
        builder.add(index, view.operator, "pointwise", reads, writes, rows=points // length, operations=length)
        return
    builder.add(
        index, view.operator, "reduction", reads, writes, rows=points // max(1, length), length=max(1, length),
        trailing=trailing,
    )  # fmt: skip


def _add_row_sums_then_elementwise(
    builder: NodeBuilder, index: int, view: OperatorView, large: Sequence[TensorRecord], small: Sequence[TensorRecord],
    out: TensorRecord, statistics: Sequence[TensorRecord], length: int, trailing: bool,
) -> None:  # fmt: skip
    """Add row sums of large tensors, then an element-wise function of these tensors, the sums and small tensors."""
    rows = element_count(large[0]) // max(1, length)
    sums = tuple(statistics) or (builder.temporary((rows,), "float32"),)
    _add_reduction_node(builder, index, view, large, sums, length, trailing)
    builder.add(
        index, view.operator, "pointwise", (*large, *small, *sums), (out,), rows=element_count(out), operations=4
    )


def add_softmax(builder: NodeBuilder, index: int, view: OperatorView) -> None:
    """Add a softmax: maximum and sum per row, then the quotient."""
    (x,), dim = _require_first_inputs(view), int(view.argument("dim", -1))
    length = x.shape[dim] if x.shape else 1
    _add_row_sums_then_elementwise(builder, index, view, (x,), (), view.out, (), length, are_innermost_dims(x, (dim,)))


def add_softmax_backward(builder: NodeBuilder, index: int, view: OperatorView) -> None:
    """Add the gradient of a softmax."""
    gradient, output = view.required_tensor("grad_output", 0), view.required_tensor("output", 1)
    dim = int(view.argument("dim", -1))
    length = gradient.shape[dim] if gradient.shape else 1
    _add_row_sums_then_elementwise(
        builder, index, view, (gradient, output), (), view.out, (), length, are_innermost_dims(output, (dim,))
    )


def add_layer_norm(builder: NodeBuilder, index: int, view: OperatorView) -> None:
    """Add a norm over the last dimensions."""
    (x,) = _require_first_inputs(view)
    shape = view.argument("normalized_shape", x.shape[-1:])
    dims = range(len(x.shape) - len(shape), len(x.shape))
    kept = [t for t in view.outputs[1:] if element_count(t)]
    _add_row_sums_then_elementwise(
        builder, index, view, (x,), view.inputs[1:], view.out, kept, math.prod(shape), are_innermost_dims(x, dims)
    )


def add_layer_norm_backward(builder: NodeBuilder, index: int, view: OperatorView) -> None:
    """Add the gradients of a norm over the last dimensions: row by row for the input, over all rows for parameters."""
    gradient, x = _require_first_inputs(view, 2)
    shape = view.argument("normalized_shape", x.shape[-1:])
    dims, length = range(len(x.shape) - len(shape), len(x.shape)), math.prod(shape)
    wanted: Sequence[bool] = view.argument("output_mask", (True,) * len(view.outputs))
    small = [t for t in view.inputs[2:] if element_count(t)]
    results = list(view.outputs)
    if wanted[0]:
        out = results.pop(0)
        _add_row_sums_then_elementwise(
            builder, index, view, (gradient, x), small, out, (), length, are_innermost_dims(x, dims)
        )
    if any(wanted[1:]) and results:
        rows = element_count(x) // length
        builder.add(
            index, view.operator, "reduction", (gradient, x, *small[:2]), results, rows=length, length=rows,
            trailing=rows == 1,
        )  # fmt: skip


def add_group_norm(builder: NodeBuilder, index: int, view: OperatorView) -> None:
    """Add a norm over groups of channels."""
    (x,) = _require_first_inputs(view)
    length = element_count(x) // (x.shape[0] * int(view.argument("group", 1)))
    kept = [t for t in view.outputs[1:] if element_count(t)]
    trailing = is_channels_first(x)
    _add_row_sums_then_elementwise(builder, index, view, (x,), view.inputs[1:], view.out, kept, length, trailing)


def add_group_norm_backward(builder: NodeBuilder, index: int, view: OperatorView) -> None:
    """Add the gradients of a norm over groups of channels."""
    gradient, x = _require_first_inputs(view, 2)
    length = element_count(x) // (x.shape[0] * int(view.argument("group", 1)))
    _add_row_sums_then_elementwise(
        builder, index, view, (gradient, x), view.inputs[2:], view.outputs[0], view.outputs[1:], length,
        is_channels_first(x),
    )  # fmt: skip


def is_channels_first(x: TensorRecord) -> bool:
    """Return whether all dimensions after the first two are innermost in memory."""
    return are_innermost_dims(x, range(2, len(x.shape)))


def add_batch_norm(builder: NodeBuilder, index: int, view: OperatorView) -> None:
    """Add a norm over each channel; batch statistics are a separate reduction before the element-wise node."""
    x = view.required_tensor("input", 0)
    own = not view.has_tensor("running_mean") or bool(view.argument("training", True))
    if view.packet in ("aten._native_batch_norm_legit_no_training", "aten._batch_norm_no_update"):
        own = False
    small = [t for t in view.inputs if t is not x and element_count(t) <= x.shape[1]]
    if not own:
        builder.add(
            index, view.operator, "pointwise", (x, *small), (view.out,), rows=element_count(view.out), operations=4
        )
        return
    kept = [t for t in view.outputs[1:] if 0 < element_count(t) <= x.shape[1]]
    length = element_count(x) // x.shape[1]
    _add_row_sums_then_elementwise(builder, index, view, (x,), small, view.out, kept, length, x.shape[0] == 1)


def add_batch_norm_backward(builder: NodeBuilder, index: int, view: OperatorView) -> None:
    """Add the gradients of a norm over each channel."""
    x = view.required_tensor("input", 0)
    large = [t for t in view.inputs if t.shape == x.shape]
    small = [t for t in view.inputs if 0 < element_count(t) <= x.shape[1]]
    length = element_count(x) // x.shape[1]
    _add_row_sums_then_elementwise(
        builder, index, view, large, small, view.outputs[0], view.outputs[1:], length, x.shape[0] == 1
    )


def add_convolution(builder: NodeBuilder, index: int, view: OperatorView) -> None:
    """Add a convolution and an element-wise node for its bias."""
    bias = view.tensor("bias")
    if bias is None:
        add_library_call(builder, index, view)
        return
    x, weight = view.tensor("self") or view.required_tensor("input", 0), view.required_tensor("weight", 1)
    raw = replace(view.out, storage=builder.new_storage_number())
    node = builder.add(index, view.operator, "extern", (x, weight), (raw,))
    places = {"bias": None, "weight": {"tensor": 1}, "self" if view.has_tensor("self") else "input": {"tensor": 0}}
    arguments = {**view.operator.arguments, **places}
    node.call = replace(view.operator, inputs=(x, weight), outputs=(raw,), arguments=arguments)
    builder.add(index, view.operator, "pointwise", (raw, bias), (view.out,), rows=element_count(view.out))


def add_convolution_backward(builder: NodeBuilder, index: int, view: OperatorView) -> None:
    """Add a convolution's input and weight gradients as one call and its bias gradient as a reduction."""
    wanted: Sequence[bool] = view.argument("output_mask", (True, True, False))
    outputs = list(view.outputs)
    if wanted[2]:
        gradient, bias = view.required_tensor("grad_output", 0), outputs.pop()
        dims = (0, *range(2, len(gradient.shape)))
        length = element_count(gradient) // max(1, element_count(bias))
        _add_reduction_node(builder, index, view, (gradient,), (bias,), length, are_innermost_dims(gradient, dims))
    if any(wanted[:2]):
        node = builder.add(index, view.operator, "extern", view.inputs, outputs)
        arguments = {**view.operator.arguments, "output_mask": [*wanted[:2], False]}
        node.call = replace(view.operator, outputs=tuple(outputs), arguments=arguments)


def add_elementwise_loss(builder: NodeBuilder, index: int, view: OperatorView) -> None:
    """Add an element-wise loss, with its mean or sum if requested."""
    if view.argument("reduction", 1) == 0:
        pointwise_rule(4)(builder, index, view)
    else:
        _add_reduction_node(
            builder, index, view, view.inputs, view.outputs, element_count(_require_first_inputs(view)[0]), True
        )


def add_nll_loss(builder: NodeBuilder, index: int, view: OperatorView) -> None:
    """Add a negative log-likelihood: a sum over one element of each row."""
    x, target = _require_first_inputs(view, 2)
    taken = replace(gathered_table_read(x, target), offset=-1 - index)
    _add_reduction_node(builder, index, view, (taken, target), view.outputs, max(1, element_count(target)), True)


_WINDOWS = ("avg_pool2d", "avg_pool3d", "_adaptive_avg_pool2d",
            "upsample_nearest1d", "upsample_nearest2d", "upsample_nearest3d", "upsample_bilinear2d",
            "upsample_bicubic2d", "reflection_pad1d", "reflection_pad2d", "replication_pad2d")  # fmt: skip
_WINDOW_GRADIENTS = ("avg_pool2d_backward", "_adaptive_avg_pool2d_backward")
_MOVES = ("constant_pad_nd", "roll", "flip", "repeat", "tril", "triu", "pixel_shuffle", "pixel_unshuffle",
          "channel_shuffle", "slice_backward", "select_backward", "glu", "glu_backward",
          "binary_cross_entropy_backward")  # fmt: skip
_REDUCTIONS = ("sum", "mean", "prod", "amax", "amin", "argmax", "argmin", "max", "min", "all", "any", "norm",
               "linalg_vector_norm", "logsumexp", "var", "var_mean", "std", "count_nonzero")  # fmt: skip
#: Operators that draw random numbers; functorch forbids recomputing them.
_RANDOM = ("rand", "randn", "rand_like", "randn_like", "randint", "randint_like", "randperm", "uniform", "normal",
           "exponential", "bernoulli")  # fmt: skip
_RULES: dict[str, Rule] = {
    **{name: pointwise_rule(len(functions)) for name, functions in POINTWISE.items()},
    **dict.fromkeys(FILLING, add_fill),
    **dict.fromkeys(_RANDOM, add_random_draw),
    **dict.fromkeys(COPYING, add_copy),
    **dict.fromkeys(_MOVES, pointwise_rule()),
    **dict.fromkeys(_WINDOWS, pointwise_rule(4, windowed=True)),
    **dict.fromkeys(_WINDOW_GRADIENTS, pointwise_rule(4, windowed=True, read=("grad_output",))),
    "max_pool2d_with_indices": add_max_pool,
    "max_pool2d_with_indices_backward": add_max_pool_backward,
    **dict.fromkeys(_REDUCTIONS, add_reduction),
    **dict.fromkeys(("native_dropout", "_fused_dropout"), add_dropout),
    **dict.fromkeys(("cat", "stack"), add_concatenation),
    **dict.fromkeys(("embedding", "index", "_unsafe_index", "index_select", "gather"), add_gather),
    **dict.fromkeys(("_softmax", "_log_softmax", "_safe_softmax"), add_softmax),
    **dict.fromkeys(("_softmax_backward_data", "_log_softmax_backward_data"), add_softmax_backward),
    **dict.fromkeys(("native_layer_norm", "_fused_rms_norm"), add_layer_norm),
    **dict.fromkeys(("native_layer_norm_backward", "_fused_rms_norm_backward"), add_layer_norm_backward),
    "native_group_norm": add_group_norm,
    "native_group_norm_backward": add_group_norm_backward,
    **dict.fromkeys(
        ("native_batch_norm", "_native_batch_norm_legit", "_native_batch_norm_legit_no_training", "cudnn_batch_norm",
         "_native_batch_norm_legit_functional", "_batch_norm_with_update", "_batch_norm_no_update"),
        add_batch_norm,
    ),
    **dict.fromkeys(
        ("native_batch_norm_backward", "cudnn_batch_norm_backward", "batch_norm_backward"), add_batch_norm_backward
    ),
    **dict.fromkeys(("convolution", "_convolution", "cudnn_convolution"), add_convolution),
    "convolution_backward": add_convolution_backward,
    **dict.fromkeys(("nll_loss_forward", "nll_loss2d_forward"), add_nll_loss),
    **dict.fromkeys(
        ("nll_loss_backward", "nll_loss2d_backward"), pointwise_rule(2, read=("grad_output", "target", "total_weight"))
    ),
    **dict.fromkeys(
        ("mse_loss", "smooth_l1_loss", "huber_loss", "binary_cross_entropy", "binary_cross_entropy_with_logits"),
        add_elementwise_loss,
    ),
}  # fmt: skip
