"""A traced step as run by PyTorch's compiler."""

from __future__ import annotations

from collections.abc import Sequence

from roller.insight.cost.compiled.compiled_step import compiled_trace
from roller.insight.cost.compiled.generated_kernels import Emitted, compile_graph
from roller.insight.cost.compiled.loop_nodes import Builder
from roller.insight.cost.compiled.selection import Selection, launches_with_others, selection_of
from roller.insight.trace.trace import Operator, Trace

__all__ = ["Selection", "compiled_operators", "compiled_trace", "launches_with_others", "selection_of", "trace_as_run"]


def trace_as_run(trace: Trace, policy: str = "library", *, on_gpu: bool = True) -> Trace:
    """Return a trace as it runs under a policy."""
    # ``compiled`` compiles the whole step, ``library`` compiles the parts that the step itself compiles, and ``roller``
    # compiles nothing. The compiler's code for CPUs is not described.
    own = selection_of(trace)
    if trace.options.get("is_compiled") or not on_gpu or not (policy == "compiled" or (policy == "library" and own)):
        return trace
    return compiled_trace(trace, Selection(mode=own.mode) if policy == "compiled" and own else own)


def compiled_operators(operators: Sequence[Operator]) -> list[Emitted]:
    """Return the operators that replace the operators of a forward and its backward, in unchanged memory formats."""
    taken = max((t.storage for o in operators for t in (*o.inputs, *o.outputs)), default=0)
    return compile_graph(operators, Builder(1 + taken), lambda _: "")
