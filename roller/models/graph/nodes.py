"""A model's graph after reading: static shapes, constants as arrays, nodes in an order that may run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from roller.models.graph.steps import DynamicOutput, Value


@dataclass(frozen=True)
class Node:
    """One operator of a graph.

    Parameters
    ----------
    op
        ONNX operator type (``"Conv"``).
    inputs, outputs
        Names of values or constants; ``""`` where an optional one is absent.
    attributes
        Plain Python: int, float, str, tuples of them, ``numpy.ndarray`` of tensors, :class:`Graph` of bodies.
    name
        Unique in its graph.
    domain, version
        Operator set it belongs to (``""`` is ONNX's own) and its version.
    """

    op: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: Mapping[str, Any] = field(default_factory=dict)
    name: str = ""
    domain: str = ""
    version: int = 0


@dataclass(frozen=True)
class Region(Node):
    """Nodes that another runtime computes together, because only a run knows shapes among them.

    Parameters
    ----------
    members
        The nodes; ``attributes["model"]`` is them as ONNX bytes, inputs and outputs in the order of the region's.
    reasons
        Why each of them is in it, by name.
    """

    members: tuple[Node, ...] = ()
    reasons: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Graph:
    """A whole model.

    Parameters
    ----------
    name
        Of the model, for people.
    inputs, outputs
        Names of the values a caller passes and gets, in order; initialisers are no inputs.
    nodes
        In topological order.
    values
        Every value by name, constants included; all shapes are known numbers.
    constants
        Arrays by name (bfloat16 by ``ml_dtypes``); memory-mapped where they are external.
    loose
        Outputs of which only a run knows the shape, which have no entry in ``values``; a :class:`Region` writes them.
    """

    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    nodes: tuple[Node, ...]
    values: Mapping[str, Value]
    constants: Mapping[str, np.ndarray] = field(repr=False, default_factory=dict)
    loose: Mapping[str, DynamicOutput] = field(default_factory=dict)
