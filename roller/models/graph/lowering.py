"""A graph on its way to a program: the parts its nodes were lowered to, and what is known of every value."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from roller.models.graph.nodes import Graph
from roller.models.graph.parts import Computed, Function, Named, Refused, only
from roller.models.graph.steps import Value


@dataclass
class Lowering:
    """A graph on its way to a program.

    Parameters
    ----------
    graph
        The graph.
    parts
        In an order that may run; what nobody reads is gone.
    values, constants
        Those of the graph and of the parts.
    """

    graph: Graph
    parts: Sequence[Named] = ()
    values: dict[str, Value] = field(default_factory=dict)
    constants: dict[str, np.ndarray] = field(default_factory=dict)

    @property
    def refused(self) -> list[Refused]:
        """Nodes that cannot be lowered."""
        return [p for p in self.parts if isinstance(p, Refused)]

    def drop_unread(self) -> None:
        """Drop parts, and outputs of theirs, that nothing needs."""
        wanted = set(self.graph.outputs)
        kept: list[Named] = []
        for part in reversed(self.parts):
            if not wanted & set(part.outputs):
                continue
            if isinstance(part, Computed):
                part = only(part, tuple(o for o in part.outputs if o in wanted))
            elif isinstance(part, Function):
                part = replace(part, results=tuple(n if n in wanted else "" for n in part.results))
            wanted.update(part.inputs)
            kept.append(part)
        self.parts = kept[::-1]
