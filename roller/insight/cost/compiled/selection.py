"""Which part of a step is compiled, and in which mode."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from roller.insight.trace.trace import Operator, Trace

#: Phases in which compiled code runs; the update of parameters does not.
COMPILED_PHASES = ("forward", "backward")
#: Modes of ``torch.compile`` that capture the kernels of a graph, and launch them with one call.
_CAPTURING = frozenset({"reduce-overhead", "max-autotune"})


@dataclass(frozen=True)
class Selection:
    """What is compiled.

    Parameters
    ----------
    modules
        Paths of compiled modules; ``""`` is the root, and with it the loss.
    mode
        Mode of ``torch.compile``.
    """

    modules: tuple[str, ...] = ("",)
    mode: str = "default"

    @property
    def is_captured(self) -> bool:
        """Whether the mode captures CUDA graphs."""
        return self.mode in _CAPTURING

    def covers(self, operator: Operator) -> bool:
        """Return whether an operator is compiled."""
        if operator.phase not in COMPILED_PHASES:
            return False
        return any(not m or operator.module == m or operator.module.startswith(f"{m}.") for m in self.modules)

    def to_dict(self) -> dict[str, Any]:
        """Return JSON-ready data."""
        return {"modules": list(self.modules), "mode": self.mode}


def selection_of(trace: Trace) -> Selection | None:
    """Return what the traced step compiles itself; ``None`` if it compiles nothing."""
    found = trace.options.get("compiled")
    return Selection(tuple(found["modules"]), str(found["mode"])) if isinstance(found, dict) else None


def launches_with_others(trace: Trace) -> Callable[[Operator], bool]:
    """Return whether an operator is launched by the call that launches a captured graph."""
    selection = selection_of(trace) if trace.options.get("is_compiled") else None
    if selection is None or not selection.is_captured:
        return lambda _: False
    begun: set[tuple[int, str]] = set()

    def is_within(operator: Operator) -> bool:
        if not selection.covers(operator):
            begun.clear()
            return False
        key = operator.iteration, operator.phase
        is_first = key not in begun
        begun.add(key)
        return not is_first

    return is_within
