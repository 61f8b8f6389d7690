"""Rewrites a node into simpler ones: names the new nodes and values, and records their types."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from roller.models.graph.model_graph import Node
from roller.models.onnx.lowering_registry import InputView, Lowered, SimplerNodes, Site, lowers
from roller_runtime.plan.program_steps import Value

#: Default operator set version of new nodes.
VERSION = 21


class NodeRewriter:
    """Collects the nodes that replace a node, with their constants and the types of intermediate values."""

    def __init__(self, site: Site) -> None:
        self.site = site
        self.stem = next(o.name for o in site.outputs if o is not None)
        self.nodes: list[Node] = []
        self.values: dict[str, Value] = {}
        self.constants: dict[str, np.ndarray] = {}

    def constant(self, array: np.ndarray) -> Value:
        """Add a constant under a new name and return it."""
        value = Value(f"{self.stem}/c{len(self.constants)}", array.shape, array.dtype.name)
        self.values[value.name], self.constants[value.name] = value, array
        return value

    def add(self, op: str, inputs: Sequence[Value | None], shape: Sequence[int], dtype: str | None = None,
            *, out: Value | None = None, version: int = 0, domain: str = "",
            **attributes: Any) -> Value:  # fmt: skip
        """Append a node and return its result: ``out``, or a new value."""
        first = next(v for v in inputs if v is not None)
        value = out or self.value(shape, dtype or first.dtype)
        self.append(op, inputs, (value,), domain, version, **attributes)
        return value

    def value(self, shape: Sequence[int], dtype: str) -> Value:
        """Return a new value for a node to write."""
        made = Value(f"{self.stem}/r{len(self.values)}", tuple(shape), dtype)
        self.values[made.name] = made
        return made

    def append(self, op: str, inputs: Sequence[Value | None], outputs: Sequence[Value | None], domain: str = "",
               version: int = 0, **attributes: Any) -> None:  # fmt: skip
        """Append a node with any number of results."""
        reads, writes = (tuple(v.name if v else "" for v in side) for side in (inputs, outputs))
        name = f"{self.site.node.name}/{op.lower()}{len(self.nodes)}"
        self.nodes.append(Node(op, reads, writes, attributes, name, domain, version or VERSION))
        self.values.update({v.name: v for v in outputs if v is not None})

    def part(self, x: Value, offset: int, shape: Sequence[int]) -> Value:
        """Return a contiguous range of ``x`` from element ``offset`` on: a view or, for a constant, a new constant."""
        known = self.constants.get(x.name)
        if known is None:
            known = next((c for v, c in zip(self.site.inputs, self.site.constants, strict=True) if v == x), None)
        if known is not None:
            return self.constant(known.reshape(-1)[offset : offset + math.prod(shape)].reshape(shape))
        return self.add("Part", (x,), shape, domain="roller", offset=offset)

    def reshape(self, x: Value, shape: Sequence[int], *, out: Value | None = None) -> Value:
        """Return ``x`` reshaped; append a Reshape unless the shape is unchanged and no ``out`` is given."""
        if out is None and tuple(shape) == x.shape:
            return x
        target = self.constant(np.asarray(shape, np.int64))
        return self.add("Reshape", (x, target), shape, out=out, allowzero=1)

    def finish(self) -> SimplerNodes:
        """Return the collected nodes, values and constants."""
        outputs = {o.name for o in self.site.outputs if o is not None}
        between = {k: v for k, v in self.values.items() if k not in outputs}
        return SimplerNodes(tuple(self.nodes), between, self.constants)


@lowers("Part", domain="roller")
def lower_contiguous_range(site: Site) -> Lowered:
    """Lower a contiguous range to a view."""
    return InputView(0, int(site.attribute("offset", 0)))
