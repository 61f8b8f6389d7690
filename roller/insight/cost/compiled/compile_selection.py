"""Selection of the compiled part of a step and its compilation mode."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from roller.insight.trace.trace import Operator, Trace

#: Phases that run compiled code; the update of parameters does not.
COMPILED_PHASES = ("forward", "backward")
#: Modes of ``torch.compile`` that capture the kernels of a graph and launch them with one call.
_CAPTURING = frozenset({"reduce-overhead", "max-autotune"})


@dataclass(frozen=True)
class CompileSelection:
    """The compiled part of a step."""

    #: Paths of compiled modules; ``""`` is the root.
    modules: tuple[str, ...] = ("",)
    #: Mode of ``torch.compile``.
    mode: str = "default"
    #: Mode of each module; empty if all have ``mode``.
    modes: tuple[str, ...] = ()
    #: Whether the root's graph includes operators outside the root's ``forward``, such as a step's loss.
    with_loss: bool = True

    def graph_of(self, operator: Operator) -> str | None:
        """Return the path of the compiled module whose graph has an operator; ``None`` if it is not compiled."""
        # A module within a compiled module is part of the outer module's graph.
        graph = self._graph_of_module(operator.module) if operator.phase in COMPILED_PHASES else None
        return None if graph == "" and operator.outside and not self.with_loss else graph

    def captures_cuda_graph(self, graph: str) -> bool:
        """Return whether a module's mode captures CUDA graphs."""
        return (dict(zip(self.modules, self.modes, strict=False)).get(graph) or self.mode) in _CAPTURING

    def to_dict(self) -> dict[str, Any]:
        """Return JSON-ready data."""
        own = {"modes": list(self.modes)} if self.modes else {}
        return {"modules": list(self.modules), "mode": self.mode, **own, "with_loss": self.with_loss}

    def _graph_of_module(self, path: str) -> str | None:
        if path not in self._graphs:
            around = (m for m in self.modules if not m or path == m or path.startswith(f"{m}."))
            self._graphs[path] = min(around, key=len, default=None)
        return self._graphs[path]

    @cached_property
    def _graphs(self) -> dict[str, str | None]:
        """Cache of :meth:`_graph_of_module`."""
        return {}


def compile_selection_of_trace(trace: Trace) -> CompileSelection | None:
    """Return the part of a traced step that the step itself compiles; ``None`` if it compiles nothing."""
    found = trace.options.get("compiled")
    if not isinstance(found, dict):
        return None
    with_loss = bool(found.get("with_loss"))  # torch.compile of a model leaves the loss out
    return CompileSelection(tuple(found["modules"]), str(found["mode"]), tuple(found.get("modes", ())), with_loss)


def captured_launch_predicate(trace: Trace) -> Callable[[Operator], bool]:
    """Return a predicate: whether an operator is launched together with the previous one, in a captured graph."""
    selection = compile_selection_of_trace(trace) if trace.options.get("is_compiled") else None
    if selection is None or not any(map(selection.captures_cuda_graph, selection.modules)):
        return lambda _: False
    running: tuple[int, str, str] | None = None

    def is_launched_with_previous(operator: Operator) -> bool:
        nonlocal running
        graph, before = selection.graph_of(operator), running
        captured = graph is not None and selection.captures_cuda_graph(graph)
        running = (operator.iteration, operator.phase, graph) if graph is not None and captured else None
        return running is not None and running == before

    return is_launched_with_previous
