"""PyTorch's device-dependent C++ dispatch, as a table of functions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch

from roller.insight.trace.options import HOST
from roller.insight.trace.pytorch import attention_dispatch, older_softmax, recurrent_dispatch
from roller.insight.trace.pytorch.gpu_result_layouts import memory_format_of_strides
from roller.insight.trace.torch_release import NEWEST, TorchRelease

#: Maximum numbers of samples in cuDNN's batch norm in training and in inference, as in ATen/native/Normalization.cpp.
_MOST_BATCH_TRAINING, _MOST_BATCH_INFERENCE = 880801, 65535


#: Compute capabilities of GPUs, as CUDA's tables list them.
CAPABILITIES = (
    (5, 0), (5, 2), (5, 3), (6, 0), (6, 1), (6, 2), (7, 0), (7, 2), (7, 5), (8, 0), (8, 6), (8, 7), (8, 9), (9, 0),
    (10, 0), (10, 3), (11, 0), (12, 0), (12, 1),
)  # fmt: skip


@dataclass(frozen=True)
class Target:
    """Properties of a device that decide which kernels PyTorch runs.

    Parameters
    ----------
    sm
        Compute capability of the GPU; (0, 0) for a CPU.
    cudnn
        cuDNN version in PyTorch's format; 0 for none.
    attention
        Attention kernel: ``"auto"``, ``"flash"``, ``"efficient"``, ``"cudnn"`` or ``"math"``.
    release
        PyTorch release whose rules decide what is saved and allocated.
    """

    sm: tuple[int, int] = (8, 0)
    cudnn: int = 91002
    attention: str = "auto"
    release: TorchRelease = NEWEST
    #: Compute capabilities for which every choice so far is the same as for ``sm``.
    alike: set[tuple[int, int]] = field(default_factory=lambda: set(CAPABILITIES), repr=False, compare=False)

    @property
    def capability(self) -> tuple[int, int]:
        """Compute capability; reading it clears :attr:`alike`, since the user's code may decide by it."""
        self.alike.clear()
        return self.sm

    def choose(self, choice: Callable[[tuple[int, int]], str]) -> str:
        """Return the choice for ``sm``; keep in :attr:`alike` only the capabilities with the same choice."""
        found = choice(self.sm)
        self.alike.intersection_update([other for other in self.alike if choice(other) == found])
        return found

    @property
    def type(self) -> str:
        """Device type that the device's tensors report: ``"cpu"`` or ``"cuda"``."""
        return "cpu" if self.sm == HOST else "cuda"


def dispatch_dropout(target: Target, func: Any, args: Any, kwargs: Any) -> Any:
    """Run dropout as on a GPU, which saves a mask with one byte per element."""
    tensor, share, train = (*args, *(kwargs[name] for name in ("input", "p", "train") if name in kwargs))[:3]
    if not (train and tensor.is_meta and 0 < share < 1 and tensor.numel()):
        return NotImplemented
    mask = torch.native_dropout(tensor, share, train)
    return tensor.copy_(mask[0]) if func.__name__ == "dropout_" else mask[0]


def dispatch_batch_norm(target: Target, func: Any, args: Any, kwargs: Any) -> Any:
    """Run batch norm with cuDNN if it supports the arguments; otherwise return ``NotImplemented``."""
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
        tensor.contiguous(memory_format=memory_format_of_strides(tensor)),
        weight,
        bias,
        mean,
        variance,
        training,
        momentum,
        eps,
    )[0]


def dispatch_instance_norm(target: Target, func: Any, args: Any, kwargs: Any) -> Any:
    """Run instance norm as a batch norm over the channels of all samples."""
    tensor, weight, bias, mean, variance, statistics, momentum, eps, enabled = args
    if not tensor.is_meta or tensor.dim() < 3:
        return NotImplemented
    batch, channels = tensor.shape[:2]
    each = [None if one is None else one.repeat(batch) for one in (weight, bias, mean, variance)]
    flat = tensor.contiguous().view(1, batch * channels, *tensor.shape[2:])
    given = (flat, *each, statistics, momentum, eps, enabled)
    normed = dispatch_batch_norm(target, func, given, {})
    if normed is NotImplemented:
        normed = torch.batch_norm(*given)
    for whole, part in zip((mean, variance), each[2:], strict=True):
        if whole is not None and part is not None and statistics:
            whole.copy_(part.view(batch, channels).mean(0))
    return normed.view(tensor.shape)


def dispatch_softmax(target: Target, func: Any, args: Any, kwargs: Any) -> Any:
    """Run a softmax from float16 to float32 in one kernel, without a cast."""
    dtype = kwargs.get("dtype", args[2] if len(args) > 2 else None)
    if target.release.softmax_saves_input and args[0].is_meta and args[0].is_floating_point():
        return older_softmax.softmax_saving_input(
            func.__name__, args[0], kwargs.get("dim", args[1] if len(args) > 1 else -1), dtype
        )
    if dtype is not torch.float32 or not args[0].is_meta or args[0].dtype != torch.float16:
        return NotImplemented
    kernel = torch.ops.aten._log_softmax if "log" in func.__name__ else torch.ops.aten._softmax
    return kernel.default(args[0], kwargs.get("dim", args[1] if len(args) > 1 else -1), True)


def dispatch_cross_entropy(target: Target, func: Any, args: Any, kwargs: Any) -> Any:
    """Run cross entropy as separate operators if autocast casts them or the release's softmax saves its input."""
    names = ("self", "target", "weight", "reduction", "ignore_index", "label_smoothing")
    given = {**dict(zip(names, args, strict=False)), **kwargs}
    tensor, classes = given["self"], given["target"]
    plain = not given.get("label_smoothing") and classes.dtype == torch.int64
    casts = torch.is_autocast_enabled("cuda") and tensor.dtype in (torch.float16, torch.bfloat16)
    saves_input = target.release.softmax_saves_input and tensor.is_meta
    if not (plain and (casts or saves_input)):
        return NotImplemented
    axis = 0 if tensor.dim() == 1 else 1
    if saves_input:
        logs = older_softmax.softmax_saving_input("log_softmax", tensor, axis, torch.float32 if casts else None)
    else:
        logs = torch.log_softmax(tensor, axis, tensor.dtype).float()
    reduction = given.get("reduction", 1)
    return torch.nn.functional.nll_loss(
        logs, classes, given.get("weight"), ignore_index=given.get("ignore_index", -100),
        reduction={0: "none", 1: "mean", 2: "sum"}.get(reduction, "mean"),
    )  # fmt: skip


#: Maps the name of a PyTorch function to its replacement on a GPU, which may return ``NotImplemented`` to decline.
REPLACED: Mapping[str, Callable[[Any, Any, Any, Any], Any]] = {
    "dropout": dispatch_dropout,
    "dropout_": dispatch_dropout,
    "batch_norm": dispatch_batch_norm,
    "instance_norm": dispatch_instance_norm,
    "softmax": dispatch_softmax,
    "log_softmax": dispatch_softmax,
    "cross_entropy_loss": dispatch_cross_entropy,
    "scaled_dot_product_attention": attention_dispatch.dispatch_attention,
    **{name: partial(recurrent_dispatch.dispatch_rnn, name) for name in recurrent_dispatch.MODES},
    "lstm_cell": recurrent_dispatch.dispatch_lstm_cell,
}
