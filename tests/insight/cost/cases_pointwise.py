"""Calls of operators of every element, of fills and copies, of losses and of lists of tensors."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from tests.insight.cost.calls import Case, Draw, aten, each_once, leaves

F32, F16, I64, BOOL = torch.float32, torch.float16, torch.int64, torch.bool

UNARY = [
    "neg", "abs", "exp", "log", "sqrt", "rsqrt", "tanh", "erf", "sigmoid", "floor", "ceil", "trunc", "round",
    "isnan", "relu", "gelu", "silu", "hardswish", "hardsigmoid", "softplus", "mish", "log1p", "log2", "exp2",
    "expm1", "sin", "cos", "reciprocal", "sign", "sgn", "nan_to_num", "logical_not", "elu", "leaky_relu",
    "hardtanh", "erfinv", "tril", "triu", "isinf",
]  # fmt: skip
BINARY = [
    "add", "sub", "mul", "div", "eq", "lt", "le", "gt", "ge", "ne", "maximum", "minimum", "remainder", "fmod",
    "floor_divide", "logical_and", "logical_or", "atan2", "sigmoid_backward", "tanh_backward",
    "silu_backward", "gelu_backward", "hardsigmoid_backward", "hardswish_backward",
]  # fmt: skip
INTEGER = ["bitwise_and", "bitwise_or", "bitwise_xor", "__lshift__", "__rshift__"]


def unary(draw: Draw) -> Iterator[Case]:
    for name in UNARY:
        packet = getattr(aten, name)
        overload = packet.default if "default" in packet.overloads() else getattr(packet, packet.overloads()[0])
        x = draw.tensor(draw.shape(draw.random.choice((2, 3, 4))), draw.dtype())
        yield Case(name, overload, [x])
    x = draw.tensor(draw.shape(3))
    yield Case("clamp", aten.clamp.default, [x, -1.0, 1.0])
    yield Case("clamp_min", aten.clamp_min.default, [x, -1.0])
    yield Case("clamp_max", aten.clamp_max.default, [x, -1.0])
    yield Case("threshold", aten.threshold.default, [x, 0.0, 0.0])
    yield Case("pow", aten.pow.Tensor_Scalar, [x, 3.0])
    yield Case("rsub", aten.rsub.Scalar, [x, 3.0])
    yield Case("bitwise_not", aten.bitwise_not.default, [draw.tensor(draw.shape(2), BOOL)])
    yield Case("log_sigmoid_forward", aten.log_sigmoid_forward.default, [x], writes=lambda r: r[:1])


def binary(draw: Draw) -> Iterator[Case]:
    for name in BINARY:
        packet = getattr(aten, name)
        overload = getattr(packet, "Tensor" if "Tensor" in packet.overloads() else "default")
        shape, dtype = draw.shape(3), draw.dtype()
        small = shape if "backward" in name else tuple(1 if draw.random.random() < 0.4 else n for n in shape)
        yield Case(name, overload, [draw.tensor(shape, dtype), draw.tensor(small, dtype)])
    x = draw.tensor(draw.shape(3))
    yield Case("mul", aten.mul.Tensor, [x, x])  # the same memory twice is read once
    half = draw.dense(6, 16)
    yield Case("mul", aten.mul.Tensor, [half[:, :8], half[:, 8:]])  # two halves of one are not
    target = draw.dense(5, 7, 9)
    yield Case("add", aten.add_.Tensor, [target, draw.dense(7, 1)])
    for name in INTEGER:
        packet = getattr(aten, name)
        yield Case(name, packet.Tensor, [draw.tensor((5, 6), I64), draw.tensor((5, 6), I64)])
    for name in ("add", "sub", "mul", "div"):
        yield Case(name, getattr(aten, name).Tensor, [draw.tensor((4, 5), F16), draw.tensor((4, 5), F32)])


def several(draw: Draw) -> Iterator[Case]:
    shape = draw.shape(3)
    a, b, c = (draw.tensor(shape) for _ in range(3))
    yield Case("addcmul", aten.addcmul.default, [a, b, c])
    yield Case("addcmul", aten.addcmul_.default, [draw.dense(*shape), b, b])
    yield Case("addcdiv", aten.addcdiv.default, [a, b, c])
    yield Case("lerp", aten.lerp.Tensor, [a, b, c])
    yield Case("lerp", aten.lerp.Scalar, [a, b, 0.5])
    yield Case("where", aten.where.self, [draw.tensor(shape, BOOL), a, b])
    yield Case("masked_fill", aten.masked_fill.Scalar, [a, draw.tensor((1, *shape[1:]), BOOL), 0.0])
    yield Case("threshold_backward", aten.threshold_backward.default, [a, b, 0.0])
    slope = draw.dense(1, shape[1], 1)
    yield Case("_prelu_kernel", aten._prelu_kernel.default, [a, slope])
    yield Case("_prelu_kernel_backward", aten._prelu_kernel_backward.default, [a, b, slope])
    yield Case("hardtanh_backward", aten.hardtanh_backward.default, [a, b, -1.0, 1.0])
    yield Case("xlogy", aten.xlogy.Tensor, [a, b])
    rows = draw.dense(shape[0], 9)
    yield Case("_weight_norm_interface", aten._weight_norm_interface.default, [rows, draw.dense(shape[0], 1)])
    yield Case("elu_backward", aten.elu_backward.default, [a, 1.0, 1.0, 1.0, False, b])
    yield Case("leaky_relu_backward", aten.leaky_relu_backward.default, [a, b, 0.1, False])
    yield Case("softplus_backward", aten.softplus_backward.default, [a, b, 1.0, 20.0])
    yield Case("log_sigmoid_backward", aten.log_sigmoid_backward.default, [a, b, draw.dense(0)])
    mask = draw.dense(*shape, dtype=BOOL)
    yield Case("native_dropout_backward", aten.native_dropout_backward.default, [a, mask, 2.0])
    yield Case("native_dropout", aten.native_dropout.default, [a, 0.1, True])
    yield Case("_fused_dropout", aten._fused_dropout.default, [draw.dense(*shape), 0.9])
    yield Case("_masked_scale", aten._masked_scale.default, [a, draw.dense(*shape, dtype=torch.uint8), 2.0])
    yield Case("complex", aten.complex.default, [draw.dense(*shape), draw.dense(*shape)])
    yield Case("polar", aten.polar.default, [draw.dense(*shape), draw.dense(*shape)])
    pair = draw.dense(4, 2 * draw.size(), 6)
    yield Case("mish_backward", aten.mish_backward.default, [a, b], results=[draw.dense(*shape)])
    yield Case("glu", aten.glu.default, [pair, 1])
    yield Case("glu_backward", aten.glu_backward.default, [draw.dense(4, pair.shape[1] // 2, 6), pair, 1])


def filled(draw: Draw) -> Iterator[Case]:
    x, meta = draw.dense(*draw.shape(2)), {"device": "meta"}
    for name in ("zeros_like", "ones_like", "rand_like", "randn_like"):
        yield Case(name, getattr(aten, name).default, [x], reads=[])
    yield Case("full_like", aten.full_like.default, [x, 1.0], reads=[])
    yield Case("fill", aten.fill_.Scalar, [x, 1.0], reads=[])
    yield Case("zero", aten.zero_.default, [x], reads=[])
    yield Case("uniform", aten.uniform_.default, [x], reads=[])
    yield Case("normal", aten.normal_.default, [x], reads=[])
    yield Case("exponential", aten.exponential_.default, [x], reads=[])
    yield Case("bernoulli", aten.bernoulli_.float, [x], reads=[])
    yield Case("bernoulli", aten.bernoulli.default, [x])  # the chances are read
    for name in ("zeros", "ones", "rand", "randn"):
        yield Case(name, getattr(aten, name).default, [[5, 7]], meta)
    yield Case("full", aten.full.default, [[5, 7], 2.0], meta)
    yield Case("new_full", aten.new_full.default, [x, [5, 7], 2.0], reads=[])
    yield Case("new_zeros", aten.new_zeros.default, [x, [5, 7]], reads=[])
    yield Case("new_ones", aten.new_ones.default, [x, [5, 7]], reads=[])
    yield Case("arange", aten.arange.start_step, [0, 99, 2], meta)
    yield Case("linspace", aten.linspace.default, [0, 1, 99], meta)
    yield Case("eye", aten.eye.default, [9], meta)
    yield Case("scalar_tensor", aten.scalar_tensor.default, [1.0], meta)
    yield Case("randint", aten.randint.default, [9, [5, 7]], meta)
    yield Case("randperm", aten.randperm.default, [99], meta)
    yield Case("tril_indices", aten.tril_indices.default, [5, 7], meta)


def copied(draw: Draw) -> Iterator[Case]:
    shape = draw.shape(4)
    x = draw.tensor(shape, draw.dtype())
    yield Case("clone", aten.clone.default, [x], {"memory_format": torch.contiguous_format})
    yield Case("clone", aten.clone.default, [draw.dense(*shape)], {"memory_format": torch.channels_last})
    target = draw.dense(*shape)
    yield Case("copy", aten.copy_.default, [target, x], reads=[x], writes=[target])
    yield Case("copy", aten.copy_.default, [target, torch.empty(shape)], reads=[], writes=[target])  # from the host
    yield Case("_to_copy", aten._to_copy.default, [x], {"dtype": torch.float64})
    yield Case("_to_copy", aten._to_copy.default, [torch.empty(shape)], {"device": "meta"}, reads=[])
    yield Case("lift_fresh_copy", aten.lift_fresh_copy.default, [draw.dense(*shape)])
    yield Case("_reshape_copy", aten._reshape_copy.default, [draw.dense(4, 6), [24]])


def idle(draw: Draw) -> Iterator[Case]:
    """Storage that is handed out, and what the host asks: no kernel."""
    x, meta, none = draw.dense(5, 7), {"device": "meta"}, {"reads": [], "writes": [], "launches": 0}
    yield Case("empty", aten.empty.memory_format, [[5, 7]], meta, **none)
    yield Case("empty_permuted", aten.empty_permuted.default, [[5, 7], [1, 0]], meta, **none)
    yield Case("empty_strided", aten.empty_strided.default, [[5, 7], [7, 1]], meta, **none)
    yield Case("empty_like", aten.empty_like.default, [x], **none)
    yield Case("new_empty", aten.new_empty.default, [x, [5, 7]], **none)
    yield Case("new_empty_strided", aten.new_empty_strided.default, [x, [5, 7], [7, 1]], **none)
    yield Case("resize", aten.resize_.default, [x, [3, 7]], **none)
    yield Case("_assert_async", aten._assert_async.default, [draw.dense(1)], results=[], **none)
    yield Case("record_stream", aten.record_stream.default, [x, "a stream"], results=[], **none)
    yield Case("is_same_size", aten.is_same_size.default, [x, x], results=[], **none)


def losses(draw: Draw) -> Iterator[Case]:
    x, y, g = (draw.dense(7, 9) for _ in range(3))
    for name in ("mse_loss", "smooth_l1_loss", "huber_loss", "binary_cross_entropy"):
        op = getattr(aten, name).default
        extra = [None] if name == "binary_cross_entropy" else []
        # The element-wise loss is written whole, then read again by the kernel that takes its mean.
        yield Case(name, op, [x, y, *extra, 1], reads=[x, y, x], writes=lambda r, x=x: [x, *r], launches=2)
        yield Case(name, op, [x, y, *extra, 0], launches=1)
    for name in ("mse_loss_backward", "smooth_l1_loss_backward", "huber_loss_backward"):
        extra = [] if name.startswith("mse") else [1.0]
        yield Case(name, getattr(aten, name).default, [g, x, y, 0, *extra], launches=1)
    yield Case("binary_cross_entropy_backward", aten.binary_cross_entropy_backward.default, [g, x, y, None, 0])
    logits = aten.binary_cross_entropy_with_logits.default
    # log sigmoid; 1 - target; times input; minus; mean
    yield Case(
        "binary_cross_entropy_with_logits", logits, [x, y, None, None, 1], reads=[x] * 7, writes=lambda r: [x] * 4,
        launches=5,
    )  # fmt: skip
    yield Case("soft_margin_loss", aten.soft_margin_loss.default, [x, y, 0], launches=1)
    rows, classes = draw.size(20, 40), draw.size(40, 80)
    logs, target, total = draw.dense(rows, classes), draw.index(rows), draw.dense()
    sectors = rows * 32.0
    loss = aten.nll_loss_forward.default
    yield Case("nll_loss_forward", loss, [logs, target, None, 1, -100], reads=[sectors, target])
    yield Case(
        "nll_loss_backward", aten.nll_loss_backward.default, [total, logs, target, None, 1, -100, total],
        reads=[target], writes=lambda r: [*r, sectors],
    )  # fmt: skip
    planes, labels = draw.dense(2, 3, 8, 8), draw.index(2, 8, 8)
    yield Case("nll_loss2d_forward", aten.nll_loss2d_forward.default, [planes, labels, None, 1, -100])
    yield Case(
        "nll_loss2d_backward", aten.nll_loss2d_backward.default, [total, planes, labels, None, 1, -100, total],
        reads=[labels], writes=lambda r: [*r, planes],
    )  # fmt: skip


def lists(draw: Draw) -> Iterator[Case]:
    sizes = [draw.shape(2) for _ in range(draw.size(3, 140))]
    a, b, c, d, e = ([draw.dense(*s) for s in sizes] for _ in range(5))
    for name in ["sqrt", "rsqrt", "neg", "abs", "exp", "log", "reciprocal", "sign"]:
        yield Case(f"_foreach_{name}", getattr(aten, f"_foreach_{name}_").default, [a], writes=a)
        yield Case(f"_foreach_{name}", getattr(aten, f"_foreach_{name}").default, [a])
    for name in ["add", "sub", "mul", "div", "maximum", "minimum", "clamp_max", "clamp_min"]:
        yield Case(f"_foreach_{name}", getattr(aten, f"_foreach_{name}_").List, [a, b], writes=a)
        yield Case(f"_foreach_{name}", getattr(aten, f"_foreach_{name}").Scalar, [a, 2.0])
    yield Case("_foreach_mul", aten._foreach_mul_.Tensor, [a, draw.dense()], writes=a)
    yield Case("_foreach_pow", aten._foreach_pow.Scalar, [a, 2.0])
    yield Case("_foreach_lerp", aten._foreach_lerp_.Scalar, [a, b, 0.1], writes=a)
    yield Case("_foreach_addcmul", aten._foreach_addcmul_.Scalar, [a, b, b], reads=[*a, *b], writes=a)
    yield Case("_foreach_addcdiv", aten._foreach_addcdiv_.Scalar, [a, b, c], writes=a)
    yield Case("_foreach_norm", aten._foreach_norm.Scalar, [a, 2.0])
    yield Case("_foreach_max", aten._foreach_max.default, [a])
    yield Case("_foreach_zero", aten._foreach_zero_.default, [a], reads=[], writes=a)
    half = [draw.dense(*s, dtype=F16) for s in sizes]
    yield Case("_foreach_copy", aten._foreach_copy_.default, [a, half], reads=half, writes=a)
    steps = [draw.dense() for _ in sizes]
    adam = {"lr": 1e-3, "beta1": 0.9, "beta2": 0.99, "weight_decay": 0.0, "eps": 1e-8, "amsgrad": False}
    found = {"grad_scale": draw.dense(), "found_inf": draw.dense()}
    for name in ("_fused_adam", "_fused_adamw"):
        op = getattr(aten, f"{name}_").default
        yield Case(name, op, [a, b, c, d, [], steps], {**adam, "maximize": False}, writes=[*a, *c, *d])
        # Gradients that are to be unscaled are written too.
        scaled = {**adam, "maximize": False, **found}
        yield Case(name, op, [a, b, c, d, [], steps], scaled, writes=[*a, *b, *c, *d])
    amsgrad = {**adam, "amsgrad": True, "maximize": False}
    yield Case("_fused_adam", aten._fused_adam_.default, [a, b, c, d, e, steps], amsgrad, writes=[*a, *c, *d, *e])
    sgd = {"weight_decay": 0.0, "momentum": 0.9, "lr": 0.1, "dampening": 0.0, "nesterov": False, "maximize": False}
    yield Case("_fused_sgd", aten._fused_sgd_.default, [a, b, c], {**sgd, "is_first_step": False}, writes=[*a, *c],
               results=[])  # fmt: skip
    plain = {**sgd, "momentum": 0.0, "is_first_step": False}
    yield Case("_fused_sgd", aten._fused_sgd_.default, [a, b, []], plain, writes=a, results=[])
    adagrad = {"lr": 0.1, "lr_decay": 0.0, "weight_decay": 0.0, "eps": 1e-8, "maximize": False}
    yield Case("_fused_adagrad", aten._fused_adagrad_.default, [a, b, c, steps], adagrad, writes=[*a, *c], results=[])
    unscale = aten._amp_foreach_non_finite_check_and_unscale_.default
    yield Case("_amp_foreach_non_finite_check_and_unscale", unscale, [a, draw.dense(1), draw.dense()], writes=a)
    update = [draw.dense(1), draw.index(1), draw.dense(1), 2.0, 0.5, 200]
    yield Case("_amp_update_scale", aten._amp_update_scale_.default, update)


def block_wise(draw: Draw) -> Iterator[Case]:
    from roller.insight.trace.pytorch import block_wise as ours

    weight, gradient = draw.dense(64, 80), draw.dense(64, 80)
    momentum, scales, table = draw.dense(64, 80, dtype=torch.uint8), draw.dense(20), draw.dense(256)
    update = ours.update_block_wise._opoverload
    yield Case("roller.update_block_wise", update, [weight, gradient, [momentum, scales], [table], 0],
               writes=[weight, momentum, scales], launches=1, results=[])  # fmt: skip
    # Paged states are in memory that the allocator does not hold: read and written all the same.
    paged = 2 * 4 * weight.numel()
    yield Case("roller.update_block_wise", update, [weight, gradient, [], [], paged],
               reads=[weight, gradient, paged], writes=[weight, paged], results=[])  # fmt: skip
    codes = draw.dense(64 * 40, 1, dtype=torch.uint8)
    yield Case("roller.dequantize_4bit", ours.dequantize_4bit._opoverload,
               [codes, draw.dense(80), draw.dense(16), [64, 80], F16])  # fmt: skip
    yield Case("roller.dequantize_8bit", ours.dequantize_8bit._opoverload, [draw.dense(80, dtype=torch.uint8),
               draw.dense(1), table])  # fmt: skip


def pointwise_cases(draw: Draw) -> Iterator[Case]:
    """Return all of them."""
    for family in (unary, binary, several, filled, copied, idle, losses, lists, block_wise):
        yield from family(draw)


def default_reads(case: Case) -> list[Any]:
    """Return every tensor of the device that a call is given, once."""
    return each_once([t for t in leaves((list(case.args), case.kwargs)) if t.is_meta])
