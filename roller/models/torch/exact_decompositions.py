"""Decompositions of operators that PyTorch's exporter decomposes inexactly.

``python -m benchmarks.torch_audit`` compares every operator in PyTorch's own database and finds candidates.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import torch


def exact_decompositions() -> dict[Any, Callable[..., Any]]:
    """Return a function for each operator; the function returns ``NotImplemented`` if the exporter is exact."""
    import torch

    aten = torch.ops.aten
    return {
        aten.remainder.Tensor: remainder,
        aten.remainder.Scalar: remainder,
        aten.remainder.Scalar_Tensor: remainder,
        aten.floor_divide.default: floor_divide,
        aten.floor_divide.Scalar: floor_divide,
        aten.div.Tensor_mode: _div_with_rounding,
        aten.div.Scalar_mode: _div_with_rounding,
        aten.logaddexp.default: logaddexp,
        aten.logaddexp2.default: logaddexp2,
        aten.log1p.default: log1p,
        aten.expm1.default: expm1,
        aten.scatter_reduce.two: scatter_reduce,
        aten.scatter.src: _make_scatter_decomposition(aten.scatter.src),
        aten.scatter_add.default: _make_scatter_decomposition(aten.scatter_add.default),
        aten.gather.default: gather,
        aten.avg_pool2d.default: make_avg_pool_decomposition(2),
        aten.avg_pool3d.default: make_avg_pool_decomposition(3),
        aten.scaled_dot_product_attention.default: attention,
        aten.rrelu.default: rrelu,
    }


def _promote_float_operands(x: Any, y: Any) -> tuple[Any, Any] | None:
    """Return the operands in the dtype of the result if that is a float; otherwise ``None``."""
    import torch

    dtype = torch.result_type(x, y)
    if not dtype.is_floating_point:
        return None
    return tuple(v.to(dtype) if isinstance(v, torch.Tensor) else torch.tensor(v, dtype=dtype) for v in (x, y))


def _exact_factor(value: float, x: torch.Tensor) -> Any:
    """Return a factor in a tensor's precision; the exporter rounds Python numbers to float32."""
    import torch

    if x.dtype != torch.double:
        return value
    found = torch.full((), 0.0, dtype=x.dtype)
    for _ in range(3):  # a double is the sum of three floats
        found, value = found + (part := _float32(value)), value - part
    return found


def _float32(value: float) -> float:
    return float(np.float32(value))


def remainder(x: Any, y: Any) -> Any:
    """Return ``torch.remainder`` for floats: the exact remainder, with the divisor's sign."""
    import torch

    operands = _promote_float_operands(x, y)
    if operands is None:
        return NotImplemented
    x, y = operands
    left = torch.fmod(x, y)
    return torch.where((left != 0) & ((left < 0) != (y < 0)), left + y, left)


def floor_divide(x: Any, y: Any) -> Any:
    """Return ``torch.floor_divide`` for floats, computed from the exact remainder as PyTorch and Python do."""
    import torch

    operands = _promote_float_operands(x, y)
    if operands is None:
        return NotImplemented
    x, y = operands
    left, rough = torch.fmod(x, y), x / y
    quotient = (x - left) / y
    quotient = torch.where((left != 0) & ((left < 0) != (y < 0)), quotient - 1, quotient)
    below = torch.floor(quotient)
    below = torch.where(quotient - below > 0.5, below + 1, below)
    return torch.where(y == 0, rough, torch.where(quotient == 0, rough * 0, below))


def _div_with_rounding(x: Any, y: Any, *, rounding_mode: str | None = None) -> Any:
    return floor_divide(x, y) if rounding_mode == "floor" else NotImplemented


def logaddexp(x: torch.Tensor, y: torch.Tensor) -> Any:
    """Return ``torch.logaddexp`` without overflowing exponentials."""
    import torch

    more = torch.maximum(x, y)
    return torch.where((x == y) & torch.isinf(x), more, more + log1p(torch.exp(-(x - y).abs())))


def logaddexp2(x: torch.Tensor, y: torch.Tensor) -> Any:
    """Return ``torch.logaddexp2`` without overflowing exponentials."""
    import torch

    more, ln_2 = torch.maximum(x, y), 0.6931471805599453
    less = log1p(torch.exp(-(x - y).abs() * ln_2)) / ln_2
    return torch.where((x == y) & torch.isinf(x), more, more + less)


def log1p(x: torch.Tensor) -> Any:
    """Return ``torch.log1p`` by Kahan's method, which restores the digits that ``1 + x`` loses."""
    import torch

    if not x.is_floating_point():
        x = x.to(torch.get_default_dtype())
    one_more = 1 + x
    corrected = torch.log(one_more) * (x / (one_more - 1))
    plain = (one_more == 1) | (one_more == math.inf)
    return torch.where(plain, x, corrected)


