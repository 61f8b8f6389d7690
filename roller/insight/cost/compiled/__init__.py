"""A traced step as it runs under PyTorch's compiler."""

from __future__ import annotations

from collections.abc import Sequence

from roller.insight.cost.compiled.compile_selection import (
    CompileSelection,
    captured_launch_predicate,
    compile_selection_of_trace,
)
from roller.insight.cost.compiled.loop_nodes import NodeBuilder
from roller.insight.cost.compiled.operators_of_compiled_graph import CompiledOperator, compile_graph
from roller.insight.cost.compiled.rewrite_trace_as_compiled import compile_trace
from roller.insight.trace.trace import Operator, Trace

__all__ = [
    "CompileSelection",
    "compile_operators",
    "compile_trace",
    "captured_launch_predicate",
    "compile_selection_of_trace",
    "apply_policy_to_trace",
]


def apply_policy_to_trace(trace: Trace, policy: str = "library", *, on_gpu: bool = True) -> Trace:
    """Return a trace as it runs under a policy."""
    # ``compiled`` compiles the whole step, ``library`` compiles the parts that the step itself compiles, and ``roller``
    # compiles nothing. The compiler's code for CPUs is not described.
    own = compile_selection_of_trace(trace)
    if trace.options.get("is_compiled") or not on_gpu or not (policy == "compiled" or (policy == "library" and own)):
        return trace
    return compile_trace(trace, CompileSelection(mode=own.mode) if policy == "compiled" and own else own)


def compile_operators(operators: Sequence[Operator]) -> list[CompiledOperator]:
    """Return the operators that replace those of a forward pass and its backward pass, in unchanged memory formats."""
    taken = max((t.storage for o in operators for t in (*o.inputs, *o.outputs)), default=0)
    return compile_graph(operators, NodeBuilder(1 + taken), lambda _: "")
