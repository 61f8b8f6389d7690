"""The operators as PyTorch runs them: cuBLAS, cuDNN and its own kernels, through ``torch.nn.functional``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

#: Element-wise functions by the names rows use.
_ELEMENTWISE = {
    "relu": "relu", "add": "add", "bias_add": "add", "multiply": "mul", "sigmoid": "sigmoid", "tanh": "tanh"
}  # fmt: skip
_REDUCE = {"sum": "sum", "mean": "mean", "max": "amax", "min": "amin"}


@dataclass(frozen=True)
class Peer:
    """One operator in PyTorch.

    Parameters
    ----------
    call
        Computes the output from prepared inputs.
    prepare
        What happens to the inputs before, untimed.
    note
        In what the two sides differ.
    """

    call: Callable[..., Any]
    prepare: Callable[[list[Any]], list[Any]] = list
    note: str = ""


def functional(torch: Any, row: Mapping[str, Any]) -> Peer:
    """Return the peer of one row.

    Parameters
    ----------
    torch
        The module.
    row
        As in ``operators.yaml``.

    Raises
    ------
    KeyError
        Where PyTorch's name of the operator is not known here.
    """
    return _PEERS[row["op"]](torch, row)


def _matmul(torch: Any, row: Mapping[str, Any]) -> Peer:
    swap_a, swap_b = row.get("transpose_a", False), row.get("transpose_b", False)
    product = torch._int_mm if row["dtype"] == "int8" else torch.matmul  # the only product of PyTorch with int32 sums

    def view(inputs: list[Any]) -> list[Any]:
        return [x.transpose(-1, -2) if swap else x for x, swap in zip(inputs, (swap_a, swap_b), strict=True)]

    return Peer(product, view)


def _softmax(torch: Any, row: Mapping[str, Any]) -> Peer:
    del row
    return Peer(lambda x: torch.nn.functional.softmax(x, -1))


def _layer_norm(torch: Any, row: Mapping[str, Any]) -> Peer:
    size = row["shape"][-1:]
    return Peer(lambda x, gamma, beta: torch.nn.functional.layer_norm(x, size, gamma, beta))


def _rms_norm(torch: Any, row: Mapping[str, Any]) -> Peer:
    size = row["shape"][-1:]
    return Peer(lambda x, gamma: torch.nn.functional.rms_norm(x, size, gamma, 1e-6))


def _sides(torch: Any, row: Mapping[str, Any]) -> tuple[tuple[int, int], Callable[[list[Any]], list[Any]], str]:
    """Return symmetric padding; where the row's is not, the input is padded before, in the peer's favour."""
    top, bottom, left, right = (row.get(f"pad_{s}", 0) for s in ("top", "bottom", "left", "right"))
    if (top, left) == (bottom, right):
        return (top, left), list, ""

    def pad(inputs: list[Any]) -> list[Any]:
        return [torch.nn.functional.pad(inputs[0], (left, right, top, bottom)), *inputs[1:]]

    return (0, 0), pad, "the peer's input was padded before it was timed: its two sides differ"


def _conv2d(torch: Any, row: Mapping[str, Any]) -> Peer:
    padding, pad, note = _sides(torch, row)
    groups = row["C"] if row["op"] == "depthwise_conv2d" else row.get("groups", 1)
    stride, dilation = row.get("stride", 1), row.get("dilation", 1)

    def call(x: Any, w: Any) -> Any:
        return torch.nn.functional.conv2d(x, w, None, stride, padding, dilation, groups)

    return Peer(call, pad, note)


def _pooling(torch: Any, row: Mapping[str, Any]) -> Peer:
    padding, pad, note = _sides(torch, row)
    window, stride = (row["KH"], row["KW"]), row.get("stride", 1)

    def average(x: Any) -> Any:
        return torch.nn.functional.avg_pool2d(x, window, stride, padding, count_include_pad=True)

    def largest(x: Any) -> Any:
        return torch.nn.functional.max_pool2d(x, window, stride, padding)

    return Peer({"avg": average, "max": largest}[row["pool"]], pad, note)


def _elementwise(torch: Any, row: Mapping[str, Any]) -> Peer:
    return Peer(getattr(torch, _ELEMENTWISE[row["fn"]]))


def _reduce(torch: Any, row: Mapping[str, Any]) -> Peer:
    function, axes = getattr(torch, _REDUCE[row["fn"]]), tuple(row["axes"])

    def call(x: Any) -> Any:
        return function(x, dim=axes)

    return Peer(call)


_PEERS: dict[str, Callable[[Any, Mapping[str, Any]], Peer]] = {
    "matmul": _matmul, "conv2d": _conv2d, "depthwise_conv2d": _conv2d, "pooling": _pooling,
    "elementwise": _elementwise, "reduce": _reduce, "softmax": _softmax, "layer_norm": _layer_norm,
    "rms_norm": _rms_norm,
}  # fmt: skip
