"""The registry of ready operators by name, and the ONNX operator types that they implement."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from roller.expr import TensorExpr

Operator = Callable[..., TensorExpr]
_F = TypeVar("_F", bound=Operator)

#: Every ready operator by name.
REGISTRY: dict[str, Operator] = {}

#: Name of the ready operator that implements each ONNX operator type.
ONNX_NAMES: dict[str, str] = {}


def register_operator(*onnx: str) -> Callable[[_F], _F]:
    """Register the decorated function under its own name; ``onnx`` lists the ONNX operator types that it implements."""

    def register(function: _F) -> _F:
        name = function.__name__
        if name in REGISTRY:
            raise ValueError(f"ops.registry: operator '{name}' is registered twice.")
        REGISTRY[name] = function
        for kind in onnx:
            ONNX_NAMES.setdefault(kind, name)
        return function

    return register
