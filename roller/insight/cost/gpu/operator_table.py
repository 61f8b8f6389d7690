"""GPU launches of PyTorch's operators: one row per operator, for all its overloads."""

from __future__ import annotations

from collections.abc import Callable

from roller.insight.cost.gpu import attention_and_recurrent_launches as attention
from roller.insight.cost.gpu import (
    convolution_launches,
    data_movement,
    embedding_bag_launches,
    foreach_and_fused_optimizers,
    matrix_products,
    reductions,
    scatter,
    softmax_and_norm_launches,
)
from roller.insight.cost.gpu.elementwise_launches import (
    bernoulli_launches,
    copy_launches,
    fill_launches,
    pointwise_launches_rule,
)
from roller.insight.cost.gpu.operator_view import OperatorView
from roller.insight.cost.kernel_launch_types import Launch

#: Maps an operator to its launches.
Mapping = Callable[[OperatorView], tuple[Launch, ...]]

_PRODUCTS: dict[str, Mapping] = {
    "mm": matrix_products.matrix_product_launches_rule("self", "mat2"),
    "bmm": matrix_products.matrix_product_launches_rule("self", "mat2"),
    "addmm": matrix_products.product_plus_addend_launches_rule("mat1", "mat2"),
    "baddbmm": matrix_products.product_plus_addend_launches_rule("batch1", "batch2"),
    "_scaled_mm": matrix_products.scaled_product_launches,
    "mv": matrix_products.matrix_vector_product_launches,
    "addmv": matrix_products.addmv_launches,
    "dot": matrix_products.inner_product_launches,
    "vdot": matrix_products.inner_product_launches,
    "convolution": convolution_launches.convolution_launches,
    "_convolution": convolution_launches.convolution_launches,
    "cudnn_convolution": convolution_launches.convolution_launches,
    "convolution_overrideable": convolution_launches.convolution_launches,
    "convolution_backward": convolution_launches.convolution_backward_launches,
    "convolution_backward_overrideable": convolution_launches.convolution_backward_launches,
    "_scaled_dot_product_flash_attention": attention.attention_launches,
    "_scaled_dot_product_efficient_attention": attention.attention_launches,
    "_scaled_dot_product_cudnn_attention": attention.attention_launches,
    "_efficient_attention_forward": attention.attention_launches,
    "_flash_attention_forward": attention.attention_launches,
    "_scaled_dot_product_flash_attention_for_cpu": attention.attention_launches,
    "_scaled_dot_product_flash_attention_for_cpu_backward": attention.attention_backward_launches,
    "_scaled_dot_product_flash_attention_backward": attention.attention_backward_launches,
    "_scaled_dot_product_efficient_attention_backward": attention.attention_backward_launches,
    "_scaled_dot_product_cudnn_attention_backward": attention.attention_backward_launches,
    "_efficient_attention_backward": attention.attention_backward_launches,
    "_flash_attention_backward": attention.attention_backward_launches,
    "_thnn_fused_lstm_cell": data_movement.stream_all_launches_rule(),
    "_thnn_fused_lstm_cell_backward_impl": data_movement.stream_all_launches_rule(),
    "_cudnn_rnn": attention.recurrent_launches,
    "_cudnn_rnn_backward": attention.recurrent_backward_launches,
}
_ROWS: dict[str, Mapping] = {
    "_softmax": softmax_and_norm_launches.softmax_launches,
    "_log_softmax": softmax_and_norm_launches.softmax_launches,
    "_safe_softmax": softmax_and_norm_launches.safe_softmax_launches,
    "_softmax_backward_data": softmax_and_norm_launches.softmax_backward_launches,
    "_log_softmax_backward_data": softmax_and_norm_launches.softmax_backward_launches,
    "native_layer_norm": softmax_and_norm_launches.layer_norm_launches,
    "native_layer_norm_backward": softmax_and_norm_launches.layer_norm_backward_launches,
    "_fused_rms_norm": data_movement.stream_all_launches_rule(),
    "_fused_rms_norm_backward": data_movement.stream_all_launches_rule(2.0, 1.0, 2),
    "native_batch_norm": softmax_and_norm_launches.batch_norm_launches,
    "_native_batch_norm_legit": softmax_and_norm_launches.batch_norm_launches,
    "_native_batch_norm_legit_no_training": softmax_and_norm_launches.channel_norm_launches_rule(1.0, 1.0, 1),
    "_native_batch_norm_legit_functional": softmax_and_norm_launches.batch_norm_launches,
    "_batch_norm_with_update": softmax_and_norm_launches.batch_norm_launches,
    "_batch_norm_no_update": softmax_and_norm_launches.channel_norm_launches_rule(1.0, 1.0, 1),
    "cudnn_batch_norm": softmax_and_norm_launches.batch_norm_launches,
    **dict.fromkeys(
        ("native_batch_norm_backward", "cudnn_batch_norm_backward", "batch_norm_backward"),
        softmax_and_norm_launches.batch_norm_backward_launches,
    ),
    "native_group_norm": softmax_and_norm_launches.channel_norm_launches_rule(2.0, 1.0, 3),
    "native_group_norm_backward": softmax_and_norm_launches.channel_norm_launches_rule(2.0, 1.0, 4),
}
_REDUCTIONS: dict[str, Mapping] = {
    "sum": reductions.reduction_launches_rule("sum"),
    "mean": reductions.reduction_launches_rule("mean"),
    "prod": reductions.reduction_launches_rule("prod"),
    "amax": reductions.reduction_launches_rule("max"),
    "amin": reductions.reduction_launches_rule("min"),
    "argmax": reductions.reduction_launches_rule("max"),
    "argmin": reductions.reduction_launches_rule("min"),
    "max": reductions.reduction_launches_rule("max"),
    "min": reductions.reduction_launches_rule("min"),
    "all": reductions.reduction_launches_rule("max"),
    "any": reductions.reduction_launches_rule("max"),
    "norm": reductions.reduction_launches_rule("sum"),
    "linalg_vector_norm": reductions.reduction_launches_rule("sum"),
    "logsumexp": reductions.logsumexp_launches,
    "var": data_movement.stream_all_launches_rule(),
    "var_mean": data_movement.stream_all_launches_rule(),
    "std": data_movement.stream_all_launches_rule(),
    "count_nonzero": data_movement.stream_all_launches_rule(launches=2),
    "nll_loss_forward": reductions.nll_loss_launches,
    "nll_loss2d_forward": reductions.nll_loss_launches,
    "nll_loss_backward": reductions.nll_loss_backward_launches,
    "nll_loss2d_backward": reductions.nll_loss_backward_launches,
    "_amp_foreach_non_finite_check_and_unscale": foreach_and_fused_optimizers.foreach_launches_rule(),
    "_amp_update_scale": data_movement.stream_all_launches_rule(),
}
_WINDOWS: dict[str, Mapping] = {
    **dict.fromkeys(
        ("max_pool2d_with_indices", "max_pool3d_with_indices", "avg_pool2d", "avg_pool3d", "adaptive_max_pool2d",
         "_adaptive_avg_pool2d", "_adaptive_avg_pool3d", "im2col", "col2im", "constant_pad_nd", "reflection_pad1d",
         "reflection_pad2d", "replication_pad2d", "roll", "flip", "pixel_shuffle", "pixel_unshuffle",
         "channel_shuffle", "grid_sampler_2d"),
        data_movement.stream_all_launches_rule(),
    ),
    **dict.fromkeys(
        tuple(f"upsample_{kind}{way}" for kind in (
            "nearest1d", "nearest2d", "nearest3d", "linear1d", "bilinear2d", "bicubic2d", "trilinear3d")
            for way in ("", "_backward")),
        data_movement.stream_all_launches_rule(),
    ),
    **dict.fromkeys(
        ("upsample_linear1d", "upsample_bilinear2d", "upsample_bicubic2d", "upsample_trilinear3d"),
        data_movement.interpolation_launches,
    ),
    **dict.fromkeys(
        ("max_pool2d_with_indices_backward", "max_pool3d_with_indices_backward", "adaptive_max_pool2d_backward",
         "avg_pool2d_backward", "avg_pool3d_backward", "_adaptive_avg_pool2d_backward",
         "_adaptive_avg_pool3d_backward"),
        data_movement.stream_named_inputs_launches_rule("grad_output", "indices"),
    ),
    **dict.fromkeys(
        ("reflection_pad1d_backward", "reflection_pad2d_backward", "replication_pad2d_backward"),
        data_movement.stream_named_inputs_launches_rule("grad_output"),
    ),
}  # fmt: skip
_MOVING: dict[str, Mapping] = {
    "cat": data_movement.concatenation_launches,
    "stack": data_movement.concatenation_launches,
    "embedding": data_movement.gather_launches,
    "index": data_movement.gather_launches,
    "_unsafe_index": data_movement.gather_launches,
    "index_select": data_movement.gather_launches,
    "gather": data_movement.gather_launches,
    "take": data_movement.gather_launches,
    "index_put": scatter.scatter_launches_rule(),
    "_index_put_impl": scatter.scatter_launches_rule(),
    "_unsafe_index_put": scatter.scatter_launches_rule(),
    "index_add": scatter.scatter_launches_rule(adds=True),
    "index_copy": scatter.scatter_launches_rule(),
    "index_fill": scatter.scatter_launches_rule(),
    "scatter": scatter.scatter_launches_rule(),
    "scatter_add": scatter.scatter_launches_rule(adds=True),
    "scatter_reduce": scatter.scatter_launches_rule(adds=True),
    "masked_scatter": scatter.masked_scatter_launches,
    "embedding_dense_backward": data_movement.embedding_backward_launches,
    "_embedding_bag": embedding_bag_launches.embedding_bag_launches,
    "_embedding_bag_forward_only": embedding_bag_launches.embedding_bag_launches,
    "_embedding_bag_backward": embedding_bag_launches.embedding_bag_backward_launches,
    "_embedding_bag_dense_backward": embedding_bag_launches.embedding_bag_backward_launches,
    "select_backward": data_movement.slice_backward_launches,
    "slice_backward": data_movement.slice_backward_launches,
    "sort": data_movement.sort_launches,
    "topk": data_movement.stream_all_launches_rule(3.0, 1.0, 2),
    "cumsum": data_movement.stream_all_launches_rule(),
    "cumprod": data_movement.stream_all_launches_rule(),
    "tril": pointwise_launches_rule("mul"),
    "triu": pointwise_launches_rule("mul"),
    "repeat": data_movement.stream_all_launches_rule(),
    "bincount": data_movement.stream_all_launches_rule(launches=2),
    "nonzero": data_movement.dynamic_size_launches,
    "masked_select": data_movement.masked_select_launches,
    "unique_consecutive": data_movement.dynamic_size_launches,
    "_unique2": data_movement.unique_values_launches,
    "_local_scalar_dense": data_movement.host_read_wait_launches,
    "equal": data_movement.host_read_wait_launches,
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
        reductions.elementwise_loss_launches,
    ),
    "binary_cross_entropy_with_logits": reductions.bce_with_logits_launches,
    **dict.fromkeys(
        ("binary_cross_entropy_backward", "native_dropout", "_fused_dropout", "glu", "glu_backward",
         "_prelu_kernel_backward", "_weight_norm_interface"),
        data_movement.stream_all_launches_rule(),
    ),
}  # fmt: skip
_LISTS: dict[str, Mapping] = {
    **dict.fromkeys(
        tuple(f"_foreach_{n}" for n in (
            "add", "sub", "mul", "div", "addcmul", "addcdiv", "lerp", "sqrt", "rsqrt", "pow", "neg", "abs", "exp",
            "log",
            "maximum", "minimum", "clamp_max", "clamp_min", "reciprocal", "sign")),
        foreach_and_fused_optimizers.foreach_launches_rule(),
    ),
    "_foreach_norm": foreach_and_fused_optimizers.foreach_launches_rule(1),
    "_foreach_max": foreach_and_fused_optimizers.foreach_launches_rule(1),
    "_foreach_zero": foreach_and_fused_optimizers.foreach_fill_launches,
    "_foreach_copy": foreach_and_fused_optimizers.foreach_copy_launches,
    **dict.fromkeys(("_fused_adam", "_fused_adamw", "_fused_sgd", "_fused_adagrad"),
                    foreach_and_fused_optimizers.fused_optimizer_launches),
}  # fmt: skip
#: Operators that launch no work on the device.
NOTHING = ("empty", "empty_like", "empty_strided", "empty_permuted", "new_empty", "new_empty_strided",
            "record_stream", "_assert_async", "is_same_size", "resize")  # fmt: skip

#: Operator name without overload and without the underscore of an in-place operator -> the operator's mapping.
TABLE: dict[str, Mapping] = {
    f"aten.{name}": mapping
    for name, mapping in {
        **{name: pointwise_launches_rule(*functions) for name, functions in POINTWISE.items()},
        **dict.fromkeys(FILLING, fill_launches),
        "bernoulli": bernoulli_launches,
        **dict.fromkeys(COPYING, copy_launches),
        **dict.fromkeys(NOTHING, data_movement.no_launch),
        **_LOSSES, **_MOVING, **_WINDOWS, **_REDUCTIONS, **_ROWS, **_LISTS, **_PRODUCTS,
    }.items()
} | {
    "roller.update_block_wise": foreach_and_fused_optimizers.block_wise_optimizer_launches,
    **dict.fromkeys(("roller.dequantize_4bit", "roller.dequantize_8bit"), data_movement.stream_all_launches_rule()),
}  # fmt: skip