def expm1(x: torch.Tensor) -> Any:
    """Return ``torch.expm1`` by Kahan's method, which restores the digits that ``exp(x) - 1`` loses."""
    import torch

    if not x.is_floating_point():
        x = x.to(torch.get_default_dtype())
    power = torch.exp(x)
    less = power - 1
    corrected = less * (x / torch.log(power))
    return torch.where(power == 1, x, torch.where((less == -1) | torch.isinf(power), less, corrected))


def _narrow_to_index(x: torch.Tensor, index: torch.Tensor, axis: int | None = None) -> torch.Tensor:
    """Return the part of ``x`` that a smaller index reaches, along all axes but ``axis``."""
    for k, n in enumerate(index.shape if index.dim() == x.dim() else ()):
        if k != axis and n != x.shape[k]:
            x = x.narrow(k, 0, n)
    return x


def _make_scatter_decomposition(operator: Any) -> Callable[..., Any]:
    def scatter(x: torch.Tensor, dim: int, index: torch.Tensor, source: torch.Tensor) -> Any:
        if index.shape == source.shape:
            return NotImplemented
        return operator(x, dim, index, _narrow_to_index(source, index))

    return scatter


def gather(x: torch.Tensor, dim: int, index: torch.Tensor, *, sparse_grad: bool = False) -> Any:
    """Return ``torch.gather`` for an index that has fewer elements than ``x`` along the other axes."""
    import torch

    axis = dim % max(x.dim(), 1)
    if x.dim() == 0 or all(n == x.shape[k] for k, n in enumerate(index.shape) if k != axis):
        return NotImplemented
    return torch.gather(_narrow_to_index(x, index, axis), dim, index)


def scatter_reduce(
    x: torch.Tensor, dim: int, index: torch.Tensor, source: torch.Tensor, reduce: str, *, include_self: bool = True
) -> Any:
    """Return ``torch.scatter_reduce`` with means as sums over counts, also for an index smaller than its source."""
    import torch

    if reduce != "mean":
        if index.shape == source.shape:
            return NotImplemented
        return torch.scatter_reduce(x, dim, index, _narrow_to_index(source, index), reduce, include_self=include_self)
    source = _narrow_to_index(source, index)
    count = torch.ones_like(x)
    if not include_self:
        x, count = (torch.scatter(v, dim, index, torch.zeros_like(source)) for v in (x, count))
    total = torch.scatter_add(x, dim, index, source)
    count = torch.scatter_add(count, dim, index, torch.ones_like(source))
    return total / count if x.is_floating_point() else torch.floor_divide(total, count)


def _expand_to_axes(sizes: int | Sequence[int], axes: int) -> list[int]:
    """Return one size per axis; a single size applies to all axes."""
    found = [sizes] if isinstance(sizes, int) else list(sizes)
    return found * axes if len(found) == 1 else found


def make_avg_pool_decomposition(axes: int) -> Callable[..., Any]:
    """Return a function for average pooling along ``axes`` axes with ``divisor_override``."""
    import torch

    pool: Callable[..., Any] = torch.nn.functional.avg_pool3d if axes == 3 else torch.nn.functional.avg_pool2d

    def pooled(
        x: torch.Tensor, kernel: Sequence[int], stride: Any = (), padding: Any = 0, ceil_mode: bool = False,
        count_include_pad: bool = True, divisor_override: int | None = None,
    ) -> Any:  # fmt: skip
        if divisor_override is None or ceil_mode:
            return NotImplemented
        windows, steps, pads = (_expand_to_axes(v, axes) for v in (kernel, stride or kernel, padding))
        return pool(x, windows, steps, pads) * _exact_factor(math.prod(windows) / divisor_override, x)

    return pooled


def attention(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0, is_causal: bool = False, *, scale: float | None = None, enable_gqa: bool = False,
) -> Any:  # fmt: skip
    """Return ``scaled_dot_product_attention`` without dropout; a row whose keys are all masked gives 0."""
    import torch

    if attn_mask is None and query.dim() == 4 and query.dtype != torch.double and not enable_gqa:
        return NotImplemented
    if enable_gqa:
        key, value = (t.repeat_interleave(query.shape[-3] // t.shape[-3], -3) for t in (key, value))
    factor = _exact_factor(query.shape[-1] ** -0.5 if scale is None else scale, query)
    scores = query * factor @ key.transpose(-2, -1)
    if is_causal:
        attn_mask = torch.ones(scores.shape[-2:], dtype=torch.bool).tril()
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        scores = torch.where(attn_mask, scores, -math.inf)
    elif attn_mask is not None:
        scores = scores + attn_mask
    masked = scores.amax(-1, keepdim=True) == -math.inf
    shares = torch.softmax(torch.where(masked, 0.0, scores), -1)
    return torch.where(masked, 0.0, shares) @ value


def rrelu(x: torch.Tensor, lower: float = 1 / 8, upper: float = 1 / 3, training: bool = False, _: Any = None) -> Any:
    """Return ``torch.rrelu`` in inference mode."""
    import torch

    return NotImplemented if training else torch.where(x > 0, x, x * _exact_factor((lower + upper) / 2, x))
