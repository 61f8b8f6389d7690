"""State of a graph during lowering: its parts, and all known values and constants."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from roller.models.graph.lowered_parts import (
    ComputedPart,
    LibraryFunctionPart,
    PartProtocol,
    RefusedNode,
    restrict_outputs,
)
from roller.models.graph.model_graph import Graph
from roller_runtime.plan.program_steps import Value


@dataclass
class Lowering:
    """A graph during lowering; ``parts`` are in a valid order and include no unread part."""

    graph: Graph
    parts: Sequence[PartProtocol] = ()
    values: dict[str, Value] = field(default_factory=dict)
    constants: dict[str, np.ndarray] = field(default_factory=dict)

    @property
    def refused(self) -> list[RefusedNode]:
        """The parts that cannot be lowered."""
        return [p for p in self.parts if isinstance(p, RefusedNode)]

    def drop_unread_parts(self) -> None:
        """Drop parts and outputs that are not read."""
        wanted = set(self.graph.outputs)
        kept: list[PartProtocol] = []
        for part in reversed(self.parts):
            if not wanted & set(part.outputs):
                continue
            if isinstance(part, ComputedPart):
                part = restrict_outputs(part, tuple(o for o in part.outputs if o in wanted))
            elif isinstance(part, LibraryFunctionPart):
                part = replace(part, results=tuple(n if n in wanted else "" for n in part.results))
            wanted.update(part.inputs)
            kept.append(part)
        self.parts = kept[::-1]
