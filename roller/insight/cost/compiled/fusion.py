"""Fusion of stored loop nodes into kernels by the rules of Inductor's scheduler for GPUs."""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from roller.insight.cost.compiled.loop_nodes import LoopNode, StorageVersion, TensorAccess, is_contiguous_access
from roller.insight.cost.gpu.operator_view import distinct_bytes, element_count
from roller.insight.trace.trace import TensorRecord

#: Maximum numbers of nodes in a kernel, of fusion rounds, and of readers of a buffer that are compared pairwise
#: (``max_fusion_size``, ten rounds in ``Scheduler.fuse_nodes``, ``max_fusion_buffer_group_pairwise_attempts``; PyTorch
#: 2.13).
MOST_NODES, ROUNDS, MOST_COMPARED = 64, 10, 64
#: Minimum number of bytes that a fusion has to save (``score_fusion_memory_threshold``).
LEAST_SAVED_BYTES = 10


@dataclass(eq=False)
class FusionGroup:
    """The nodes that one kernel computes."""

    nodes: list[LoopNode]
    #: Positions of the first and the last node.
    first: int
    last: int
    #: Groups that write values this group reads, and groups that read values it writes.
    before: set[FusionGroup] = field(default_factory=set, repr=False)
    after: set[FusionGroup] = field(default_factory=set, repr=False)
    #: Largest ``last`` among this group and all groups that have to run before it.
    latest: int = 0

    @property
    def loops(self) -> LoopNode:
        """The node whose loops the kernel uses: its reduction, or any element-wise node."""
        return next((n for n in self.nodes if n.kind == "reduction"), self.nodes[0])

    @property
    def is_reduction(self) -> bool:
        """Whether the kernel contains a reduction."""
        return self.loops.kind == "reduction"

    def reads(self) -> dict[TensorAccess, TensorRecord]:
        """Return the reads of values that other groups compute."""
        own = {value for node in self.nodes for value in node.writes}
        return {a: t for node in self.nodes for a, t in node.reads.items() if a.value not in own}

    def writes(self) -> dict[StorageVersion, TensorRecord]:
        """Return the values that the group's nodes compute."""
        return {value: t for node in self.nodes for value, t in node.writes.items()}


def fuse_nodes(nodes: Sequence[LoopNode]) -> list[FusionGroup]:
    """Return fused kernels, ordered so that each runs after the kernels whose results it reads."""
    # Two kernels that share a buffer are fused if their loops agree and no third kernel has to run between them. Pairs
    # of one kind (both with or both without a reduction) come first, then pairs that share the most bytes. A reduction
    # over axes that are not innermost is not fused with an element-wise node over all its points.
    groups = [FusionGroup([node], n, n, latest=n) for n, node in enumerate(nodes)]
    writer = {value: group for group in groups for node in group.nodes for value in node.writes}
    for group in groups:
        for value in group.nodes[0].values():
            source = writer.get(value)
            if source is not None and source is not group:
                group.before.add(source)
                source.after.add(group)
    for _ in range(ROUNDS):
        pairs = sorted(_scored_pairs_sharing_buffers(groups), key=lambda p: p[0], reverse=True)
        merged: dict[FusionGroup, FusionGroup] = {}
        for _, one, other in pairs:
            a, b = (_find_merged_group(merged, g) for g in (one, other))
            a, b = sorted((a, b), key=lambda g: (g.first, g.last))
            if a is not b and _can_fuse(a, b) and not _has_path_between(a, b):
                merged[b] = a
                _merge_groups(a, b)
        if not merged:
            break
        groups = [g for g in groups if g not in merged]
    return _topological_order(groups)


def _find_merged_group(merged: dict[FusionGroup, FusionGroup], group: FusionGroup) -> FusionGroup:
    while group in merged:
        group = merged[group]
    return group


