"""Lowerings of classification losses."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from roller.expr import REDUCTION, Axis, IndexValue, Load, Scalar, Stage, Tensor, axis_index
from roller.models.onnx.build_elementwise_stages import (
    computation_dtype,
    convert_scalar,
    kernel_tensor_of_value,
    literal,
    require_dtype,
    result_axes,
    scalar_call,
)
from roller.models.onnx.lowering_registry import Compute, Lowered, Site, Unsupported, lowers
from roller.models.onnx.node_rewriter import NodeRewriter
from roller.ops.operator_argument_checks import identity_indices
from roller_runtime.core.dtypes import FLOATS


@lowers("NegativeLogLikelihoodLoss")
def lower_negative_log_likelihood(site: Site) -> Lowered:
    """Lower ``NegativeLogLikelihoodLoss`` by comparing labels with every class, without data-dependent indices."""
    x, target = site.required(0), site.required(1)
    require_dtype(x, FLOATS, "NegativeLogLikelihoodLoss")
    reduction = _checked_reduction(site)
    acc = computation_dtype(x.dtype)
    y = kernel_tensor_of_value(site.output)
    picked = y if reduction == "none" else Tensor(f"{y.name}/each", target.shape, acc)
    stages = [_loss_or_weight_stage(site, picked, acc, value=True)]
    if reduction == "none":
        return Compute(tuple(stages))
    if reduction == "sum":
        return Compute((*stages, _total_sum_stage(picked, y, acc)))
    total = Tensor(f"{y.name}/total", (), acc)
    stages.append(_total_sum_stage(picked, total, acc))
    if site.input(2) is None and site.attribute("ignore_index") is None:
        mean = scalar_call("mul", Load(total.name, ()), literal(1 / target.elements, acc))
        return Compute((*stages, Stage(y, (), (), mean, None, acc)))
    weight = Tensor(f"{y.name}/weight", target.shape, acc)
    weights = Tensor(f"{y.name}/weights", (), acc)
    stages += [_loss_or_weight_stage(site, weight, acc, value=False), _total_sum_stage(weight, weights, acc)]
    mean = scalar_call("div", Load(total.name, ()), Load(weights.name, ()))
    return Compute((*stages, Stage(y, (), (), mean, None, acc)))


def _checked_reduction(site: Site) -> str:
    reduction = site.attribute("reduction", "mean")
    reduction = reduction.decode() if isinstance(reduction, bytes) else str(reduction)
    if reduction not in ("none", "sum", "mean"):
        raise Unsupported(f"{site.node.op} reduction='{reduction}' is none of none, sum, mean")
    return reduction


def _loss_or_weight_stage(site: Site, out: Tensor, acc: str, *, value: bool) -> Stage:
    """Return the stage that computes each element's weighted loss or, if not ``value``, its weight."""
    x, target, w = site.required(0), site.required(1), site.input(2)
    axes = result_axes(target.shape)
    classes = Axis("class", x.shape[1], REDUCTION)
    at = identity_indices(axes)
    wide = target.dtype if target.dtype in ("int32", "int64") else "int32"
    label = convert_scalar(Load(kernel_tensor_of_value(target).name, at), target.dtype, wide)
    here = scalar_call("eq", label, convert_scalar(IndexValue(axis_index("class")), "int32", wide))
    weight: Scalar = literal(1, acc)
    if w is not None:
        weight = convert_scalar(Load(kernel_tensor_of_value(w).name, (axis_index("class"),)), w.dtype, acc)
    if value:
        read = convert_scalar(Load(kernel_tensor_of_value(x).name, (at[0], axis_index("class"), *at[1:])), x.dtype, acc)
        loss = scalar_call("neg", read)
        weight = loss if w is None else scalar_call("mul", loss, weight)
    zero = literal(0, acc)
    body = scalar_call("select", here, weight, zero)
    ignored = site.attribute("ignore_index")
    if ignored is not None and 0 <= int(ignored) < classes.extent:
        body = scalar_call("select", scalar_call("eq", label, literal(int(ignored), wide)), zero, body)
    return Stage(out, (*axes, classes), at, body, "sum", acc)


def _total_sum_stage(read: Tensor, out: Tensor, acc: str) -> Stage:
    """Return the stage that sums a whole tensor."""
    axes: Sequence[Axis] = [Axis(f"all{d}", n, REDUCTION) for d, n in enumerate(read.shape)]
    return Stage(out, tuple(axes), (), Load(read.name, tuple(axis_index(a.name) for a in axes)), "sum", acc)


@lowers("SoftmaxCrossEntropyLoss")
def lower_softmax_cross_entropy(site: Site) -> Lowered:
    """Lower ``SoftmaxCrossEntropyLoss`` to a log-softmax over the classes and the negative log-likelihood."""
    x = site.required(0)
    if len(x.shape) < 2:
        raise Unsupported(f"SoftmaxCrossEntropyLoss of scores of shape {list(x.shape)}")
    steps = NodeRewriter(site)
    given = site.outputs[1] if len(site.outputs) > 1 else None
    logarithm = steps.add("LogSoftmax", (x,), x.shape, out=given, axis=1)
    ignored = site.attribute("ignore_index")
    attributes: dict[str, Any] = {"reduction": _checked_reduction(site)} | (
        {} if ignored is None else {"ignore_index": int(ignored)}
    )
    loss = (logarithm, site.required(1), site.input(2))
    steps.add("NegativeLogLikelihoodLoss", loss if loss[2] else loss[:2], site.output.shape, out=site.output,
              **attributes)  # fmt: skip
    return steps.finish()
