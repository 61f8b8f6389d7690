"""Automatic mixed precision as on the device: the dtypes of operators, and the cache for casts.

PyTorch casts in C++ according to the backend of a tensor, which a meta tensor lacks, so the rule is repeated here. The
lists are from PyTorch's documentation, "CUDA Op-Specific Behavior".
"""

from __future__ import annotations

from typing import Any

import torch


def _operator_name_set(text: str) -> frozenset[str]:
    return frozenset(text.split())


_LOWER = _operator_name_set(
    """_convolution conv1d conv2d conv3d conv_tbc conv_transpose1d conv_transpose2d conv_transpose3d convolution prelu
    addmm addmv addr matmul __matmul__ einsum mm mv linalg_vecdot linear addbmm baddbmm bmm chain_matmul
    linalg_multi_dot lstm_cell gru_cell rnn_tanh_cell rnn_relu_cell lstm gru rnn_tanh rnn_relu
    scaled_dot_product_attention __rmatmul__"""
)
_FULL = _operator_name_set(
    """acos __rpow__ asin cosh erfinv exp expm1 log log10 log2 log1p reciprocal rsqrt sinh tan pow __pow__ softplus
    layer_norm native_layer_norm group_norm frobenius_norm nuclear_norm cosine_similarity poisson_nll_loss
    cosine_embedding_loss nll_loss nll_loss2d nll_loss_nd hinge_embedding_loss kl_div l1_loss smooth_l1_loss huber_loss
    mse_loss margin_ranking_loss multilabel_margin_loss soft_margin_loss triplet_margin_loss multi_margin_loss
    binary_cross_entropy_with_logits dist pdist cdist renorm logsumexp upsample_nearest1d upsample_nearest2d
    upsample_nearest3d upsample_linear1d upsample_bilinear2d upsample_trilinear3d upsample_bicubic2d"""
)
_FULL_RESULT = _operator_name_set(
    "prod softmax log_softmax cumprod cumsum linalg_vector_norm linalg_matrix_norm sum norm"
)
_WIDEST = _operator_name_set(
    "addcdiv addcmul atan2 bilinear cross dot vdot grid_sampler index_put tensordot scatter_add"
)


class Autocast:
    """Casts arguments and caches the casts of weights until the outermost autocast region ends."""

    def __init__(self) -> None:
        self._kept: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    def clear_cache(self) -> None:
        """Clear the cached casts."""
        self._kept.clear()

    def cast_arguments(self, func: Any, name: str, args: Any, kwargs: Any) -> tuple[Any, Any, Any]:
        """Return a function and its arguments, cast to the dtypes that automatic mixed precision requires."""
        lower = torch.get_autocast_dtype("cuda")
        if name in _LOWER:
            return func, *self._cast_all(args, kwargs, lower)
        if name in _FULL:
            return func, *self._cast_all(args, kwargs, torch.float32)
        if name in _FULL_RESULT and args and _is_castable(args[0]) and args[0].dtype in (torch.float16, torch.bfloat16):
            if kwargs.get("dtype") is None and not any(isinstance(arg, torch.dtype) for arg in args):
                kwargs = {**kwargs, "dtype": torch.float32}
        elif name in _WIDEST:
            found = {
                tensor.dtype for tensor in _tensors_in_arguments((*args, *kwargs.values())) if _is_castable(tensor)
            }
            if len(found) > 1:
                wide = torch.float32 if torch.float32 in found else lower
                return func, *self._cast_all(args, kwargs, wide)
        return func, args, kwargs

    def _cast_all(self, args: Any, kwargs: Any, dtype: torch.dtype) -> tuple[Any, Any]:
        # From the last argument to the first, in the order in which the compiler of PyTorch's releases evaluates them.
        named = {key: self._cast_nested(value, dtype) for key, value in reversed(kwargs.items())}
        return tuple(reversed([self._cast_nested(value, dtype) for value in reversed(args)])), named

    def _cast_nested(self, value: Any, dtype: torch.dtype) -> Any:
        if isinstance(value, torch.Tensor):
            return self._cast_tensor(value, dtype)
        if isinstance(value, (list, tuple)) and not isinstance(value, torch.Size):
            return type(value)(self._cast_nested(v, dtype) for v in value)
        return value

    def _cast_tensor(self, tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        if not _is_castable(tensor) or tensor.dtype == dtype:
            return tensor
        lasting = (
            tensor.dtype == torch.float32 and tensor.requires_grad and tensor.is_leaf and not tensor._is_view()
            and dtype == torch.get_autocast_dtype("cuda") and torch.is_autocast_cache_enabled()
        )  # fmt: skip
        if not lasting:
            return tensor.to(dtype)
        kept = self._kept.get(id(tensor))
        if kept is None:
            kept = self._kept[id(tensor)] = (tensor, tensor.to(dtype))
        return kept[1]


def _is_castable(value: Any) -> bool:
    """Return whether autocast applies to a value: a floating-point device tensor, except float64."""
    return (
        isinstance(value, torch.Tensor) and value.is_meta and value.dtype.is_floating_point
        and value.dtype != torch.float64
    )  # fmt: skip


def _tensors_in_arguments(values: Any) -> list[torch.Tensor]:
    found: list[torch.Tensor] = []
    for value in values:
        if isinstance(value, torch.Tensor):
            found.append(value)
        elif isinstance(value, (list, tuple)):
            found += _tensors_in_arguments(value)
    return found