def _merge_groups(a: FusionGroup, b: FusionGroup) -> None:
    a.nodes = sorted(a.nodes + b.nodes, key=lambda n: (n.operator, n.kind == "pointwise"))
    a.first, a.last = min(a.first, b.first), max(a.last, b.last)
    for x in b.before:
        x.after.discard(b)
        if x is not a:
            x.after.add(a)
    for x in b.after:
        x.before.discard(b)
        if x is not a:
            x.before.add(a)
    a.before = (a.before | b.before) - {a, b}
    a.after = (a.after | b.after) - {a, b}
    a.latest = max(a.latest, b.latest, a.last)
    todo = [a]
    while todo:
        group = todo.pop()
        for follower in group.after:
            if follower.latest < a.latest:
                follower.latest = a.latest
                todo.append(follower)


def _scored_pairs_sharing_buffers(
    groups: Sequence[FusionGroup],
) -> Iterator[tuple[tuple[bool, float, int], FusionGroup, FusionGroup]]:
    """Yield pairs of groups that share a buffer, with their scores."""
    users: dict[TensorAccess | StorageVersion, list[FusionGroup]] = defaultdict(list)
    shared: dict[tuple[int, int], tuple[FusionGroup, FusionGroup, float]] = {}
    fusible = [group for group in groups if group.nodes[0].kind != "extern"]
    for group in fusible:
        for value in group.writes():
            users[value].append(group)
    for group in fusible:
        for access, record in group.reads().items():
            users[access].append(group)
            source = users.get(access.value)
            if source and is_contiguous_access(access, element_count(record)):
                _add_shared_bytes(shared, source[0], group, distinct_bytes(record))
    for key, members in users.items():
        if isinstance(key, TensorAccess):
            size = float(distinct_bytes(members[0].reads()[key]))
            for n, one in enumerate(members[:MOST_COMPARED]):
                for other in members[n + 1 : MOST_COMPARED]:
                    _add_shared_bytes(shared, one, other, size)
    for one, other, size in shared.values():
        if size >= LEAST_SAVED_BYTES:
            yield (one.is_reduction == other.is_reduction, size, -abs(other.first - one.last)), one, other


def _add_shared_bytes(
    shared: dict[tuple[int, int], tuple[FusionGroup, FusionGroup, float]],
    one: FusionGroup,
    other: FusionGroup,
    size: float,
) -> None:
    if one is not other:
        key = (id(one), id(other)) if one.first <= other.first else (id(other), id(one))
        before = shared.get(key, (one, other, 0.0))[2]
        shared[key] = (one, other, before + size)


def _can_fuse(a: FusionGroup, b: FusionGroup) -> bool:
    """Return whether the loops of two kernels agree; ``a`` begins earlier."""
    if len(a.nodes) + len(b.nodes) > MOST_NODES or a.nodes[0].graph != b.nodes[0].graph:
        return False
    x, y = a.loops, b.loops
    if a.is_reduction and b.is_reduction:
        return (x.rows, x.length, x.trailing) == (y.rows, y.length, y.trailing)
    if not a.is_reduction and not b.is_reduction:
        return x.points == y.points
    reducing, mapping = (x, b) if a.is_reduction else (y, a)
    return all(n.points == reducing.rows or (n.points == reducing.points and reducing.trailing) for n in mapping.nodes)


def _has_path_between(a: FusionGroup, b: FusionGroup) -> bool:
    """Return whether a third kernel has to run between the two."""
    low = min(a.first, b.first)
    todo, seen = [g for g in (a.before | b.before) if g is not a and g is not b], set[FusionGroup]()
    while todo:
        group = todo.pop()
        if group in seen or group.latest < low:  # everything upstream of it runs before both
            continue
        seen.add(group)
        if a in group.before or b in group.before:
            return True
        todo.extend(group.before)
    return False


def _topological_order(groups: Sequence[FusionGroup]) -> list[FusionGroup]:
    """Return groups ordered so that each follows the groups it reads from; ties go to the earliest last node."""
    waiting = {g: len(g.before) for g in groups}
    ready = [(g.last, n, g) for n, g in enumerate(groups) if not g.before]
    heapq.heapify(ready)
    found: list[FusionGroup] = []
    while ready:
        group = heapq.heappop(ready)[2]
        found.append(group)
        for other in group.after:
            waiting[other] -= 1
            if not waiting[other]:
                heapq.heappush(ready, (other.last, id(other), other))
    assert len(found) == len(groups), "fusion: two kernels wait for each other"
    return found
