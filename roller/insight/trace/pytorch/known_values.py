"""Known values of small device tensors: inputs, constants, and results computed from them.

A step may branch on values: a mask of all ones is skipped, or lengths cut a batch. A meta storage has a twin storage on
the host as long as its values are known; a view of one storage corresponds to the same view of its twin.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._pytree import tree_map_only

from roller.insight.trace.pytorch import host_tensors
from roller.insight.trace.pytorch.compat import (
    has_device_argument,
    schema_arguments,
    without_torch_function,
    written_argument_names,
)

#: Maximum number of elements of a tensor whose values are tracked.
MOST_FOLLOWED = 1 << 18
_KNOWN = "_roller_known"
_ASSUMED = "_roller_assumed"
_aten = torch.ops.aten
#: Operators that return uninitialized memory.
_EMPTY = frozenset(
    (_aten.empty.memory_format, _aten.empty_strided.default, _aten.empty_like.default, _aten.new_empty.default,
     _aten.new_empty_strided.default, _aten.empty_permuted.default)
)  # fmt: skip
#: Operators that overwrite every element of their first argument.
_SETS = frozenset((_aten.copy_.default, _aten.fill_.Scalar, _aten.fill_.Tensor, _aten.zero_.default))


def known_value(tensor: torch.Tensor) -> torch.Tensor | None:
    """Return a tensor's values as a host tensor; ``None`` if they are unknown."""
    if not tensor.is_meta:
        return None if host_tensors.has_unknown_values(tensor) else tensor
    if tensor.layout is not torch.strided:
        return None
    storage = tensor.untyped_storage().__dict__.get(_KNOWN)
    if storage is None:
        return None
    empty = torch.empty(0, dtype=tensor.dtype, device="cpu")
    return empty.set_(storage, tensor.storage_offset(), tensor.shape, tensor.stride())


def set_known_value(tensor: torch.Tensor, value: torch.Tensor) -> None:
    """Set the values of a device tensor that fills its storage."""
    if tensor.layout is not torch.strided or value.layout is not torch.strided:
        return
    own = tensor.untyped_storage()
    twin = torch.empty(own.nbytes(), dtype=torch.uint8, device="cpu").untyped_storage()
    empty = torch.empty(0, dtype=tensor.dtype, device="cpu")
    empty.set_(twin, tensor.storage_offset(), tensor.shape, tensor.stride()).copy_(value)
    own.__dict__[_KNOWN] = twin


def discard_known_value(tensor: torch.Tensor) -> None:
    """Mark the values of a device tensor as unknown."""
    with without_torch_function():
        if tensor.layout is torch.strided:
            tensor.untyped_storage().__dict__.pop(_KNOWN, None)


def discard_written_values(func: Any, args: Any, kwargs: Any) -> None:
    """Mark the values of the arguments that an operator writes as unknown."""
    for tensor in _written_tensors(func, args, kwargs):
        if tensor.is_meta and tensor.layout is torch.strided:
            tensor.untyped_storage().__dict__.pop(_KNOWN, None)
        elif not tensor.is_meta:
            host_tensors.forget_values(tensor)


def compute_from_known_values(func: Any, args: Any, kwargs: Any) -> Any:
    """Return an operator's result on the host if all its arguments are known, otherwise ``NotImplemented``.

    Update the known values of written arguments.
    """
    if func in _EMPTY or torch.Tag.nondeterministic_seeded in func.tags:
        return NotImplemented
    values: dict[int, torch.Tensor] = {}
    targets = _written_tensors(func, args, kwargs)
    if any(not tensor.is_meta for tensor in targets):  # it has been written into already
        return NotImplemented
    if func in _SETS:
        _allocate_known_values(targets[0])
    for tensor in host_tensors.iterate_tensors((*args, *kwargs.values())):
        value = known_value(tensor)
        if value is None or tensor.numel() > MOST_FOLLOWED:
            return NotImplemented
        values[id(tensor)] = value
    if has_device_argument(func):
        kwargs = {**kwargs, "device": torch.device("cpu")}
    try:
        return func(
            *tree_map_only(torch.Tensor, lambda t: values[id(t)], tuple(args)),
            **tree_map_only(torch.Tensor, lambda t: values[id(t)], kwargs),
        )
    except Exception:  # noqa: BLE001 - the trace needs only shapes; the result stays unknown
        return NotImplemented


def assumed_element_value(tensor: torch.Tensor) -> Any:
    """Return the assumed value for the elements of a device tensor without known values."""
    found = tensor.untyped_storage().__dict__.get(_ASSUMED) if tensor.layout is torch.strided else None
    return host_tensors.declared_default_value(tensor.dtype) if found is None else found


def assume_value_of_result_flag(func: Any, args: Any, kwargs: Any, result: Any) -> None:
    """Assume that a flag computed from unknown values is what it would be for their defaults; e.g. 1.0 is finite.

    All elements of a tensor are assumed to be equal, so only one is computed.
    """
    if not isinstance(result, torch.Tensor) or result.dtype is not torch.bool or result.layout is not torch.strided:
        return
    storage = result.untyped_storage().__dict__
    storage.pop(_ASSUMED, None)
    if _KNOWN in storage or _written_tensors(func, args, kwargs) or has_device_argument(func):
        return

    def one_element(tensor: torch.Tensor) -> torch.Tensor:
        value = known_value(tensor)
        return torch.tensor(assumed_element_value(tensor), dtype=tensor.dtype) if value is None else value

    try:
        storage[_ASSUMED] = bool(func(*tree_map_only(torch.Tensor, one_element, tuple(args)), **kwargs))
    except Exception:  # noqa: BLE001 - the trace needs only shapes; a flag that cannot be computed keeps its default
        return


def propagate_known_values(func: Any, args: Any, kwargs: Any, result: Any) -> None:
    """Set the known values of an operator's result if they follow from those of its arguments."""
    made = [t for t in host_tensors.iterate_tensors((result,)) if t.is_meta]
    if any(t.numel() > MOST_FOLLOWED for t in made):
        discard_written_values(func, args, kwargs)
        return
    value = compute_from_known_values(func, args, kwargs)
    if value is NotImplemented:
        discard_written_values(func, args, kwargs)
        return
    for tensor, own in zip(
        host_tensors.iterate_tensors((result,)), host_tensors.iterate_tensors((value,)), strict=False
    ):
        fresh = tensor.is_meta and _KNOWN not in tensor.untyped_storage().__dict__
        if fresh and tensor.shape == own.shape and tensor.dtype == own.dtype:
            set_known_value(tensor, own)


def _written_tensors(func: Any, args: Any, kwargs: Any) -> list[torch.Tensor]:
    names = written_argument_names(func)
    if not names:
        return []
    given = {name: value for (name, _, _), value in zip(schema_arguments(func), args, strict=False)}
    return list(host_tensors.iterate_tensors([given.get(name, kwargs.get(name)) for name in names]))


def _allocate_known_values(tensor: torch.Tensor) -> None:
    """Allocate known values for a device tensor that fills its storage and is fully overwritten."""
    storage = tensor.untyped_storage()
    whole = tensor.layout is torch.strided and tensor.numel() * tensor.element_size() == storage.nbytes()
    if whole and _KNOWN not in storage.__dict__ and tensor.numel() <= MOST_FOLLOWED:
        set_known_value(tensor, torch.zeros(tensor.shape, dtype=tensor.dtype, device="cpu"))
