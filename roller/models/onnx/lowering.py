"""How a node becomes tensor expressions: the registry of lowerings, and what a lowering may return.

A lowering sees one node with its types and constant inputs (:class:`Site`) and says what the node is: stages of a
tensor expression over the very names of the graph's values, a view, a concatenation, a call of the array library, or
simpler nodes. It never fuses anything; :mod:`roller.models.onnx.partition` does. To add an operator write one function
below ``operators/`` and decorate it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np

from roller.errors import ExprError
from roller.expr import Stage
from roller.models.graph.nodes import Node
from roller.models.graph.steps import Value


class Unsupported(Exception):
    """Why a node cannot be lowered: one sentence without the node's name."""


@dataclass(frozen=True)
class Site:
    """A node with everything known about its surroundings.

    Parameters
    ----------
    node
        The operator.
    inputs, outputs
        Types of its inputs and outputs; ``None`` where an optional one is absent.
    constants
        Values of its constant inputs; ``None`` where an input is not constant (or absent).
    """

    node: Node
    inputs: tuple[Value | None, ...]
    outputs: tuple[Value | None, ...]
    constants: tuple[np.ndarray | None, ...]

    def attribute(self, name: str, default: Any = None) -> Any:
        """Return an attribute, or ``default`` where the node does not give it."""
        return self.node.attributes.get(name, default)

    def input(self, position: int) -> Value | None:
        """Return the type of an input, ``None`` where it is absent."""
        return self.inputs[position] if position < len(self.inputs) else None

    def required(self, position: int) -> Value:
        """Return the type of an input that must be there."""
        found = self.input(position)
        if found is None:
            raise Unsupported(f"input {position} is missing")
        return found

    def constant(self, position: int) -> np.ndarray | None:
        """Return the value of a constant input, ``None`` where it is not constant or absent."""
        return self.constants[position] if position < len(self.constants) else None

    def known(self, position: int, what: str) -> np.ndarray | None:
        """Return the value of an input that must be constant where it is given; ``None`` where it is absent."""
        value = self.constant(position)
        if value is None and self.input(position) is not None:
            raise Unsupported(f"{what} is computed at run time, and shapes must be known: give it as a constant")
        return value

    @property
    def output(self) -> Value:
        """The type of the only output that matters, the first one."""
        first = self.outputs[0]
        if first is None:
            raise Unsupported("its first output, which its other ones are of, is absent")
        return first


@dataclass(frozen=True)
class Compute:
    """Stages that read the site's inputs and write its outputs, all by the names of the graph's values.

    Intermediate tensors take names that begin with that of the first output (``f"{output}/max"``). Axis names mean
    something within one ``Compute`` only. ``constants`` are arrays the lowering made (tables), named likewise.
    """

    stages: tuple[Stage, ...]
    constants: Mapping[str, np.ndarray] = field(default_factory=dict)


@dataclass(frozen=True)
class Reshaped:
    """The first output has the elements of the input at ``position``, from element ``offset`` on, in the same order."""

    position: int = 0
    offset: int = 0


@dataclass(frozen=True)
class Joined:
    """The output is all inputs side by side along ``axis`` (not negative)."""

    axis: int


@dataclass(frozen=True)
class Called:
    """A function of :mod:`roller.models.session.library`; ``inputs``: its names, by default all of the node's."""

    function: str
    attributes: Mapping[str, Any] = field(default_factory=dict)
    inputs: tuple[str, ...] | None = None
    constants: Mapping[str, np.ndarray] = field(default_factory=dict)


@dataclass(frozen=True)
class Rewritten:
    """Simpler nodes that compute the same; ``values`` types what they make in between, all are lowered in turn."""

    nodes: tuple[Node, ...]
    values: Mapping[str, Value] = field(default_factory=dict)
    constants: Mapping[str, np.ndarray] = field(default_factory=dict)


Lowered: TypeAlias = Compute | Reshaped | Joined | Called | Rewritten
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
    """Return whether some lowering knows an operator; it may still refuse a use of it."""
    import roller.models.onnx.operators  # noqa: F401 - fills the registry

    return (domain, op) in LOWERINGS


def no_lowering(node: Node) -> str:
    """Return the reason to refuse a node whose operator no lowering knows."""
    return f"operator {node.op}{f' of domain {node.domain!r}' if node.domain else ''} has no lowering"


def lower_node(site: Site) -> Lowered:
    """Return what a node is."""
    import roller.models.onnx.operators  # noqa: F401 - fills the registry

    node = site.node
    found = LOWERINGS.get((node.domain, node.op))
    if found is None:
        raise Unsupported(no_lowering(node))
    try:
        return found(site)
    except ExprError as err:  # what a builder of roller.ops refuses
        raise Unsupported(str(err)) from err
