"""Rewriting a node into simpler ones: what the new nodes are named, and the types of what they make in between."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from roller.model.steps import Value
from roller.onnx.graph import Node
from roller.onnx.lowering import Rewritten, Site

#: Version of the operators a rewriting writes, where it does not say another.
VERSION = 21


class Steps:
    """Nodes a rewriting collects, with the types of what they make in between."""

    def __init__(self, site: Site) -> None:
        self.site = site
        self.nodes: list[Node] = []
        self.values: dict[str, Value] = {}
        self.constants: dict[str, np.ndarray] = {}

    def constant(self, array: np.ndarray) -> Value:
        """Return a constant under a new name."""
        value = Value(f"{self.site.output.name}/c{len(self.constants)}", array.shape, array.dtype.name)
        self.values[value.name], self.constants[value.name] = value, array
        return value

    def add(self, op: str, inputs: Sequence[Value | None], shape: Sequence[int], dtype: str | None = None,
            *, out: Value | None = None, version: int = 0, domain: str = "",
            **attributes: Any) -> Value:  # fmt: skip
        """Append a node and return its result: ``out``, or a new value."""
        number = len(self.nodes)
        first = next(v for v in inputs if v is not None)
        value = out or Value(f"{self.site.output.name}/r{number}", tuple(shape), dtype or first.dtype)
        node = self.site.node
        self.nodes.append(Node(op, tuple(v.name if v else "" for v in inputs), (value.name,), attributes,
                               f"{node.name}/{op.lower()}{number}", domain, version or VERSION))  # fmt: skip
        self.values.setdefault(value.name, value)
        return value

    def reshape(self, x: Value, shape: Sequence[int], *, out: Value | None = None) -> Value:
        """Append a reshape, unless it changes nothing."""
        if out is None and tuple(shape) == x.shape:
            return x
        target = self.constant(np.asarray(shape, np.int64))
        return self.add("Reshape", (x, target), shape, out=out, allowzero=1)

    def done(self) -> Rewritten:
        """Return the rewriting."""
        outputs = {o.name for o in self.site.outputs if o is not None}
        between = {k: v for k, v in self.values.items() if k not in outputs}
        return Rewritten(tuple(self.nodes), between, self.constants)
