"""Handles data-dependent values: a few are known, and the others take declared defaults.

An operator whose result depends on values (``item``, ``nonzero``) never fails: the default is taken for an unknown
value, and the report names the line. Values that follow from inputs and constants are known (``known_values``).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.utils._pytree import tree_map_only

from roller.insight.trace.pytorch import dynamic_output_operators, host_tensors, known_values
from roller.insight.trace.pytorch.meta_result_cache import MetaResultCache

_aten = torch.ops.aten
_MASKS = (torch.bool, torch.uint8)
#: Operators with data-dependent output size.
_SHAPED = frozenset(
    (_aten.nonzero.default, _aten.masked_select.default, _aten._unique2.default, _aten.bincount.default,
     _aten.repeat_interleave.Tensor)
)  # fmt: skip
Rules = Mapping[Any, Callable[..., Any]]


class MetaOperators:
    """Runs operators on meta tensors, with known values or declared defaults.

    Parameters
    ----------
    share_nonzero
        Share of a mask's elements that are assumed to be true if a shape depends on the mask; with ``None``, known
        masks are counted, and all elements of unknown masks are taken as true.
    where
        Function that returns the current location in the model, for warnings.
    rules
        Maps each operator whose result on the traced device differs from that on meta tensors to a function that
        returns the traced device's result.
    hosted
        Whether the host differs from the traced device.
    """

    def __init__(
        self, share_nonzero: float | None, where: Callable[[], str], rules: Rules | None = None, *, hosted: bool = True
    ) -> None:
        self.share_nonzero = share_nonzero
        self.warnings: dict[str, None] = {}
        self._where = where
        self.hosted = hosted
        self._results = MetaResultCache()
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
            _aten.repeat_interleave.Tensor: self._repeat_interleave,
            _aten._cudnn_rnn.default: self._cudnn_rnn,
            _aten._cudnn_rnn_backward.default: self._cudnn_rnn_backward,
            _aten._thnn_fused_lstm_cell.default: self._lstm_cell,
            _aten._ctc_loss_backward.default: self._ctc_loss_backward,
            _aten._ctc_loss_backward.Tensor: self._ctc_loss_backward,
            _aten._amp_foreach_non_finite_check_and_unscale_.default: self._unscale,
            _aten._amp_update_scale_.default: self._update_scale,
            **(rules or {}),
        }

    def run_operator(self, func: Any, args: Any, kwargs: Any, ours: bool = True) -> Any:
        """Return an operator's result on meta tensors; ``ours`` says whether an argument is on the device."""
        rule = self._rules.get(func)
        if rule in (self._unscale, self._update_scale):
            return rule(func, *args, **kwargs)
        if rule is not None and rule not in (self._copy, self._copy_into):
            value = (
                known_values.compute_from_known_values(func, args, kwargs)
                if ours and self._is_computed_from_known_values(func)
                else NotImplemented
            )
            if value is not NotImplemented:
                self._warn_if_shape_depends_on_values(func, args)
                return tree_map_only(torch.Tensor, self._to_device, value)
            result = rule(func, *args, **kwargs)
        elif rule is not None:
            result = rule(func, *args, **kwargs)
        elif ours or not self.hosted:
            result = self._run_on_meta(func, args, kwargs)
        else:
            result = host_tensors.run_on_host(func, args, kwargs)
        if ours or any(t.is_meta for t in host_tensors.iterate_tensors((result,))):
            known_values.propagate_known_values(func, args, kwargs, result)
            known_values.assume_value_of_result_flag(func, args, kwargs, result)
        return result

    def _run_on_meta(self, func: Any, args: Any, kwargs: Any) -> Any:
        try:
            return self._results.run(func, args, kwargs)
        except RuntimeError as error:
            if not dynamic_output_operators.is_data_dependent_error(error):
                raise
        result, rows = dynamic_output_operators.largest_possible_result(func, args, kwargs)
        self.add_warning(f"the size of what {func.name()} gives depends on values; all {rows} rows are taken.")
        return result

    def _is_computed_from_known_values(self, func: Any) -> bool:
        """Return whether the result of a data-dependent operator is computed from known values."""
        return self.share_nonzero is None or func in (_aten._local_scalar_dense.default, _aten.equal.default)

    def _warn_if_shape_depends_on_values(self, func: Any, args: Any) -> None:
        masks = args[1] if func is _aten.index.Tensor else ()
        if func in _SHAPED or any(isinstance(t, torch.Tensor) and t.dtype in _MASKS for t in masks):
            self.add_warning("a shape depends on values; those of the inputs given are taken.")

    @staticmethod
    def _to_device(value: torch.Tensor) -> torch.Tensor:
        made = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="meta")
        known_values.set_known_value(made, value)
        return made

    def add_note(self, sentence: str) -> None:
        """Add a sentence without a location to the report, once."""
        self.warnings[sentence] = None

    def add_warning(self, what: str) -> None:
        """Add a sentence with the current location to the report, once."""
        self.warnings[f"{self._where()}: {what}"] = None

    def default_for_unknown_value(self, dtype: torch.dtype, what: str) -> Any:
        """Return the declared default for an unknown value that ``what`` reads; add a warning."""
        return self._default_value_with_warning(host_tensors.declared_default_value(dtype), what)

    def _default_value_with_warning(self, value: Any, what: str) -> Any:
        self.add_warning(f"{what} reads a value that a trace does not have; {value} is taken for it.")
        return value

    def _item(self, func: Any, tensor: torch.Tensor) -> Any:
        value = known_values.known_value(tensor)
        return (
            self._default_value_with_warning(known_values.assumed_element_value(tensor), "item()")
            if value is None
            else func(value)
        )

    def _copy(self, func: Any, tensor: torch.Tensor, **kwargs: Any) -> Any:
        device = kwargs.get("device")
        if tensor.is_meta and device is not None and device.type != "meta":  # to the host
            value = known_values.known_value(tensor)
            if value is not None:
                return func(value, **kwargs)
            shape = func(tensor, **{**kwargs, "device": torch.device("meta"), "pin_memory": False})
            return host_tensors.tensor_without_values(shape.shape, shape.stride(), shape.dtype)
        return (
            func(tensor, **kwargs)
            if tensor.is_meta or not self.hosted
            else host_tensors.run_on_host(func, (tensor,), kwargs)
        )

    def _copy_into(self, func: Any, target: torch.Tensor, source: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        if source.is_meta and not target.is_meta:
            value = known_values.known_value(source)
            if value is not None:
                return func(target, value, *args, **kwargs)
            host_tensors.forget_values(target)
            return target
        if target.is_meta or source.is_meta or not self.hosted:
            return func(target, source, *args, **kwargs)
        return host_tensors.run_on_host(func, (target, source, *args), kwargs)

    def _count_true(self, mask: torch.Tensor, elements: int) -> int:
        share, value = self.share_nonzero, None if self.share_nonzero is not None else known_values.known_value(mask)
        if value is not None:
            count: int = int(torch.count_nonzero(value)) * elements // max(1, mask.numel())
            self.add_warning(f"a shape depends on the values of a mask; {count} of its {elements} elements are true.")
            return count
        share = 1.0 if share is None else share
        self.add_warning(
            f"a shape depends on the values of a mask; {share:.3g} of it is taken as true (share_nonzero)."
        )
        return math.ceil(elements * share)

    def _nonzero(self, func: Any, mask: torch.Tensor) -> Any:
        if not mask.is_meta:
            return func(mask)
        # Kernels write the transpose: one row of indices for each axis.
        count = self._count_true(mask, mask.numel())
        return torch.empty((mask.dim(), count), dtype=torch.int64, device=mask.device).t()

    def _masked_select(self, func: Any, tensor: torch.Tensor, mask: torch.Tensor) -> Any:
        if not mask.is_meta:
            return func(tensor, mask)
        both = math.prod(torch.broadcast_shapes(tensor.shape, mask.shape))
        return torch.empty(self._count_true(mask, both), dtype=tensor.dtype, device=tensor.device)

    def _masks_to_indices(self, indices: Any) -> Any:
        """Return indices with each mask replaced by one index tensor per axis."""
        found: list[Any] = []
        for index in indices:
            if isinstance(index, torch.Tensor) and index.is_meta and index.dtype in _MASKS:
                count = self._count_true(index, index.numel())
                found += [torch.empty(count, dtype=torch.int64, device=index.device) for _ in range(index.dim())]
            else:
                found.append(index)
        return found

    def _index(self, func: Any, tensor: torch.Tensor, indices: Any) -> Any:
        return func(tensor, self._masks_to_indices(indices))

    def _index_put(self, func: Any, tensor: torch.Tensor, indices: Any, values: Any, *args: Any) -> Any:
        return tensor if tensor.is_meta else func(tensor, indices, values, *args)

    def _equal(self, func: Any, one: torch.Tensor, other: torch.Tensor, *rest: Any, **kwargs: Any) -> Any:
        if not (one.is_meta or other.is_meta):
            return func(one, other, *rest, **kwargs)
        return bool(self.default_for_unknown_value(torch.bool, "a comparison"))

    def _unique(self, func: Any, tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        if not tensor.is_meta:
            return func(tensor, *args, **kwargs)
        self.add_warning("the number of distinct values is not known; all are taken as distinct.")
        flat = torch.empty(tensor.numel(), dtype=tensor.dtype, device=tensor.device)
        numbers = torch.empty(tensor.shape, dtype=torch.int64, device=tensor.device)
        return flat, numbers, torch.empty(tensor.numel(), dtype=torch.int64, device=tensor.device)

    def _bincount(self, func: Any, tensor: torch.Tensor, weights: Any = None, minlength: int = 0) -> Any:
        if not tensor.is_meta:
            return func(tensor, weights, minlength)
        self.add_warning("bincount's length depends on values; minlength is taken for it.")
        dtype = torch.int64 if weights is None else torch.float64 if weights.dtype != torch.float32 else torch.float32
        return torch.empty(max(minlength, 1), dtype=dtype, device=tensor.device)

    def _repeat_interleave(
        self, func: Any, repeats: torch.Tensor, output_size: int | None = None, **kwargs: Any
    ) -> Any:
        if not repeats.is_meta:
            return func(repeats, output_size=output_size)
        if output_size is None:
            output_size = repeats.numel()
            self.add_warning("the sum of repeats is not known; each is taken as one.")
        return torch.empty(output_size, dtype=repeats.dtype, device=repeats.device)

    def _cudnn_rnn(self, func: Any, inputs: torch.Tensor, weights: Any, *rest: Any) -> Any:
        """Return the results of cuDNN's recurrent layers; the reserve space holds the gates and states of all steps."""
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

    def _cudnn_rnn_backward(self, func: Any, inputs: torch.Tensor, weights: Any, *rest: Any) -> Any:
        _, _, hx, cx = rest[:4]
        mask = rest[-1]
        dx = inputs.new_empty(inputs.shape)
        dhx = hx.new_empty(hx.shape) if mask[1] else hx.new_empty(0)
        dcx = cx.new_empty(cx.shape) if cx is not None and mask[2] else hx.new_empty(0)
        if not mask[3]:
            return dx, dhx, dcx, [w.new_empty(0) for w in weights]
        # One buffer for all gradients of weights, which are views of it.
        flat = inputs.new_zeros(sum(weight.numel() for weight in weights))
        grads, offset = [], 0
        for weight in weights:
            grads.append(flat[offset : offset + weight.numel()].view(weight.shape))
            offset += weight.numel()
        return dx, dhx, dcx, grads

    def _lstm_cell(self, func: Any, gates: torch.Tensor, hidden: torch.Tensor, cx: torch.Tensor, *_: Any) -> Any:
        return cx.new_empty(cx.shape), cx.new_empty(cx.shape), gates.new_empty(gates.shape)

    def _ctc_loss_backward(self, func: Any, grad: torch.Tensor, log_probs: torch.Tensor, *_: Any, **__: Any) -> Any:
        """Return gradients, shape ``(frames, batch, letters)``; PyTorch has no meta kernel for this operator."""
        return torch.empty(log_probs.shape, dtype=log_probs.dtype, device=log_probs.device)

    def _unscale(self, func: Any, *_: Any) -> None:
        """Do nothing: gradients are assumed to be finite."""

    def _update_scale(self, func: Any, scale: torch.Tensor, *_: Any) -> Any:
        return scale
