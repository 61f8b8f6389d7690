"""The host's tensors beside a device that is traced: small ones are computed, large ones are memory nobody touches.

A model is built and cast on the host before it comes to the device; what is there costs the device nothing. Weights of
billions are asked for and never written: their pages do not exist. Whatever reads such a tensor gets another one, small
ones filled with a declared default.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch.utils._pytree import tree_map_only

from roller.insight.trace.pytorch.compat import TorchDispatchMode, aliased, argument_names, plain, takes_device, written

#: Elements of a tensor of the host that are computed; what is larger has no values.
MOST_COMPUTED = 1 << 16
_UNKNOWN = "_roller_unknown"


class Building(TorchDispatchMode):
    """Runs what the host does, for a model that is built outside of a trace."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operator."""
        with plain():
            return run(func, args, kwargs or {})


def run(func: Any, args: Any, kwargs: Any) -> Any:
    """Return what an operator gives none of whose arguments is of the device."""
    if takes_device(func) and not _named(kwargs.get("device")):
        tensors = list(tensors_of((*args, *kwargs.values())))
        if not tensors:
            return _made(func, args, kwargs)
    elif takes_device(func):  # a copy to the device, which reads nothing; or what is made there
        return func(*args, **kwargs)
    else:
        tensors = list(tensors_of((*args, *kwargs.values())))
    if not any(map(is_unknown, tensors)) or any(t.layout is not torch.strided for t in tensors):
        return func(*args, **kwargs)
    if written(func):
        return _written_into(func, args, kwargs)
    return func(*args, **kwargs) if aliased(func) else _by_shape(func, args, kwargs)


def is_unknown(tensor: torch.Tensor) -> bool:
    """Whether a tensor of the host has no values of its own."""
    return (
        not tensor.is_meta and tensor.layout is torch.strided
        and _UNKNOWN in tensor.untyped_storage().__dict__
    )  # fmt: skip


def unknown(shape: Sequence[int], stride: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    """Return a tensor of the host without values; a small one holds the declared default."""
    made = torch.empty_strided(shape, stride, dtype=dtype, device="cpu")
    forget(made)
    return made


def forget(tensor: torch.Tensor) -> None:
    """Say that the values of a tensor of the host are no longer known."""
    if tensor.layout is not torch.strided:
        return
    storage = tensor.untyped_storage()
    if _UNKNOWN not in storage.__dict__:
        storage.__dict__[_UNKNOWN] = True
        if tensor.numel() <= MOST_COMPUTED:
            tensor.fill_(default_of(tensor.dtype))


def default_of(dtype: torch.dtype) -> Any:
    """Return what is taken for a value that is read and not known: a flag is down, a number is one."""
    return False if dtype is torch.bool else 1.0 if dtype.is_floating_point or dtype.is_complex else 1


def tensors_of(values: Any) -> Iterator[torch.Tensor]:
    """Yield the tensors among arguments, in their order."""
    for value in values:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, (list, tuple)):
            yield from tensors_of(value)


def _named(device: Any) -> bool:
    """Whether a device that a call names is the one that is traced."""
    return device is not None and torch.device(device).type == "meta"


def _made(func: Any, args: Any, kwargs: Any) -> Any:
    """Return a tensor of arguments that are none."""
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
    return unknown(shape.shape, shape.stride(), shape.dtype)


def _written_into(func: Any, args: Any, kwargs: Any) -> Any:
    """Return what an operator gives that writes into arguments, whose values are then not known."""
    given = {name: value for (name, _, _), value in zip(argument_names(func), args, strict=False)}
    found = [given.get(name, kwargs.get(name)) for name in written(func)]
    for tensor in tensors_of(found):
        if not tensor.is_meta:
            forget(tensor)
    outputs = len(func._schema.returns)
    return None if not outputs else found[0] if outputs == 1 else tuple(found)


def _by_shape(func: Any, args: Any, kwargs: Any) -> Any:
    """Return tensors without values, of the shapes that an operator gives."""

    def shape(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.is_meta:
            return tensor
        return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="meta")

    origins = {**kwargs, "device": "meta"} if kwargs.get("device") is not None else kwargs
    if origins.get("pin_memory"):
        origins = {**origins, "pin_memory": False}
    try:
        made = func(*tree_map_only(torch.Tensor, shape, tuple(args)), **tree_map_only(torch.Tensor, shape, origins))
    except (NotImplementedError, RuntimeError):  # its shape depends on values: those of untouched memory
        return func(*args, **kwargs)
    return tree_map_only(torch.Tensor, lambda t: unknown(t.shape, t.stride(), t.dtype), made)
