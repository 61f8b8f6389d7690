"""GPU launches of PyTorch's operators: one row per operator, for all its overloads."""

from __future__ import annotations

from collections.abc import Callable

from roller.insight.cost.gpu import (
    attention,
    convolution,
    data_movement,
    embedding_bags,
    matrix_products,
    normalization,
    optimizers,
    reductions,
    scatter,
)  # fmt: skip
from roller.insight.cost.gpu.operator_view import View
from roller.insight.cost.gpu.pointwise import bernoulli, copy, fill, pointwise
from roller.insight.cost.launches import Launch

#: Maps an operator to its launches.
Mapping = Callable[[View], tuple[Launch, ...]]

_PRODUCTS: dict[str, Mapping] = {
    "mm": matrix_products.matrix_product("self", "mat2"),
    "bmm": matrix_products.matrix_product("self", "mat2"),
    "addmm": matrix_products.matrix_product_with_addend("mat1", "mat2"),
    "baddbmm": matrix_products.matrix_product_with_addend("batch1", "batch2"),
    "_scaled_mm": matrix_products.scaled_product,
    "mv": matrix_products.matrix_vector_product,
    "addmv": matrix_products.matrix_vector_product_with_addend,
    "dot": matrix_products.inner_product,
    "vdot": matrix_products.inner_product,
    "convolution": convolution.convolution,
    "_convolution": convolution.convolution,
    "cudnn_convolution": convolution.convolution,
    "convolution_overrideable": convolution.convolution,
    "convolution_backward": convolution.convolution_backward,
    "convolution_backward_overrideable": convolution.convolution_backward,
    "_scaled_dot_product_flash_attention": attention.attention,
    "_scaled_dot_product_efficient_attention": attention.attention,
    "_scaled_dot_product_cudnn_attention": attention.attention,
    "_efficient_attention_forward": attention.attention,
    "_flash_attention_forward": attention.attention,
    "_scaled_dot_product_flash_attention_for_cpu": attention.attention,
    "_scaled_dot_product_flash_attention_for_cpu_backward": attention.attention_backward,
    "_scaled_dot_product_flash_attention_backward": attention.attention_backward,
    "_scaled_dot_product_efficient_attention_backward": attention.attention_backward,
    "_scaled_dot_product_cudnn_attention_backward": attention.attention_backward,
    "_efficient_attention_backward": attention.attention_backward,
    "_flash_attention_backward": attention.attention_backward,
    "_thnn_fused_lstm_cell": data_movement.stream_all(),
    "_thnn_fused_lstm_cell_backward_impl": data_movement.stream_all(),
    "_cudnn_rnn": attention.recurrent,
    "_cudnn_rnn_backward": attention.recurrent_backward,
}
_ROWS: dict[str, Mapping] = {
    "_softmax": normalization.softmax,
    "_log_softmax": normalization.softmax,
    "_safe_softmax": normalization.safe_softmax,
    "_softmax_backward_data": normalization.softmax_backward,
    "_log_softmax_backward_data": normalization.softmax_backward,
    "native_layer_norm": normalization.layer_norm,
    "native_layer_norm_backward": normalization.layer_norm_backward,
    "_fused_rms_norm": data_movement.stream_all(),
    "_fused_rms_norm_backward": data_movement.stream_all(2.0, 1.0, 2),
    "native_batch_norm": normalization.batch_norm,
    "_native_batch_norm_legit": normalization.batch_norm,
    "_native_batch_norm_legit_no_training": normalization.channel_norm(1.0, 1.0, 1),
    "_native_batch_norm_legit_functional": normalization.batch_norm,
    "_batch_norm_with_update": normalization.batch_norm,
    "_batch_norm_no_update": normalization.channel_norm(1.0, 1.0, 1),
    "cudnn_batch_norm": normalization.batch_norm,
    **dict.fromkeys(
        ("native_batch_norm_backward", "cudnn_batch_norm_backward", "batch_norm_backward"),
        normalization.batch_norm_backward,
    ),
    "native_group_norm": normalization.channel_norm(2.0, 1.0, 3),
    "native_group_norm_backward": normalization.channel_norm(2.0, 1.0, 4),
}
_REDUCTIONS: dict[str, Mapping] = {
    "sum": reductions.reduction("sum"),
    "mean": reductions.reduction("mean"),
    "prod": reductions.reduction("prod"),
    "amax": reductions.reduction("max"),
    "amin": reductions.reduction("min"),
    "argmax": reductions.reduction("max"),
    "argmin": reductions.reduction("min"),
    "max": reductions.reduction("max"),
    "min": reductions.reduction("min"),
    "all": reductions.reduction("max"),
    "any": reductions.reduction("max"),
    "norm": reductions.reduction("sum"),
    "linalg_vector_norm": reductions.reduction("sum"),
    "logsumexp": reductions.logsumexp,
    "var": data_movement.stream_all(),
    "var_mean": data_movement.stream_all(),
    "std": data_movement.stream_all(),
    "count_nonzero": data_movement.stream_all(launches=2),
    "nll_loss_forward": reductions.nll_loss,
    "nll_loss2d_forward": reductions.nll_loss,
    "nll_loss_backward": reductions.nll_loss_backward,
    "nll_loss2d_backward": reductions.nll_loss_backward,
    "_amp_foreach_non_finite_check_and_unscale": optimizers.foreach(),
    "_amp_update_scale": data_movement.stream_all(),
}
_WINDOWS: dict[str, Mapping] = {
    **dict.fromkeys(
        ("max_pool2d_with_indices", "max_pool3d_with_indices", "avg_pool2d", "avg_pool3d", "adaptive_max_pool2d",
         "_adaptive_avg_pool2d", "_adaptive_avg_pool3d", "im2col", "col2im", "constant_pad_nd", "reflection_pad1d",
         "reflection_pad2d", "replication_pad2d", "roll", "flip", "pixel_shuffle", "pixel_unshuffle",
         "channel_shuffle", "grid_sampler_2d"),
        data_movement.stream_all(),
    ),
    **dict.fromkeys(
        tuple(f"upsample_{kind}{way}" for kind in (
            "nearest1d", "nearest2d", "nearest3d", "linear1d", "bilinear2d", "bicubic2d", "trilinear3d")
            for way in ("", "_backward")),
        data_movement.stream_all(),
    ),
    **dict.fromkeys(
        ("upsample_linear1d", "upsample_bilinear2d", "upsample_bicubic2d", "upsample_trilinear3d"),
        data_movement.interpolate,
    ),
    **dict.fromkeys(
        ("max_pool2d_with_indices_backward", "max_pool3d_with_indices_backward", "adaptive_max_pool2d_backward",
         "avg_pool2d_backward", "avg_pool3d_backward", "_adaptive_avg_pool2d_backward",
         "_adaptive_avg_pool3d_backward"),
        data_movement.stream_named_inputs("grad_output", "indices"),
    ),
    **dict.fromkeys(
        ("reflection_pad1d_backward", "reflection_pad2d_backward", "replication_pad2d_backward"),
        data_movement.stream_named_inputs("grad_output"),
    ),
}  # fmt: skip
_MOVING: dict[str, Mapping] = {
    "cat": data_movement.concatenate,
    "stack": data_movement.concatenate,
    "embedding": data_movement.gather,
    "index": data_movement.gather,
    "_unsafe_index": data_movement.gather,
    "index_select": data_movement.gather,
    "gather": data_movement.gather,
    "take": data_movement.gather,
    "index_put": scatter.scatter(),
    "_index_put_impl": scatter.scatter(),
    "_unsafe_index_put": scatter.scatter(),
    "index_add": scatter.scatter(adds=True),
    "index_copy": scatter.scatter(),
    "index_fill": scatter.scatter(),
    "scatter": scatter.scatter(),
    "scatter_add": scatter.scatter(adds=True),
    "scatter_reduce": scatter.scatter(adds=True),
    "masked_scatter": scatter.masked_scatter,
    "embedding_dense_backward": data_movement.embedding_backward,
    "_embedding_bag": embedding_bags.embedding_bag,
    "_embedding_bag_forward_only": embedding_bags.embedding_bag,
    "_embedding_bag_backward": embedding_bags.embedding_bag_backward,
    "_embedding_bag_dense_backward": embedding_bags.embedding_bag_backward,
    "select_backward": data_movement.slice_backward,
    "slice_backward": data_movement.slice_backward,
    "sort": data_movement.sort,
    "topk": data_movement.stream_all(3.0, 1.0, 2),
    "cumsum": data_movement.stream_all(),
    "cumprod": data_movement.stream_all(),
    "tril": pointwise("mul"),
    "triu": pointwise("mul"),
    "repeat": data_movement.stream_all(),
    "bincount": data_movement.stream_all(launches=2),
    "nonzero": data_movement.dynamic_size,
    "masked_select": data_movement.masked_select,
    "unique_consecutive": data_movement.dynamic_size,
    "_unique2": data_movement.unique_values,
    "_local_scalar_dense": data_movement.read_on_host,
    "equal": data_movement.read_on_host,
}
#: Operators that write tensors and read none, or only those that they overwrite.
FILLING = ("fill", "zero", "full", "full_like", "zeros", "zeros_like", "ones", "ones_like", "new_full", "new_zeros",
            "new_ones", "arange", "linspace", "eye", "scalar_tensor", "rand", "randn", "rand_like", "randn_like",
            "randint", "randperm", "uniform", "normal", "exponential", "tril_indices")  # fmt: skip
