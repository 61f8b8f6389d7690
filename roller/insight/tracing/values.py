"""What a trace says of values, which it does not have: few are known, for all others a default is declared.

An operator whose result depends on values (``item``, ``nonzero``) never fails: it gets the default, and the report says
where. Constants that are written and then read (the ``found_inf`` of a gradient scaler) are followed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch

from roller.insight.tracing.compat import argument_names, written

_aten = torch.ops.aten
Rules = Mapping[Any, Callable[..., Any]]
_CONSTANT = "_roller_constant"

#: A value that is read and not known: a flag is down, a count is one, a number is one.
_DEFAULTS: Mapping[bool, Any] = {True: False, False: 1}


class Values:
    """Runs operators on shapes.

    Parameters
    ----------
    share_nonzero
        Share of a mask's elements that are true, where a shape depends on it.
    where
        Says in one word where the model is, for warnings.
    rules
        What operators give on the device traced for, where their results on shapes alone differ.
    """

    def __init__(self, share_nonzero: float, where: Callable[[], str], rules: Rules | None = None) -> None:
        self.share_nonzero = share_nonzero
        self.warnings: dict[str, None] = {}
        self._where = where
        self._fills: Mapping[Any, int] = {
            _aten.full.default: 1, _aten.full_like.default: 1, _aten.fill_.Scalar: 1,
            _aten.zeros.default: 0, _aten.zeros_like.default: 0, _aten.zero_.default: 0,
        }  # fmt: skip
        self._rules: Mapping[Any, Callable[..., Any]] = {
            _aten._local_scalar_dense.default: self._item,
            _aten._to_copy.default: self._copy,
            _aten.copy_.default: self._copy_into,
            _aten.nonzero.default: self._nonzero,
            _aten.masked_select.default: self._masked_select,
            _aten.index.Tensor: self._index,
            _aten.index_put_.default: self._index_put,
            _aten.equal.default: self._equal,
            _aten.allclose.default: self._equal,
            _aten._unique2.default: self._unique,
            _aten.bincount.default: self._bincount,
            _aten.repeat_interleave.Tensor: self._repeats,
            _aten._cudnn_rnn.default: self._recurrent,
            _aten._cudnn_rnn_backward.default: self._recurrent_backward,
            _aten._thnn_fused_lstm_cell.default: self._lstm_cell,
            _aten._amp_foreach_non_finite_check_and_unscale_.default: self._unscale,
            _aten._amp_update_scale_.default: self._update_scale,
            **(rules or {}),
        }

    def run(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Return what an operator gives, by shapes."""
        rule = self._rules.get(func)
        for name in written(func) if rule not in (self._unscale, self._update_scale) else ():
            self._forget(args, kwargs, func, name)
        result = func(*args, **kwargs) if rule is None else rule(func, *args, **kwargs)
        if func in self._fills and result.is_meta:
            result.untyped_storage().__dict__[_CONSTANT] = args[1] if self._fills[func] else 0
        return result

    @staticmethod
    def _forget(args: Any, kwargs: Any, func: Any, name: str) -> None:
        place = [known for known, _, _ in argument_names(func)].index(name)
        value = args[place] if place < len(args) else kwargs.get(name)
        for tensor in value if isinstance(value, (list, tuple)) else (value,):
            if isinstance(tensor, torch.Tensor):
                tensor.untyped_storage().__dict__.pop(_CONSTANT, None)

    def warn(self, what: str) -> None:
        """Keep a sentence for the report, once."""
        self.warnings[f"{self._where()}: {what}"] = None

    def _read(self, dtype: torch.dtype, what: str) -> Any:
        value = (dtype.is_floating_point and 1.0) or _DEFAULTS[dtype is torch.bool]
        self.warn(f"{what} reads a value that a trace does not have; {value} is taken for it.")
        return value

    def _item(self, func: Any, tensor: torch.Tensor) -> Any:
        if not tensor.is_meta:
            return func(tensor)
        known = tensor.untyped_storage().__dict__.get(_CONSTANT)
        return self._read(tensor.dtype, "item()") if known is None else known

    def _copy(self, func: Any, tensor: torch.Tensor, **kwargs: Any) -> Any:
        device = kwargs.get("device")
        if not tensor.is_meta or device is None or device.type == "meta":
            result = func(tensor, **kwargs)
            known = tensor.untyped_storage().__dict__.get(_CONSTANT)
            if known is not None:
                result.untyped_storage().__dict__[_CONSTANT] = known
            return result
        dtype = kwargs.get("dtype") or tensor.dtype
        return torch.full(tensor.shape, self._read(dtype, "a copy to the host"), dtype=dtype, device=device)

    def _copy_into(self, func: Any, target: torch.Tensor, source: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        if source.is_meta and not target.is_meta:
            return target.fill_(self._read(target.dtype, "a copy to the host"))
        return func(target, source, *args, **kwargs)

    def _count(self, elements: int) -> int:
        share = self.share_nonzero
        self.warn(f"a shape depends on the values of a mask; {share:.3g} of it is taken as true (share_nonzero).")
        return math.ceil(elements * share)

    def _nonzero(self, func: Any, mask: torch.Tensor) -> Any:
        if not mask.is_meta:
            return func(mask)
        # Kernels write the transposed: one row of indices for each axis.
        return torch.empty((mask.dim(), self._count(mask.numel())), dtype=torch.int64, device=mask.device).t()

    def _masked_select(self, func: Any, tensor: torch.Tensor, mask: torch.Tensor) -> Any:
        if not mask.is_meta:
            return func(tensor, mask)
        both = math.prod(torch.broadcast_shapes(tensor.shape, mask.shape))
        return torch.empty(self._count(both), dtype=tensor.dtype, device=tensor.device)

    def _numbers(self, indices: Any) -> Any:
        """Return indices without masks: each is as many numbers as it has axes."""
        found: list[Any] = []
        for index in indices:
            if isinstance(index, torch.Tensor) and index.is_meta and index.dtype in (torch.bool, torch.uint8):
                count = self._count(index.numel())
                found += [torch.empty(count, dtype=torch.int64, device=index.device) for _ in range(index.dim())]
            else:
                found.append(index)
        return found

    def _index(self, func: Any, tensor: torch.Tensor, indices: Any) -> Any:
        return func(tensor, self._numbers(indices))

    def _index_put(self, func: Any, tensor: torch.Tensor, indices: Any, values: Any, *args: Any) -> Any:
        return tensor if tensor.is_meta else func(tensor, indices, values, *args)

    def _equal(self, func: Any, one: torch.Tensor, other: torch.Tensor, *rest: Any, **kwargs: Any) -> Any:
        if not (one.is_meta or other.is_meta):
            return func(one, other, *rest, **kwargs)
        return bool(self._read(torch.bool, "a comparison"))

    def _unique(self, func: Any, tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        if not tensor.is_meta:
            return func(tensor, *args, **kwargs)
        self.warn("the number of distinct values is not known; all are taken as distinct.")
        flat = torch.empty(tensor.numel(), dtype=tensor.dtype, device=tensor.device)
        numbers = torch.empty(tensor.shape, dtype=torch.int64, device=tensor.device)
        return flat, numbers, torch.empty(tensor.numel(), dtype=torch.int64, device=tensor.device)

    def _bincount(self, func: Any, tensor: torch.Tensor, weights: Any = None, minlength: int = 0) -> Any:
        if not tensor.is_meta:
            return func(tensor, weights, minlength)
        self.warn("bincount's length depends on values; minlength is taken for it.")
        dtype = torch.int64 if weights is None else torch.float64 if weights.dtype != torch.float32 else torch.float32
        return torch.empty(max(minlength, 1), dtype=dtype, device=tensor.device)

    def _repeats(self, func: Any, repeats: torch.Tensor, output_size: int | None = None, **kwargs: Any) -> Any:
        if not repeats.is_meta:
            return func(repeats, output_size=output_size)
        if output_size is None:
            output_size = repeats.numel()
            self.warn("the sum of repeats is not known; each is taken as one.")
        return torch.empty(output_size, dtype=repeats.dtype, device=repeats.device)

    def _recurrent(self, func: Any, inputs: torch.Tensor, weights: Any, *rest: Any) -> Any:
        """Return shapes of cuDNN's recurrent layers; the reserve holds gates and states of all steps."""
        (_, weight_buffer, hx, cx, mode, hidden, projected, layers, _, _, train, both, sizes, _) = rest
        directions, width = 2 if both else 1, projected or hidden
        if sizes:
            out_shape: tuple[int, ...] = (inputs.shape[0], width * directions)
            positions = inputs.shape[0]
        else:
            out_shape = (inputs.shape[0], inputs.shape[1], width * directions)
            positions = inputs.shape[0] * inputs.shape[1]
        output = inputs.new_empty(out_shape)
        gates = {2: 4 + 2, 3: 3 + 2}.get(mode, 1 + 1)
        elements = layers * directions * positions * hidden * gates if train else 0
        reserve = torch.empty(elements * inputs.element_size(), dtype=torch.uint8, device=inputs.device)
        cy = torch.empty(0, device=inputs.device) if cx is None else cx.new_empty(cx.shape)
        buffer = weight_buffer
        if buffer is None:
            buffer = inputs.new_empty(sum(weight.numel() for weight in weights))
        return output, hx.new_empty(hx.shape), cy, reserve, buffer

    def _recurrent_backward(self, func: Any, inputs: torch.Tensor, weights: Any, *rest: Any) -> Any:
        _, _, hx, cx = rest[:4]
        mask = rest[-1]
        dx = inputs.new_empty(inputs.shape)
        dhx = hx.new_empty(hx.shape) if mask[1] else hx.new_empty(0)
        dcx = cx.new_empty(cx.shape) if cx is not None and mask[2] else hx.new_empty(0)
        if not mask[3]:
            return dx, dhx, dcx, [w.new_empty(0) for w in weights]
        # One buffer of all gradients; those of the weights are views of it.
        flat = inputs.new_zeros(sum(weight.numel() for weight in weights))
        grads, offset = [], 0
        for weight in weights:
            grads.append(flat[offset : offset + weight.numel()].view(weight.shape))
            offset += weight.numel()
        return dx, dhx, dcx, grads

    def _lstm_cell(self, func: Any, gates: torch.Tensor, hidden: torch.Tensor, cx: torch.Tensor, *_: Any) -> Any:
        return cx.new_empty(cx.shape), cx.new_empty(cx.shape), gates.new_empty(gates.shape)

    def _unscale(self, func: Any, *_: Any) -> None:
        """Gradients are taken as finite."""

    def _update_scale(self, func: Any, scale: torch.Tensor, *_: Any) -> Any:
        return scale
