"""The registry of lowerings for ONNX operators, and the types of their results.

A lowering takes one node with its types and constant inputs (:class:`Site`) and returns stages of a tensor expression
over the graph's value names, a view, a concatenation, a library call, or simpler nodes. A new operator needs one
decorated function below ``operators/``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np

from roller.errors import ExprError
from roller.expr import Stage
from roller.models.graph.model_graph import Node
from roller_runtime.plan.program_steps import Value


class Unsupported(Exception):
    """Raised if a node cannot be lowered; the message gives the reason without the node's name."""


@dataclass(frozen=True)
class Site:
    """A node with its types and constant inputs.

    Parameters
    ----------
    inputs, outputs
        Types; ``None`` for an absent optional input or output.
    constants
        Values of constant inputs; ``None`` for other inputs.
    """

    node: Node
    inputs: tuple[Value | None, ...]
    outputs: tuple[Value | None, ...]
    constants: tuple[np.ndarray | None, ...]

    def attribute(self, name: str, default: Any = None) -> Any:
        """Return an attribute, or ``default`` if the node lacks it."""
        return self.node.attributes.get(name, default)

    def input(self, position: int) -> Value | None:
        """Return the type of an input; ``None`` if it is absent."""
        return self.inputs[position] if position < len(self.inputs) else None

    def required(self, position: int) -> Value:
        """Return the type of an input; refuse the node if the input is absent."""
        found = self.input(position)
        if found is None:
            raise Unsupported(f"input {position} is missing")
        return found

    def constant(self, position: int) -> np.ndarray | None:
        """Return the value of a constant input; ``None`` for other inputs."""
        return self.constants[position] if position < len(self.constants) else None

    def known(self, position: int, what: str) -> np.ndarray | None:
        """Return the value of an input that must be constant if present; ``None`` if it is absent."""
        value = self.constant(position)
        if value is None and self.input(position) is not None:
            raise Unsupported(f"{what} is computed at run time, and shapes must be known: give it as a constant")
        return value

    @property
    def output(self) -> Value:
        """The type of the first output, which must be present."""
        first = self.outputs[0]
        if first is None:
            raise Unsupported("its first output, which its other ones are of, is absent")
        return first


@dataclass(frozen=True)
class Compute:
    """Stages that read the site's inputs and write its outputs, by the graph's value names.

    Names of intermediate tensors and of ``constants`` (arrays created by the lowering) start with the first output's
    name (for example, ``f"{output}/max"``). Axis names are local to one ``Compute``.
    """

    stages: tuple[Stage, ...]
    constants: Mapping[str, np.ndarray] = field(default_factory=dict)


@dataclass(frozen=True)
class InputView:
    """The first output is a contiguous range of the input at ``position``, starting at element ``offset``."""

    position: int = 0
    offset: int = 0


@dataclass(frozen=True)
class ConcatOfInputs:
    """The output concatenates all inputs along ``axis`` (non-negative)."""

    axis: int


@dataclass(frozen=True)
class AppendToInput:
    """The output is the first input with the second one written along ``axis`` from ``offset`` on, in place."""

    axis: int
    offset: int


@dataclass(frozen=True)
class LibraryCall:
    """A call to a function of ``roller_runtime.session.array_functions`` on ``inputs`` (default: all node inputs)."""

    function: str
    attributes: Mapping[str, Any] = field(default_factory=dict)
    inputs: tuple[str, ...] | None = None
    constants: Mapping[str, np.ndarray] = field(default_factory=dict)


@dataclass(frozen=True)
class SimplerNodes:
    """Equivalent simpler nodes, which are lowered in turn; ``values`` gives the types of intermediate values."""

    nodes: tuple[Node, ...]
    values: Mapping[str, Value] = field(default_factory=dict)
    constants: Mapping[str, np.ndarray] = field(default_factory=dict)


Lowered: TypeAlias = Compute | InputView | ConcatOfInputs | AppendToInput | LibraryCall | SimplerNodes
Lowering: TypeAlias = Callable[[Site], Lowered]

#: Lowering by (domain, operator).
LOWERINGS: dict[tuple[str, str], Lowering] = {}


def lowers(*ops: str, domain: str = "") -> Callable[[Lowering], Lowering]:
    """Register the decorated function as the lowering of ONNX operators."""

    def register(function: Lowering) -> Lowering:
        for op in ops:
            if (domain, op) in LOWERINGS:
                raise ValueError(f"onnx.lowering: operator '{op}' is lowered twice.")
            LOWERINGS[domain, op] = function
        return function

    return register


def has_lowering(domain: str, op: str) -> bool:
    """Return whether an operator has a lowering, which may still refuse some uses."""
    import roller.models.onnx.operators  # noqa: F401 - fills the registry

    return (domain, op) in LOWERINGS


def no_lowering_reason(node: Node) -> str:
    """Return the reason to refuse a node whose operator has no lowering."""
    return f"operator {node.op}{f' of domain {node.domain!r}' if node.domain else ''} has no lowering"


def lower_node(site: Site) -> Lowered:
    """Lower a node by the lowering registered for its operator."""
    import roller.models.onnx.operators  # noqa: F401 - fills the registry

    node = site.node
    found = LOWERINGS.get((node.domain, node.op))
    if found is None:
        raise Unsupported(no_lowering_reason(node))
    try:
        return found(site)
    except ExprError as err:  # a builder of roller.ops refuses the arguments
        raise Unsupported(str(err)) from err
