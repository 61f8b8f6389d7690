"""A mutable graph for simplification passes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from roller.models.graph.model_graph import Graph, Node
from roller_runtime.plan.program_steps import DynamicOutput, Value


@dataclass
class MutableGraph:
    """A mutable copy of a :class:`~roller.models.graph.model_graph.Graph`."""

    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    nodes: list[Node]
    values: dict[str, Value]
    constants: dict[str, np.ndarray]
    loose: Mapping[str, DynamicOutput] = field(default_factory=dict)

    @classmethod
    def of(cls, graph: Graph) -> MutableGraph:
        """Return a mutable copy of a graph."""
        return cls(
            graph.name, graph.inputs, graph.outputs, list(graph.nodes), dict(graph.values), dict(graph.constants),
            graph.loose,
        )  # fmt: skip

    def to_graph(self) -> Graph:
        """Return an immutable graph with only the values and constants that this one uses."""
        used = {n for node in self.nodes for n in (*node.inputs, *node.outputs) if n}
        used.update(self.inputs, self.outputs)
        values = {n: v for n, v in self.values.items() if n in used}
        constants = {n: a for n, a in self.constants.items() if n in used}
        return Graph(self.name, self.inputs, self.outputs, tuple(self.nodes), values, constants, self.loose)

    def count_reads(self) -> Counter[str]:
        """Return the number of reads of each value; an output of the graph counts as one read."""
        found: Counter[str] = Counter(n for node in self.nodes for n in node.inputs if n)
        found.update(self.outputs)
        return found

    def producers(self) -> dict[str, Node]:
        """Return the node that writes each value."""
        return {n: node for node in self.nodes for n in node.outputs if n}

    def shape(self, name: str) -> tuple[int, ...]:
        """Return the shape of a value."""
        return self.values[name].shape

    def constant(self, base: str, array: np.ndarray) -> str:
        """Add a constant under a unique name derived from ``base``; return that name."""
        name = self._unused_value_name(base)
        array = np.asarray(array)
        self.constants[name] = array
        self.values[name] = Value(name, array.shape, array.dtype.name)
        return name

    def value(self, base: str, like: Value) -> str:
        """Add a run-time value with the type of ``like`` under a unique name; return that name."""
        name = self._unused_value_name(base)
        self.values[name] = replace(like, name=name)
        return name

    def _unused_value_name(self, base: str) -> str:
        """Return an unused name derived from ``base``."""
        name, count = base, 0
        while name in self.values:
            count += 1
            name = f"{base}/{count}"
        return name

    def constant_input(self, node: Node, position: int) -> np.ndarray | None:
        """Return the value of a constant input; ``None`` if the input is absent or a run-time value."""
        return self.constants.get(node.inputs[position]) if position < len(node.inputs) else None

    def has_input(self, node: Node, position: int) -> bool:
        """Return whether ``node`` has an input at ``position``."""
        return position < len(node.inputs) and bool(node.inputs[position])
