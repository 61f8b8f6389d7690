"""A model's graph after reading: static shapes, constants as arrays, nodes in topological order."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from roller_runtime.plan.program_steps import DynamicOutput, Value


@dataclass(frozen=True)
class Node:
    """One operator of a graph.

    Parameters
    ----------
    op
        ONNX operator type (``"Conv"``).
    inputs, outputs
        Names of values or constants; ``""`` for an absent optional input or output.
    attributes
        Plain Python values: int, float, str, tuples of them, ``numpy.ndarray`` for tensors, :class:`Graph` for bodies.
    name
        Name of the node, unique in its graph.
    domain, version
        Domain of the operator set (``""`` is ONNX's own) and its version.
    """

    op: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: Mapping[str, Any] = field(default_factory=dict)
    name: str = ""
    domain: str = ""
    version: int = 0


@dataclass(frozen=True)
class FallbackRegion(Node):
    """Nodes that another runtime computes together because some of their shapes are known only at run time.

    Parameters
    ----------
    members
        The nodes. ``attributes["model"]`` contains them as ONNX bytes; inputs and outputs have the region's order.
    reasons
        Reason why each node is in the region, by node name.
    """

    members: tuple[Node, ...] = ()
    reasons: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Graph:
    """A whole model as a graph.

    Parameters
    ----------
    inputs, outputs
        Names of the values that a caller passes and receives, in order; initializers are not inputs.
    nodes
        Nodes in topological order.
    values
        Every value by name, including constants, with static shapes.
    constants
        Arrays by name (bfloat16 by ``ml_dtypes``); external ones are memory-mapped.
    loose
        Outputs whose shapes are known only at run time; a :class:`FallbackRegion` writes them, and they are absent from
        ``values``.
    """

    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    nodes: tuple[Node, ...]
    values: Mapping[str, Value]
    constants: Mapping[str, np.ndarray] = field(repr=False, default_factory=dict)
    loose: Mapping[str, DynamicOutput] = field(default_factory=dict)
