"""What-if: tasks that take no time, which gives an upper bound on the gain."""

from __future__ import annotations

import re
from dataclasses import dataclass

from roller.errors import RollerError, shown
from roller.insight.step.graph import StepGraph
from roller.insight.whatif.primitives import remove, select
from roller.insight.whatif.task_selection import matches_layers
from roller.insight.whatif.what_if import WhatIf


@dataclass(frozen=True)
class ZeroTime(WhatIf):
    """Remove tasks and their launches, as if they took no time. A task must match all conditions.

    Parameters
    ----------
    kind, phase
        ``"kernel"``, ``"copy"``, ``"collective"``, ``"data"``, ...; ``"forward"``, ``"backward"``, ``"optimizer"``, ...
    layers
        Patterns of layers.
    name
        Regular expression, searched in the names of kernels and operators.
    """

    kind: str = ""
    phase: str = ""
    layers: tuple[str, ...] | str = ()
    name: str = ""
    assumptions = ("An upper bound: nothing takes no time.",)
    of_several_ranks = True
    traced_with = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        try:
            re.compile(self.name)
        except (re.error, TypeError) as error:
            raise RollerError(
                f"ZeroTime: name: expected a regular expression, got {shown(self.name)} ({error}). Correct it."
            ) from None

    def change(self, graph: StepGraph) -> StepGraph:
        """Return the graph without the tasks."""
        chosen = select(graph, lambda t: (
            self.kind in ("", t.kind) and self.phase in ("", t.context.phase)
            and matches_layers(t.context.module, self.layers)
            and re.search(self.name, f"{t.name} {t.context.operator}") is not None))  # fmt: skip
        if not chosen or self == ZeroTime():
            raise RollerError(f"{self}: expected tasks of {graph.name}, got none. Name a kind, phase or layer it has.")
        return remove(graph, chosen)
