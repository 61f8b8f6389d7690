"""Operators of a step as a compiler's loop nodes: element-wise nodes, reductions, and library calls."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, NamedTuple

from roller.insight.cost.gpu.operator_view import OperatorView, element_count
from roller.insight.trace.trace import Operator, Phase, TensorRecord


class StorageVersion(NamedTuple):
    """One version of a storage's contents; an in-place operator creates the next version."""

    storage: int
    version: int = 0


class TensorAccess(NamedTuple):
    """A read of a value; a fused kernel performs equal reads only once."""

    value: StorageVersion
    offset: int
    layout: tuple[tuple[int, int], ...]


@dataclass
class LoopNode:
    """A node in a compiler's graph of a step."""

    #: Index of its operator in the list that is compiled.
    operator: int
    #: ``"extern"``: a call to a library or to PyTorch's own kernel, which is never fused.
    kind: Literal["pointwise", "reduction", "extern"]
    name: str
    phase: Phase
    #: Number of results of its loops, and number of elements that each result reduces (1 for an element-wise node).
    rows: int = 0
    length: int = 1
    #: Whether the reduced axes are innermost in memory, so that later nodes fit the same loops.
    trailing: bool = True
    reads: dict[TensorAccess, TensorRecord] = field(default_factory=dict)
    writes: dict[StorageVersion, TensorRecord] = field(default_factory=dict)
    #: Number of scalar functions per element, including those of inlined nodes.
    operations: int = 1
    #: Whether it reads elements several times, so that its inputs are stored.
    windowed: bool = False
    #: Number of inputs of a concatenation; 0 for all other nodes.
    joins: int = 0
    #: Operator that a library call runs, if it is not the traced operator.
    call: Operator | None = None
    #: Index and name of each operator whose nodes are inlined.
    inlined: tuple[tuple[int, str], ...] = ()
    #: Whether it draws random numbers, which cannot be recomputed.
    is_random: bool = False
    #: Whether the backward pass runs it again.
    recomputed: bool = False
    #: Graph of its operator; ``None`` if the operator is not compiled.
    graph: str | None = ""

    @property
    def points(self) -> int:
        """The number of points in the loop nest."""
        return self.rows * self.length

    @property
    def members(self) -> tuple[tuple[int, str], ...]:
        """Indices and names of all operators that the node computes."""
        return (*self.inlined, (self.operator, self.name))

    def values(self) -> set[StorageVersion]:
        """Return the values that the node reads."""
        return {access.value for access in self.reads}


def tensor_access(value: StorageVersion, record: TensorRecord) -> TensorAccess:
    """Return the access of a tensor, with contiguous dimensions merged."""
    merged: list[tuple[int, int]] = []
    own = [(n, s) for n, s in zip(record.shape, record.stride, strict=False) if n != 1]
    for extent, stride in sorted(own, key=lambda d: -d[1]):
        if merged and merged[-1][1] == extent * stride:
            merged[-1] = (merged[-1][0] * extent, stride)
        else:
            merged.append((extent, stride))
    return TensorAccess(value, record.offset, tuple(merged))


def is_contiguous_access(access: TensorAccess, points: int) -> bool:
    """Return whether an access reads ``points`` consecutive elements."""
    return access.layout == ((points, 1),) or (points == 1 and not access.layout)


def dims_in_memory_order(record: TensorRecord) -> tuple[int, ...]:
    """Return the dimensions of a tensor from the outermost to the innermost in memory."""
    dims = [d for d, n in enumerate(record.shape) if n != 1]
    return tuple(sorted(dims, key=lambda d: (-record.stride[d], d)))


def are_innermost_dims(record: TensorRecord, dims: Iterable[int]) -> bool:
    """Return whether ``dims`` are the innermost dimensions of a tensor in memory."""
    order, wanted = dims_in_memory_order(record), {d % max(1, len(record.shape)) for d in dims}
    inner = [d for d in order if d in wanted]
    return list(order[len(order) - len(inner) :]) == inner


class NodeBuilder:
    """Builds nodes for operators in order, tracks the version of each storage, and numbers new storages."""

    def __init__(self, first_storage: int) -> None:
        self.nodes: list[LoopNode] = []
        self._versions: dict[int, int] = {}
        self._next = first_storage

    def current(self, record: TensorRecord) -> StorageVersion:
        """Return the current version of a tensor's storage."""
        return StorageVersion(record.storage, self._versions.get(record.storage, 0))

    def new_storage_number(self) -> int:
        """Return a storage number that the trace does not use."""
        self._next += 1
        return self._next - 1

    def temporary(self, shape: Sequence[int], dtype: str) -> TensorRecord:
        """Return a contiguous tensor in a new storage."""
        stride = tuple(math.prod(shape[n + 1 :]) for n in range(len(shape)))
        return TensorRecord(tuple(shape), stride, dtype, self.new_storage_number())

    def add(
        self, index: int, operator: Operator, kind: Literal["pointwise", "reduction", "extern"],
        reads: Iterable[TensorRecord], writes: Iterable[TensorRecord], *, rows: int = 0, length: int = 1,
        trailing: bool = True, operations: int = 1, windowed: bool = False, joins: int = 0,
    ) -> LoopNode:  # fmt: skip
        """Add a node that reads the current values of tensors and writes new ones."""
        read = {tensor_access(self.current(t), t): t for t in reads if element_count(t)}
        for access in read:  # a later write creates a new version
            self._versions.setdefault(access.value.storage, 0)
        written = {}
        for t in writes:
            self._versions[t.storage] = self._versions.get(t.storage, -1) + 1
            written[self.current(t)] = t
        node = LoopNode(
            index, kind, OperatorView(operator).packet.removeprefix("aten."), operator.phase, rows, length, trailing,
            read,
            written, operations, windowed, joins,
        )  # fmt: skip
        self.nodes.append(node)
        return node

    def undo(self, count: int) -> None:
        """Remove all but the first ``count`` nodes and restore the storages' versions."""
        for node in reversed(self.nodes[count:]):
            for value in node.writes:
                self._versions[value.storage] = max(0, value.version - 1)
        del self.nodes[count:]


def gathered_table_read(record: TensorRecord, like: TensorRecord) -> TensorRecord:
    """Return a read of as many table elements as the result ``like`` of a gather has."""
    stride = tuple(math.prod(like.shape[n + 1 :]) for n in range(len(like.shape)))
    return replace(record, shape=like.shape, stride=stride)
