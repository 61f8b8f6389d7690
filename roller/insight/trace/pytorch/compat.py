"""Provides private names of PyTorch, and names that move between releases, to the other modules of this package."""

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
    "OuterFunction", "TorchDispatchMode", "TorchFunctionMode", "backward_functions", "default_device",
    "device_constructors", "has_device_argument", "is_in_place_name", "next_sequence_number", "node_sequence_number",
    "returns_only_views", "schema_arguments", "without_modes", "without_override_check", "without_torch_function",
    "written_argument_names",
]  # fmt: skip

#: Functions by which a Python function of PyTorch checks whether a mode or a subclass overrides it.
_GUARDS = ("has_torch_function", "has_torch_function_unary", "has_torch_function_variadic")
#: Functions that are wrapped while a trace is made, to know when a backward pass begins and ends.
backward_functions = ((torch.autograd, "backward"), (torch.autograd, "grad"))


def default_device() -> torch.device | None:
    """Return the device set by ``torch.set_default_device``; ``None`` if there is none."""
    context = getattr(getattr(torch, "_GLOBAL_DEVICE_CONTEXT", None), "device_context", None)
    return None if context is None else context.device


def without_torch_function() -> AbstractContextManager[Any]:
    """Return a context in which calls bypass every function mode and subclass."""
    scope: AbstractContextManager[Any] = torch._C.DisableTorchFunction()
    return scope


@cache
def without_override_check(function: Any) -> Callable[..., Any] | None:
    """Return a Python function of PyTorch without its check for overrides; ``None`` if it has no check.

    The functions that it calls must reach the mode, but the function itself must not, since it would recurse.
    """
    # Functions that check through a module (those that set initial values) are not found, and do not need the mode
    # inside.
    guards = [name for name in _GUARDS if name in function.__code__.co_names and name in function.__globals__]
    # A method that calls its base's C++ method would be called back by that method.
    if not guards or "super" in function.__code__.co_names:
        return None
    names = {**function.__globals__, **dict.fromkeys(guards, _return_false)}
    body = FunctionType(function.__code__, names, function.__name__, function.__defaults__, function.__closure__)
    body.__kwdefaults__ = function.__kwdefaults__
    return body


def _return_false(*_: Any) -> bool:
    return False


@cache
def schema_arguments(overload: Any) -> tuple[tuple[str, bool, Any], ...]:
    """Return, for each argument in the schema, its name, whether it can be positional, and its default."""
    return tuple(
        (argument.name, not argument.kwarg_only, argument.default_value if argument.has_default_value() else None)
        for argument in overload._schema.arguments
    )


@cache
def written_argument_names(overload: Any) -> tuple[str, ...]:
    """Return the names of the arguments that an overload writes."""
    return tuple(
        argument.name
        for argument in overload._schema.arguments
        if argument.alias_info is not None and argument.alias_info.is_write
    )


@cache
def returns_only_views(overload: Any) -> bool:
    """Return whether an overload returns only views of its arguments."""
    returns = overload._schema.returns
    return bool(returns) and all(r.alias_info is not None and not r.alias_info.is_write for r in returns)


@cache
def has_device_argument(overload: Any) -> bool:
    """Return whether an overload has a ``device`` argument."""
    return any(argument.name == "device" for argument in overload._schema.arguments)


def is_in_place_name(name: str) -> bool:
    """Return whether an overload's name is that of an in-place operator, which ends in an underscore."""
    parts = name.split(".")
    return len(parts) > 1 and parts[1].endswith("_") and not parts[1].endswith("__")


def next_sequence_number() -> int:
    """Return the number that the next node in this thread's autograd graph will get."""
    return int(torch.autograd._get_sequence_nr())


def node_sequence_number(node: Any) -> int:
    """Return the number of a node in the autograd graph; -1 if the node does not have one."""
    return int(node._sequence_nr()) if hasattr(node, "_sequence_nr") else -1