COPYING = ("clone", "copy", "_to_copy", "lift_fresh_copy", "_reshape_copy")
#: Scalar functions of element-wise operators, whose arithmetic overlaps with memory traffic.
POINTWISE: dict[str, tuple[str, ...]] = {
    **{n: (n,) for n in ("add", "sub", "mul", "div", "neg", "abs", "exp", "log", "sqrt", "rsqrt", "tanh", "erf",
                         "sigmoid", "pow", "floor", "ceil", "eq", "lt", "le", "isnan", "trunc", "round")},
    "rsub": ("sub",), "gt": ("lt",), "ge": ("le",), "ne": ("eq",), "relu": ("max",), "maximum": ("max",),
    "minimum": ("min",), "clamp": ("max", "min"), "clamp_min": ("max",), "clamp_max": ("min",),
    "hardtanh": ("max", "min"), "hardtanh_backward": ("select",), "_prelu_kernel": ("mul", "max"),
    "xlogy": ("log", "mul"),
    "where": ("select",), "masked_fill": ("select",), "threshold_backward": ("select",),
    "threshold": ("select",), "gelu": ("mul", "erf", "mul", "add", "mul"),
    "gelu_backward": ("mul", "erf", "mul", "exp", "mul", "add", "mul"), "silu": ("sigmoid", "mul"),
    "silu_backward": ("sigmoid", "mul", "sub", "mul", "mul"), "tanh_backward": ("mul", "sub", "mul"),
    "sigmoid_backward": ("mul", "sub", "mul"), "elu": ("exp", "sub", "mul"), "elu_backward": ("exp", "mul"),
    "leaky_relu": ("mul", "max"), "leaky_relu_backward": ("mul",), "hardswish": ("add", "max", "min", "mul", "div"),
    "hardswish_backward": ("add", "mul", "div", "mul"), "hardsigmoid": ("add", "max", "min", "div"),
    "hardsigmoid_backward": ("mul",), "softplus": ("exp", "add", "log"), "softplus_backward": ("exp", "add", "div"),
    "mish": ("exp", "add", "log", "tanh", "mul"), "mish_backward": ("exp", "log", "tanh", "mul", "mul"),
    "log1p": ("add", "log"), "log2": ("log",), "exp2": ("exp",), "expm1": ("exp", "sub"), "sin": ("tanh",),
    "cos": ("tanh",),
    "reciprocal": ("div",), "addcmul": ("mul", "mul", "add"), "addcdiv": ("div", "mul", "add"),
    "lerp": ("sub", "mul", "add"), "logical_not": ("eq",), "logical_and": ("mul",), "logical_or": ("max",),
    "bitwise_not": ("eq",), "bitwise_and": ("mul",), "bitwise_or": ("max",), "bitwise_xor": ("add",), "sign": ("lt",),
    "sgn": ("lt",), "remainder": ("div", "mul", "sub"), "fmod": ("fmod",), "floor_divide": ("div", "floor"),
    "native_dropout_backward": ("mul", "mul"), "isinf": ("abs", "eq"),
    "nan_to_num": ("max",),
    "log_sigmoid_forward": ("exp", "add", "log"), "log_sigmoid_backward": ("exp", "div", "mul"),
    "mse_loss_backward": ("sub", "mul"), "smooth_l1_loss_backward": ("sub", "abs", "lt", "mul"),
    "huber_loss_backward": ("sub", "abs", "lt", "mul"),
    "complex": ("add",), "__rshift__": ("mul",), "__lshift__": ("mul",),
    "polar": ("tanh", "mul"), "erfinv": ("log", "sqrt"), "atan2": ("div", "tanh"),
    "_masked_scale": ("mul",),
}  # fmt: skip
_LOSSES: dict[str, Mapping] = {
    **dict.fromkeys(
        ("mse_loss", "smooth_l1_loss", "huber_loss", "soft_margin_loss", "binary_cross_entropy"),
        reductions.elementwise_loss,
    ),
    "binary_cross_entropy_with_logits": reductions.binary_cross_entropy_with_logits,
    **dict.fromkeys(
        ("binary_cross_entropy_backward", "native_dropout", "_fused_dropout", "glu", "glu_backward",
         "_prelu_kernel_backward", "_weight_norm_interface"),
        data_movement.stream_all(),
    ),
}  # fmt: skip
_LISTS: dict[str, Mapping] = {
    **dict.fromkeys(
        tuple(f"_foreach_{n}" for n in (
            "add", "sub", "mul", "div", "addcmul", "addcdiv", "lerp", "sqrt", "rsqrt", "pow", "neg", "abs", "exp",
            "log",
            "maximum", "minimum", "clamp_max", "clamp_min", "reciprocal", "sign")),
        optimizers.foreach(),
    ),
    "_foreach_norm": optimizers.foreach(1),
    "_foreach_max": optimizers.foreach(1),
    "_foreach_zero": optimizers.foreach_fill,
    "_foreach_copy": optimizers.foreach_copy,
    **dict.fromkeys(("_fused_adam", "_fused_adamw", "_fused_sgd", "_fused_adagrad"), optimizers.fused_optimizer),
}  # fmt: skip
#: Operators that launch no work on the device.
NOTHING = ("empty", "empty_like", "empty_strided", "empty_permuted", "new_empty", "new_empty_strided",
            "record_stream", "_assert_async", "is_same_size", "resize")  # fmt: skip

#: Name of an operator, without its overload and the underscore of an in-place one -> its mapping.
TABLE: dict[str, Mapping] = {
    f"aten.{name}": mapping
    for name, mapping in {
        **{name: pointwise(*functions) for name, functions in POINTWISE.items()},
        **dict.fromkeys(FILLING, fill),
        "bernoulli": bernoulli,
        **dict.fromkeys(COPYING, copy),
        **dict.fromkeys(NOTHING, data_movement.no_launch),
        **_LOSSES, **_MOVING, **_WINDOWS, **_REDUCTIONS, **_ROWS, **_LISTS, **_PRODUCTS,
    }.items()
} | {
    "roller.update_block_wise": optimizers.block_wise_optimizer,
    **dict.fromkeys(("roller.dequantize_4bit", "roller.dequantize_8bit"), data_movement.stream_all()),
}  # fmt: skip
