"""What PyTorch chooses by the type of a device inside of C++: rows of one table, a function's name and its choice."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch

from roller.insight.trace.options import HOST
from roller.insight.trace.pytorch import attention, recurrent

#: What the kernels of cuDNN's batch norm take, as in ATen/native/Normalization.cpp.
_MOST_BATCH_TRAINING, _MOST_BATCH_INFERENCE = 880801, 65535


@dataclass(frozen=True)
class Target:
    """What decides which kernels PyTorch would run.

    Parameters
    ----------
    sm
        Compute capability of the GPU; (0, 0) is a CPU.
    cudnn
        Version of cuDNN as PyTorch gives it, 0 for none.
    attention
        Kernel of attention: ``"auto"``, ``"flash"``, ``"efficient"``, ``"cudnn"`` or ``"math"``.
    """

    sm: tuple[int, int] = (8, 0)
    cudnn: int = 91002
    attention: str = "auto"
    _asked: list[bool] = field(default_factory=list, repr=False, compare=False)

    @property
    def capability(self) -> tuple[int, int]:
        """Compute capability; that a choice asked for it is remembered."""
        self._asked.append(True)
        return self.sm

    @property
    def type(self) -> str:
        """What a tensor says of its device."""
        return "cpu" if self.sm == HOST else "cuda"

    @property
    def matters(self) -> bool:
        """Whether any choice so far asked for the capability: if none did, all devices run the same."""
        return bool(self._asked)


def dropout(target: Target, func: Any, args: Any, kwargs: Any) -> Any:
    """Drop elements: the device keeps a mask of bytes; the host keeps numbers."""
    tensor, share, train = (*args, *(kwargs[name] for name in ("input", "p", "train") if name in kwargs))[:3]
    if not (train and tensor.is_meta and 0 < share < 1 and tensor.numel()):
        return NotImplemented
    mask = torch.native_dropout(tensor, share, train)
    return tensor.copy_(mask[0]) if func.__name__ == "dropout_" else mask[0]


def batch_norm(target: Target, func: Any, args: Any, kwargs: Any) -> Any:
    """Norm batches by cuDNN where it takes them, else by PyTorch's own kernel."""
    tensor, weight, bias, mean, variance, training, momentum, eps, enabled = args
    given = weight is not None and bias is not None
    statistics = mean is not None and variance is not None
    takes = (
        target.cudnn and enabled and given and tensor.is_meta
        and torch.bfloat16 not in (tensor.dtype, weight.dtype)
        and (tensor.dtype != torch.float16 or weight.dtype == torch.float32)
        and (statistics or (mean is None and variance is None and training))
        and tensor.dim() >= 3
        and tensor.shape[0] <= (_MOST_BATCH_TRAINING if training else _MOST_BATCH_INFERENCE)
        and tensor.numel() < 2**31
    )  # fmt: skip
    if not takes:
        return NotImplemented
    return torch.cudnn_batch_norm(
        tensor.contiguous(memory_format=_layout(tensor)), weight, bias, mean, variance, training, momentum, eps
    )[0]


def instance_norm(target: Target, func: Any, args: Any, kwargs: Any) -> Any:
    """Norm every sample's channels as one batch norm of them all, by whichever kernel that takes."""
    tensor, weight, bias, mean, variance, statistics, momentum, eps, enabled = args
    if not tensor.is_meta or tensor.dim() < 3:
        return NotImplemented
    batch, channels = tensor.shape[:2]
    each = [None if one is None else one.repeat(batch) for one in (weight, bias, mean, variance)]
    flat = tensor.contiguous().view(1, batch * channels, *tensor.shape[2:])
    given = (flat, *each, statistics, momentum, eps, enabled)
    normed = batch_norm(target, func, given, {})
    if normed is NotImplemented:
        normed = torch.batch_norm(*given)
    for whole, part in zip((mean, variance), each[2:], strict=True):
        if whole is not None and part is not None and statistics:
            whole.copy_(part.view(batch, channels).mean(0))
    return normed.view(tensor.shape)


def _layout(tensor: torch.Tensor) -> torch.memory_format:
    for rank, layout in ((4, torch.channels_last), (5, torch.channels_last_3d)):
        if tensor.dim() == rank and tensor.is_contiguous(memory_format=layout) and not tensor.is_contiguous():
            return layout
    return torch.contiguous_format


def softmax(target: Target, func: Any, args: Any, kwargs: Any) -> Any:
    """Widen in the same kernel where half numbers are to give float32."""
    dtype = kwargs.get("dtype", args[2] if len(args) > 2 else None)
    if dtype is not torch.float32 or not args[0].is_meta or args[0].dtype != torch.float16:
        return NotImplemented
    kernel = torch.ops.aten._log_softmax if "log" in func.__name__ else torch.ops.aten._softmax
    return kernel.default(args[0], kwargs.get("dim", args[1] if len(args) > 1 else -1), True)


def cross_entropy(target: Target, func: Any, args: Any, kwargs: Any) -> Any:
    """Take the loss apart under autocast, where its steps have dtypes of their own."""
    names = ("self", "target", "weight", "reduction", "ignore_index", "label_smoothing")
    given = {**dict(zip(names, args, strict=False)), **kwargs}
    tensor, classes = given["self"], given["target"]
    plain = not given.get("label_smoothing") and classes.dtype == torch.int64
    if not (torch.is_autocast_enabled("cuda") and plain and tensor.dtype in (torch.float16, torch.bfloat16)):
        return NotImplemented
    logs = torch.log_softmax(tensor, 0 if tensor.dim() == 1 else 1, tensor.dtype).float()
    reduction = given.get("reduction", 1)
    return torch.nn.functional.nll_loss(
        logs, classes, given.get("weight"), ignore_index=given.get("ignore_index", -100),
        reduction={0: "none", 1: "mean", 2: "sum"}.get(reduction, "mean"),
    )  # fmt: skip


def clip_gradients(
    parameters: Any, max_norm: float, norm_type: float = 2.0, error_if_nonfinite: bool = False, foreach: Any = None
) -> torch.Tensor:
    """Scale gradients to a norm as ``clip_grad_norm_`` does on the device: all of one dtype in one operator."""
    given = [parameters] if isinstance(parameters, torch.Tensor) else list(parameters)
    grouped: dict[torch.dtype, list[torch.Tensor]] = {}
    with torch.no_grad():
        for parameter in given:
            if parameter.grad is not None:
                grouped.setdefault(parameter.grad.dtype, []).append(parameter.grad)
        if not grouped:
            return torch.tensor(0.0)
        norms = [norm for group in grouped.values() for norm in torch.ops.aten._foreach_norm.Scalar(group, norm_type)]
        total: torch.Tensor = torch.linalg.vector_norm(torch.stack(norms), norm_type)
        factor = torch.clamp(max_norm / (total + 1e-6), max=1.0)
        for group in grouped.values():
            torch.ops.aten._foreach_mul_.Tensor(group, factor)
    return total


#: Name of a function of PyTorch -> what the device does instead; ``NotImplemented`` for what any device does.
REPLACED: Mapping[str, Callable[[Any, Any, Any, Any], Any]] = {
    "dropout": dropout,
    "dropout_": dropout,
    "batch_norm": batch_norm,
    "instance_norm": instance_norm,
    "softmax": softmax,
    "log_softmax": softmax,
    "cross_entropy_loss": cross_entropy,
    "scaled_dot_product_attention": attention.attend,
    **{name: partial(recurrent.layer, name) for name in recurrent.MODES},
    "lstm_cell": recurrent.lstm_cell,
}
