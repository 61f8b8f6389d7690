"""The names of PyTorch that move between releases or are spelled with an underscore; nothing else here imports them."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import cache
from types import FunctionType
from typing import Any

import torch
from torch.autograd.function import _SingleLevelFunction as OuterFunction
from torch.overrides import TorchFunctionMode
from torch.utils._device import _device_constructors as device_constructors
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._python_dispatch import _disable_current_modes as without_modes

__all__ = [
    "OuterFunction", "TorchDispatchMode", "TorchFunctionMode", "aliased", "argument_names", "backward_functions",
    "default_device", "device_constructors", "plain", "takes_device", "unguarded", "without_modes", "writes_by_name",
    "written",
]  # fmt: skip

#: Ask, in a Python function of PyTorch, whether a mode or a subclass takes the call over.
_GUARDS = ("has_torch_function", "has_torch_function_unary", "has_torch_function_variadic")
#: Replaced while a trace is made, so that it knows when backward begins and ends.
backward_functions = ((torch.autograd, "backward"), (torch.autograd, "grad"))


def default_device() -> torch.device | None:
    """Return what ``torch.set_default_device`` was told; ``None`` for nothing."""
    context = getattr(getattr(torch, "_GLOBAL_DEVICE_CONTEXT", None), "device_context", None)
    return None if context is None else context.device


def plain() -> AbstractContextManager[Any]:
    """Return a scope in which calls reach PyTorch past every mode and subclass."""
    scope: AbstractContextManager[Any] = torch._C.DisableTorchFunction()
    return scope


@cache
def unguarded(function: Any) -> Callable[..., Any] | None:
    """Return a Python function of PyTorch without its question whether a mode takes it over; ``None`` if it asks none.

    What it calls must come to the mode, but the function itself would come back for ever.
    """
    # What asks by way of a module (those that set initial values) cannot be told, and needs no mode inside either.
    guards = [name for name in _GUARDS if name in function.__code__.co_names and name in function.__globals__]
    # A method that hands on to the one of its base in C++ would be given back by it.
    if not guards or "super" in function.__code__.co_names:
        return None
    names = {**function.__globals__, **dict.fromkeys(guards, _never)}
    body = FunctionType(function.__code__, names, function.__name__, function.__defaults__, function.__closure__)
    body.__kwdefaults__ = function.__kwdefaults__
    return body


def _never(*_: Any) -> bool:
    return False


@cache
def argument_names(overload: Any) -> tuple[tuple[str, bool, Any], ...]:
    """Return name, whether it can be given by place alone, and default, of every argument in the schema."""
    return tuple(
        (argument.name, not argument.kwarg_only, argument.default_value if argument.has_default_value() else None)
        for argument in overload._schema.arguments
    )


@cache
def written(overload: Any) -> tuple[str, ...]:
    """Return names of the arguments an overload writes into."""
    return tuple(
        argument.name
        for argument in overload._schema.arguments
        if argument.alias_info is not None and argument.alias_info.is_write
    )


@cache
def aliased(overload: Any) -> bool:
    """Whether an overload gives nothing but views of its arguments."""
    returns = overload._schema.returns
    return bool(returns) and all(r.alias_info is not None and not r.alias_info.is_write for r in returns)


@cache
def takes_device(overload: Any) -> bool:
    """Whether an overload may be told where its result is to be."""
    return any(argument.name == "device" for argument in overload._schema.arguments)


def writes_by_name(name: str) -> bool:
    """Whether an overload, as a trace names it, writes into its first argument: PyTorch marks it at the end."""
    parts = name.split(".")
    return len(parts) > 1 and parts[1].endswith("_") and not parts[1].endswith("__")


def sequence_number() -> int:
    """Return the number that the next node of the autograd graph of this thread gets."""
    return int(torch.autograd._get_sequence_nr())


def number_of(node: Any) -> int:
    """Return the number of a node of the autograd graph; -1 where it tells none."""
    return int(node._sequence_nr()) if hasattr(node, "_sequence_nr") else -1
