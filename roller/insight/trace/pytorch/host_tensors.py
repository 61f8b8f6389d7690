"""Host tensors during a trace: small ones are computed, and the memory of large ones is never touched.

A model is built and cast on the host before it is moved to the device, at no cost to the device. Weights with billions
of elements are allocated but never written, so their pages are never mapped. An operator that reads such a tensor
returns a tensor without values, which is filled with a declared default if it is small.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch.utils._pytree import tree_map_only

from roller.insight.trace.pytorch.compat import (
    TorchDispatchMode,
    has_device_argument,
    returns_only_views,
    schema_arguments,
    without_torch_function,
    written_argument_names,
)

#: Maximum number of elements of a host tensor that is computed; larger tensors have no values.
MOST_COMPUTED = 1 << 16
_UNKNOWN = "_roller_unknown"


class HostOperatorMode(TorchDispatchMode):
    """Runs host operators for a model that is built outside a trace."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operator."""
        with without_torch_function():
            return run_on_host(func, args, kwargs or {})


def run_on_host(func: Any, args: Any, kwargs: Any) -> Any:
    """Return the result of an operator that has no arguments on the device."""
    if has_device_argument(func) and not _is_traced_device(kwargs.get("device")):
        tensors = list(iterate_tensors((*args, *kwargs.values())))
        if not tensors:
            return _create_tensor(func, args, kwargs)
    elif has_device_argument(func):  # a copy to the device, which reads nothing, or a tensor created there
        return func(*args, **kwargs)
    else:
        tensors = list(iterate_tensors((*args, *kwargs.values())))
    if not any(map(has_unknown_values, tensors)) or any(t.layout is not torch.strided for t in tensors):
        return func(*args, **kwargs)
    if written_argument_names(func):
        return _run_in_place(func, args, kwargs)
    return func(*args, **kwargs) if returns_only_views(func) else _run_on_meta(func, args, kwargs)


def has_unknown_values(tensor: torch.Tensor) -> bool:
    """Return whether a host tensor has no values."""
    return (
        not tensor.is_meta and tensor.layout is torch.strided
        and _UNKNOWN in tensor.untyped_storage().__dict__
    )  # fmt: skip


def tensor_without_values(shape: Sequence[int], stride: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    """Return a host tensor without values; a small one is filled with the declared default."""
    made = torch.empty_strided(shape, stride, dtype=dtype, device="cpu")
    forget_values(made)
    return made


def forget_values(tensor: torch.Tensor) -> None:
    """Mark the values of a host tensor as unknown."""
    if tensor.layout is not torch.strided:
        return
    storage = tensor.untyped_storage()
    if _UNKNOWN not in storage.__dict__:
        storage.__dict__[_UNKNOWN] = True
        if tensor.numel() <= MOST_COMPUTED:
            tensor.fill_(declared_default_value(tensor.dtype))


def declared_default_value(dtype: torch.dtype) -> Any:
    """Return the declared default for an unknown value: False for a flag, 1 for a number."""
    return False if dtype is torch.bool else 1.0 if dtype.is_floating_point or dtype.is_complex else 1


def iterate_tensors(values: Any) -> Iterator[torch.Tensor]:
    """Yield the tensors among nested arguments, in order."""
    for value in values:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, (list, tuple)):
            yield from iterate_tensors(value)


def _is_traced_device(device: Any) -> bool:
    """Return whether a device is the traced one."""
    return device is not None and torch.device(device).type == "meta"


def _create_tensor(func: Any, args: Any, kwargs: Any) -> Any:
    """Return the tensor that an operator without tensor arguments creates; a large one has no values."""
    if kwargs.get("pin_memory"):
        kwargs = {**kwargs, "pin_memory": False}
    if kwargs.get("layout") not in (None, torch.strided):
        return func(*args, **kwargs)
    try:
        shape = func(*args, **{**kwargs, "device": "meta"})
    except (NotImplementedError, RuntimeError):  # no rule for its shape
        return func(*args, **kwargs)
    if not isinstance(shape, torch.Tensor) or shape.numel() <= MOST_COMPUTED:
        return func(*args, **kwargs)
    return tensor_without_values(shape.shape, shape.stride(), shape.dtype)


def _run_in_place(func: Any, args: Any, kwargs: Any) -> Any:
    """Return the result of an in-place operator; the values of its written arguments become unknown."""
    given = {name: value for (name, _, _), value in zip(schema_arguments(func), args, strict=False)}
    found = [given.get(name, kwargs.get(name)) for name in written_argument_names(func)]
    for tensor in iterate_tensors(found):
        if not tensor.is_meta:
            forget_values(tensor)
    outputs = len(func._schema.returns)
    return None if not outputs else found[0] if outputs == 1 else tuple(found)


def _run_on_meta(func: Any, args: Any, kwargs: Any) -> Any:
    """Return tensors without values that have the shapes of an operator's result."""

    def to_meta(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.is_meta:
            return tensor
        return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="meta")

    origins = {**kwargs, "device": "meta"} if kwargs.get("device") is not None else kwargs
    if origins.get("pin_memory"):
        origins = {**origins, "pin_memory": False}
    try:
        made = func(*tree_map_only(torch.Tensor, to_meta, tuple(args)), **tree_map_only(torch.Tensor, to_meta, origins))
    except (NotImplementedError, RuntimeError):  # a data-dependent shape: computed from untouched memory
        return func(*args, **kwargs)
    return tree_map_only(torch.Tensor, lambda t: tensor_without_values(t.shape, t.stride(), t.dtype), made)
