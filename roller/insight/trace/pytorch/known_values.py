"""Values of the device's small tensors that follow from what is known: inputs, constants, and what is computed of them.

A step decides by values which branch it takes: a mask that is all ones is left out, lengths cut a batch. Beside a
storage of shapes alone lies one with numbers, as long as they are known; views of the one are views of the other.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._pytree import tree_map_only

from roller.insight.trace.pytorch import host_tensors
from roller.insight.trace.pytorch.compat import argument_names, plain, takes_device, written

#: Elements of a tensor whose values are followed.
MOST_FOLLOWED = 1 << 18
_KNOWN = "_roller_known"
_ASSUMED = "_roller_assumed"
_aten = torch.ops.aten
#: What gives memory as it is.
_EMPTY = frozenset(
    (_aten.empty.memory_format, _aten.empty_strided.default, _aten.empty_like.default, _aten.new_empty.default,
     _aten.new_empty_strided.default, _aten.empty_permuted.default)
)  # fmt: skip
#: What gives every element of its first argument a value that does not depend on the one it had.
_SETS = frozenset((_aten.copy_.default, _aten.fill_.Scalar, _aten.fill_.Tensor, _aten.zero_.default))


def value_of(tensor: torch.Tensor) -> torch.Tensor | None:
    """Return the values of a tensor on the host; ``None`` where they are not known."""
    if not tensor.is_meta:
        return None if host_tensors.is_unknown(tensor) else tensor
    if tensor.layout is not torch.strided:
        return None
    storage = tensor.untyped_storage().__dict__.get(_KNOWN)
    if storage is None:
        return None
    empty = torch.empty(0, dtype=tensor.dtype, device="cpu")
    return empty.set_(storage, tensor.storage_offset(), tensor.shape, tensor.stride())


def know(tensor: torch.Tensor, value: torch.Tensor) -> None:
    """Give a tensor of the device, which fills its storage, its values."""
    if tensor.layout is not torch.strided or value.layout is not torch.strided:
        return
    own = tensor.untyped_storage()
    twin = torch.empty(own.nbytes(), dtype=torch.uint8, device="cpu").untyped_storage()
    empty = torch.empty(0, dtype=tensor.dtype, device="cpu")
    empty.set_(twin, tensor.storage_offset(), tensor.shape, tensor.stride()).copy_(value)
    own.__dict__[_KNOWN] = twin


def unknow(tensor: torch.Tensor) -> None:
    """Say that the values of a tensor of the device are not known."""
    with plain():
        if tensor.layout is torch.strided:
            tensor.untyped_storage().__dict__.pop(_KNOWN, None)


def forget(func: Any, args: Any, kwargs: Any) -> None:
    """Say that what an operator writes into has other values now."""
    for tensor in _targets(func, args, kwargs):
        if tensor.is_meta and tensor.layout is torch.strided:
            tensor.untyped_storage().__dict__.pop(_KNOWN, None)
        elif not tensor.is_meta:
            host_tensors.forget(tensor)


def computed(func: Any, args: Any, kwargs: Any) -> Any:
    """Return what an operator gives on the host, where all its arguments are known; else ``NotImplemented``.

    What it writes into is changed with it.
    """
    if func in _EMPTY or torch.Tag.nondeterministic_seeded in func.tags:
        return NotImplemented
    values: dict[int, torch.Tensor] = {}
    targets = _targets(func, args, kwargs)
    if any(not tensor.is_meta for tensor in targets):  # it has been written into already
        return NotImplemented
    if func in _SETS:
        _prepare(targets[0])
    for tensor in host_tensors.tensors_of((*args, *kwargs.values())):
        value = value_of(tensor)
        if value is None or tensor.numel() > MOST_FOLLOWED:
            return NotImplemented
        values[id(tensor)] = value
    if takes_device(func):
        kwargs = {**kwargs, "device": torch.device("cpu")}
    try:
        return func(
            *tree_map_only(torch.Tensor, lambda t: values[id(t)], tuple(args)),
            **tree_map_only(torch.Tensor, lambda t: values[id(t)], kwargs),
        )
    except Exception:  # noqa: BLE001 - the trace goes by shapes; what has no values stays unknown
        return NotImplemented


def assumed_of(tensor: torch.Tensor) -> Any:
    """Return what is taken for the elements of a tensor of the device without values; a flag follows from numbers."""
    found = tensor.untyped_storage().__dict__.get(_ASSUMED) if tensor.layout is torch.strided else None
    return host_tensors.default_of(tensor.dtype) if found is None else found


def assume(func: Any, args: Any, kwargs: Any, result: Any) -> None:
    """Let a flag that is computed of unknown numbers be what it is for their declared defaults: 1.0 is finite.

    All elements of a tensor are taken as alike, so one stands for them.
    """
    if not isinstance(result, torch.Tensor) or result.dtype is not torch.bool or result.layout is not torch.strided:
        return
    storage = result.untyped_storage().__dict__
    storage.pop(_ASSUMED, None)
    if _KNOWN in storage or _targets(func, args, kwargs) or takes_device(func):
        return

    def one(tensor: torch.Tensor) -> torch.Tensor:
        value = value_of(tensor)
        return torch.tensor(assumed_of(tensor), dtype=tensor.dtype) if value is None else value

    try:
        storage[_ASSUMED] = bool(func(*tree_map_only(torch.Tensor, one, tuple(args)), **kwargs))
    except Exception:  # noqa: BLE001 - the trace goes by shapes; what cannot be told by one element keeps its default
        return


def follow(func: Any, args: Any, kwargs: Any, result: Any) -> None:
    """Give what an operator gave on the device the values that follow from those of its arguments."""
    made = [t for t in host_tensors.tensors_of((result,)) if t.is_meta]
    if any(t.numel() > MOST_FOLLOWED for t in made):
        forget(func, args, kwargs)
        return
    value = computed(func, args, kwargs)
    if value is NotImplemented:
        forget(func, args, kwargs)
        return
    for tensor, own in zip(host_tensors.tensors_of((result,)), host_tensors.tensors_of((value,)), strict=False):
        fresh = tensor.is_meta and _KNOWN not in tensor.untyped_storage().__dict__
        if fresh and tensor.shape == own.shape and tensor.dtype == own.dtype:
            know(tensor, own)


def _targets(func: Any, args: Any, kwargs: Any) -> list[torch.Tensor]:
    names = written(func)
    if not names:
        return []
    given = {name: value for (name, _, _), value in zip(argument_names(func), args, strict=False)}
    return list(host_tensors.tensors_of([given.get(name, kwargs.get(name)) for name in names]))


def _prepare(tensor: torch.Tensor) -> None:
    """Let a tensor of the device that is written as a whole, and fills its storage, have values to write into."""
    storage = tensor.untyped_storage()
    whole = tensor.layout is torch.strided and tensor.numel() * tensor.element_size() == storage.nbytes()
    if whole and _KNOWN not in storage.__dict__ and tensor.numel() <= MOST_FOLLOWED:
        know(tensor, torch.zeros(tensor.shape, dtype=tensor.dtype, device="cpu"))
