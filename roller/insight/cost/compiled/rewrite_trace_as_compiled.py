"""A traced step as run by PyTorch's compiler: fused kernels in place of operators, and their memory."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import groupby

from roller.insight.cost.compiled.attention_patterns import fuse_attention, fusible_attention_dtypes
from roller.insight.cost.compiled.compile_selection import COMPILED_PHASES, CompileSelection, compile_selection_of_trace
from roller.insight.cost.compiled.loop_nodes import LoopNode, NodeBuilder, StorageVersion
from roller.insight.cost.compiled.memory_format import assign_memory_formats, convolution_memory_format
from roller.insight.cost.compiled.operators_of_compiled_graph import (
    CompiledOperator,
    compile_graph,
    final_values_no_node_reads,
)
from roller.insight.cost.gpu.operator_view import distinct_bytes
from roller.insight.trace.trace import AllocEvent, FreeEvent, Operator, Storage, Trace


def compile_trace(trace: Trace, selection: CompileSelection | None = None) -> Trace:
    """Return a trace as run by PyTorch's compiler.

    Examples
    --------
    >>> from roller.insight.trace.trace import TensorRecord
    >>> x, y, z = (TensorRecord((64,), (1,), "float32", n) for n in range(3))
    >>> exp, neg = (Operator(n, f"aten.{name}.default", "forward", (a,), (b,))
    ...             for n, name, a, b in ((0, "exp", x, y), (1, "neg", y, z)))
    >>> [operator.name for operator in compile_trace(Trace((exp, neg), (), {}, (0, 2))).operators]
    ['inductor.triton_poi_fused_exp_neg.default']
    """
    # Forward and backward operators that the selection covers become library calls and generated kernels
    # (``inductor.triton_...``). Storages between nodes of one kernel vanish; all others are allocated where they are
    # written and freed after their last use. The update of the parameters does not change.
    writer = _CompiledTraceWriter(trace, selection or compile_selection_of_trace(trace) or CompileSelection())
    for start, end in zip(trace.iterations, trace.iterations[1:], strict=False):
        writer.add_step(start, end)
    return writer.trace()


def _forward_backward_segments(operators: Sequence[Operator]) -> Iterator[list[Operator]]:
    """Yield runs of consecutive operators: a forward pass with its backward pass, or operators of other phases."""
    found: list[Operator] = []
    for phase, run in groupby(operators, key=lambda o: o.phase if o.phase in COMPILED_PHASES else "other"):
        if phase == "backward" and found and found[-1].phase == "forward":
            found += run
            continue
        if found:
            yield found
        found = list(run)
    if found:
        yield found


class _CompiledTraceWriter:
    """Writes the operators and events of a compiled trace."""

    def __init__(self, trace: Trace, selection: CompileSelection) -> None:
        self.old, self.selection = trace, selection
        self.operators: list[Operator] = []
        self.events: list[tuple[int, int, AllocEvent | FreeEvent]] = []  # position, rank at that position, event
        self.iterations = [0]
        self.storages = dict(trace.storages)
        self.free_at = {e.storage: e.operator for e in trace.events if isinstance(e, FreeEvent)}
        self.new_index: dict[int, int] = {}
        self.builder = NodeBuilder(
            1 + max((*trace.storages, *trace.allocations, *_storage_numbers_of_operators(trace.operators)), default=0)
        )
        self.rewritten: set[int] = set()  # storages whose allocations are rewritten
        self.outliving: set[int] = set()  # rewritten storages that are freed where they were freed before

    def add_step(self, start: int, end: int) -> None:
        """Add a step: the operators from ``start`` up to ``end``."""
        for segment in _forward_backward_segments(self.old.operators[start:end]):
            if segment[0].phase in COMPILED_PHASES and any(self.selection.graph_of(o) is not None for o in segment):
                self._add_compiled_segment(segment)
            else:
                for operator in segment:
                    self._add_operator(operator, (operator.index,))
        self.iterations.append(len(self.operators))

    def _add_operator(self, operator: Operator, of: Iterable[int]) -> int:
        index = len(self.operators)
        self.operators.append(replace(operator, index=index))
        for n in of:
            self.new_index[n] = index
        return index

    def _add_compiled_segment(self, segment: Sequence[Operator]) -> None:
        graph_of = self.selection.graph_of
        operators = fuse_attention(segment, fusible_attention_dtypes(self.old), graph_of)
        graphs: dict[str | None, list[Operator]] = defaultdict(list)
        for operator in segment:
            graphs[graph_of(operator)].append(operator)
        formats = {g: None if g is None else convolution_memory_format(own) for g, own in graphs.items()}
        operators = assign_memory_formats(operators, lambda o: formats[graph_of(o)], self.builder.new_storage_number)
        last = segment[-1].index
        outlives: set[StorageVersion] = set()

        def collect_outliving_values(nodes: Sequence[LoopNode]) -> set[StorageVersion]:
            outlives.update(self._values_read_after_segment(nodes, last))
            return outlives

        emitted = compile_graph(operators, self.builder, graph_of, collect_outliving_values)
        self._write(segment, [replace(e, of=tuple(operators[n].index for n in e.of)) for e in emitted],
                    {v.storage for v in outlives})  # fmt: skip

    def _values_read_after_segment(self, nodes: Sequence[LoopNode], last: int) -> set[StorageVersion]:
        """Return the values that outlive the segment."""
        # Their memory is freed after the segment; an unread result may also be freed right after the last operator.
        unread = final_values_no_node_reads(nodes)
        if not self.old.events:
            return unread
        latest = {value.storage: value for node in nodes for value in node.writes}
        known = self.old.storages.keys() | self.old.allocations.keys()
        freed = {s: self.free_at.get(s, last + 1) for s in latest if s in known}
        return {v for s, v in latest.items() if s in freed and (freed[s] > last or (freed[s] == last and v in unread))}

    def _write(self, segment: Sequence[Operator], emitted: Sequence[CompiledOperator], outlives: set[int]) -> None:
        """Add a segment's operators, with an allocation at each storage's first write and a free after its last use."""
        old, within, here = self.old.allocations, {o.index for o in segment}, len(self.operators) - 1
        own = {s for s in _storage_numbers_of_operators(segment) if s in old and old[s].operator in within}
        allocated: dict[int, tuple[int, int]] = {}
        last_use: dict[int, int] = {}
        for one in emitted:
            index = self._add_operator(one.operator, one.of)
            last_use |= dict.fromkeys(_storage_numbers_of_operators((one.operator,)), index)
            for t in one.operator.outputs:
                if (
                    t.storage in one.writes
                    and t.storage not in allocated
                    and (t.storage in own or t.storage not in old)
                ):
                    size = old[t.storage].size_bytes if t.storage in own else distinct_bytes(t)
                    self.storages.setdefault(t.storage, Storage("temporary", size_bytes=size))
                    allocated[t.storage] = index, size
        for storage, (index, size) in allocated.items():
            self.events.append((index, 0, AllocEvent(storage, size, index)))
            if storage not in outlives:
                self.events.append((last_use[storage], 2, FreeEvent(storage, last_use[storage])))
        self.rewritten |= own
        self.outliving |= outlives & allocated.keys()
        for o in segment:  # map a removed operator to the one that runs in its place
            here = self.new_index.setdefault(o.index, here)

    def trace(self) -> Trace:
        """Return the compiled trace."""
        for event in self.old.events:
            kept = isinstance(event, FreeEvent) and event.storage in self.outliving
            if kept or event.storage not in self.rewritten:
                index = self.new_index.get(event.operator, -1)
                self.events.append((index, 1, replace(event, operator=index)))
        self.events.sort(key=lambda row: row[:2])
        old = self.old
        return Trace(
            tuple(self.operators), tuple(row[2] for row in self.events) if old.events else (), self.storages,
            tuple(self.iterations), {**old.options, "compiled": self.selection.to_dict(), "is_compiled": True},
            old.warnings, old.registered,
        )  # fmt: skip


def _storage_numbers_of_operators(operators: Iterable[Operator]) -> Iterator[int]:
    return (t.storage for o in operators for t in (*o.inputs, *o.outputs))
