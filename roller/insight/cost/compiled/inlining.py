"""Inlining of element-wise nodes: their results are not stored but recomputed by their readers."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import replace

from roller.insight.cost.compiled.loop_nodes import LoopNode, StorageVersion, TensorAccess, tensor_access
from roller.insight.cost.gpu.operator_view import element_count
from roller.insight.trace.trace import TensorRecord

#: Maximum number of reads of an element-wise node that each of several readers recomputes, maximum numbers of reads and
#: of operations of a node that is not stored, and maximum number of inputs of an element-wise concatenation
#: (``realize_reads_threshold``, ``_realize_acc_reads_threshold_default``, ``_realize_opcount_threshold_default``,
#: ``max_pointwise_cat_inputs`` of ``torch/_inductor/config.py``, PyTorch 2.13).
SHARED_READS, MOST_READS, MOST_OPERATIONS, MOST_JOINED = 4, 8, 30, 8


def inline_elementwise_nodes(nodes: Sequence[LoopNode], needed: Collection[StorageVersion]) -> list[LoopNode]:
    """Return the nodes whose results are stored; they read the inputs of the inlined nodes."""
    readers: dict[StorageVersion, list[LoopNode]] = defaultdict(list)
    for node in nodes:
        for value in node.values():
            readers[value].append(node)
    gone: dict[StorageVersion, LoopNode] = {}
    kept: list[LoopNode] = []
    for node in nodes:
        whole = _with_inlined_inputs(node, gone) if node.kind != "extern" else node
        if _must_store_result(whole, [r for value in node.writes for r in readers[value]], needed):
            kept.append(whole)
        else:
            gone |= dict.fromkeys(node.writes, whole)
    return kept


def _must_store_result(node: LoopNode, readers: Sequence[LoopNode], needed: Collection[StorageVersion]) -> bool:
    if node.kind != "pointwise" or len(node.writes) != 1 or any(value in needed for value in node.writes):
        return True
    if not readers:
        return False  # nothing reads it
    if any(r.kind == "extern" or r.graph != node.graph for r in readers):
        return True
    if node.is_random and len(readers) > 1:
        return True  # all readers need the same random numbers
    reads = len(node.reads)
    if not reads:
        return False  # a constant
    if len(readers) > 1 and (reads > SHARED_READS or node.operations > MOST_OPERATIONS):
        return True
    if reads > 1 and any(r.windowed for r in readers):
        return True
    return node.joins > MOST_JOINED or reads > MOST_READS or node.operations > MOST_OPERATIONS


def _with_inlined_inputs(node: LoopNode, gone: dict[StorageVersion, LoopNode]) -> LoopNode:
    """Return a node that reads the inputs of its inlined inputs."""
    reads: dict[TensorAccess, TensorRecord] = {}
    operations, inlined, is_random = node.operations, list(node.inlined), node.is_random
    for access, record in node.reads.items():
        source = gone.get(access.value)
        if source is None:
            reads[access] = record
            continue
        operations += source.operations
        is_random = is_random or source.is_random
        inlined += source.members
        (written,) = source.writes.values()
        for inner, inner_record in source.reads.items():
            moved = _read_through_view(inner, inner_record, written, record)
            reads[moved[0]] = moved[1]
    members = tuple(dict.fromkeys(inlined))
    return replace(node, reads=reads, operations=operations, inlined=members, is_random=is_random)


def _read_through_view(
    access: TensorAccess, read: TensorRecord, written: TensorRecord, record: TensorRecord
) -> tuple[TensorAccess, TensorRecord]:
    """Return an inlined node's read as seen through ``record``, the reader's view of the node's result."""
    # A read in the layout of the result becomes the same view of its own tensor. A read in a different layout is no
    # longer in memory order. A read of a smaller tensor, such as a row or a channel, stays as it is.
    if (read.shape, read.stride) == (written.shape, written.stride):
        seen = replace(
            record, storage=read.storage, dtype=read.dtype, offset=record.offset - written.offset + read.offset
        )
        return tensor_access(access.value, seen), seen
    same = (written.shape, written.stride, written.offset) == (record.shape, record.stride, record.offset)
    if same or element_count(read) < element_count(written):
        return access, read
    return access._replace(layout=(*access.layout, (-1, -1))), read
