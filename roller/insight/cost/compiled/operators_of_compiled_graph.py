"""Operators of a compiled graph: library calls, and generated kernels in place of all other operators."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace

from roller.insight.cost.compiled.forward_backward_partition import partition_forward_backward
from roller.insight.cost.compiled.fusion import FusionGroup, fuse_nodes
from roller.insight.cost.compiled.inlining import inline_elementwise_nodes
from roller.insight.cost.compiled.loop_nodes import LoopNode, NodeBuilder, StorageVersion
from roller.insight.cost.compiled.operator_to_loop_nodes import add_library_call, add_operator_nodes
from roller.insight.cost.gpu.operator_view import OperatorView
from roller.insight.trace.trace import GENERATED, Operator, TensorRecord

#: Maximum number of operators in a kernel's name, and maximum length of a reduced row that one block holds as a whole.
_MOST_NAMED, _PERSISTENT = 6, 1024


@dataclass(frozen=True)
class CompiledOperator:
    """An operator of the compiled graph."""

    operator: Operator
    #: Positions, in the list of traced operators, of those that it computes.
    of: tuple[int, ...]
    #: Storages that it writes.
    writes: frozenset[int]
    is_generated: bool


def final_values_no_node_reads(nodes: Sequence[LoopNode]) -> set[StorageVersion]:
    """Return the final values of storages that no node reads."""
    read = {value for node in nodes for value in node.values()}
    return {v for v in {value.storage: value for node in nodes for value in node.writes}.values() if v not in read}


def compile_graph(
    operators: Sequence[Operator], builder: NodeBuilder, graph_of: Callable[[Operator], str | None],
    outliving: Callable[[Sequence[LoopNode]], set[StorageVersion]] = final_values_no_node_reads,
) -> list[CompiledOperator]:  # fmt: skip
    """Return the operators that replace those of a forward pass and its backward pass, in order."""
    # Nodes of different graphs are not fused: each graph stores its results.
    start = len(builder.nodes)
    for place, operator in enumerate(operators):
        graph, first = graph_of(operator), len(builder.nodes)
        if graph is not None:
            add_operator_nodes(builder, place, operator)
        else:
            add_library_call(builder, place, OperatorView(operator))
        for node in builder.nodes[first:]:
            node.graph = graph
    nodes = builder.nodes[start:]
    needed = outliving(nodes)
    forward = [n for n in nodes if n.phase == "forward"]
    backward = [n for n in nodes if n.phase != "forward"]
    if not forward or not backward:
        return _emit_operators(operators, nodes, needed)
    parts = partition_forward_backward(forward, backward, _NewStorageNumbers(builder))
    return [
        *_emit_operators(operators, parts.forward, needed | parts.saved),
        *_emit_operators(operators, parts.backward, needed),
    ]


def _emit_operators(
    operators: Sequence[Operator], nodes: Sequence[LoopNode], needed: Collection[StorageVersion]
) -> list[CompiledOperator]:
    """Return the kernels and calls for nodes, leaving out those whose results are never read."""
    groups = fuse_nodes(inline_elementwise_nodes(nodes, needed))
    readers: dict[StorageVersion, set[int]] = {}
    for n, group in enumerate(groups):
        for access in group.reads():
            readers.setdefault(access.value, set()).add(n)
    found = []
    for n, group in enumerate(groups):
        node = group.nodes[0]
        if node.kind == "extern":
            call = node.call or operators[node.operator]
            found.append(CompiledOperator(call, (node.operator,), frozenset(v.storage for v in node.writes), False))
            continue
        written = {v: t for v, t in group.writes().items() if v in needed or readers.get(v, set()) - {n}}
        if written:
            found.append(_generated_operator(operators, group, tuple(written.values())))
    return found


def _generated_operator(
    operators: Sequence[Operator], group: FusionGroup, written: tuple[TensorRecord, ...]
) -> CompiledOperator:
    """Return the operator for a generated kernel, with the line and module of its last node."""
    members = dict.fromkeys(member for node in group.nodes for member in node.members)
    names = list(dict.fromkeys(name for _, name in sorted(members)))
    loops, last = group.loops, group.nodes[-1]
    kind = "poi" if not group.is_reduction else "per" if loops.length <= _PERSISTENT and loops.trailing else "red"
    operator = replace(
        operators[last.operator], name=f"{GENERATED}.triton_{kind}_fused_{'_'.join(names[:_MOST_NAMED])}.default",
        phase=last.phase, inputs=tuple(dict.fromkeys(group.reads().values())), outputs=written, arguments={},
    )  # fmt: skip
    return CompiledOperator(
        operator, tuple(dict.fromkeys(n for n, _ in members)), frozenset(t.storage for t in written), True
    )


class _NewStorageNumbers(dict[StorageVersion, int]):
    """Storage numbers for recomputed values."""

    def __init__(self, builder: NodeBuilder) -> None:
        super().__init__()
        self._builder = builder

    def __missing__(self, value: StorageVersion) -> int:
        self[value] = number = self._builder.new_storage_number()
        return number
