"""Chooses what a compiled forward pass saves and its backward pass recomputes, by a minimum cut of bytes."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from roller.insight.cost.compiled.loop_nodes import LoopNode, StorageVersion, TensorAccess
from roller.insight.cost.compiled.minimum_cut import INFINITE, FlowNetwork
from roller.insight.cost.gpu.operator_view import distinct_bytes
from roller.insight.trace.trace import TensorRecord

#: Factor per node of distance from the backward pass, largest such distance, and factor for a value not stored
#: otherwise (``get_node_weight`` in ``torch/_functorch/partitioners.py``, PyTorch 2.13).
DISTANCE_BIAS, FARTHEST, UNSTORED_FACTOR = 1.1, 100, 2.0
#: Ratio of a node's input bytes to its result's bytes above which the result is saved, as for a reduction.
REDUCTION_RATIO = 4


@dataclass(frozen=True)
class Partition:
    """Nodes of the forward and the backward pass in order; the backward pass has copies of nodes that it recomputes."""

    forward: list[LoopNode]
    backward: list[LoopNode]
    #: Values that the forward pass saves for the backward pass.
    saved: frozenset[StorageVersion]


def partition_forward_backward(
    forward: Sequence[LoopNode], backward: Sequence[LoopNode], new_storage: Mapping[StorageVersion, int]
) -> Partition:
    """Choose the values that the forward pass saves, and add the recomputation of all others to the backward pass."""
    # ``new_storage`` gives a recomputed value a storage of its own.
    writer = {value: node for node in forward for value in node.writes}
    wanted = {value for node in backward for value in node.values() if value in writer}
    saved = _minimum_cut_values(forward, backward, writer, wanted)
    return Partition(
        list(forward), _backward_with_recomputation(backward, writer, saved, new_storage), frozenset(saved)
    )


def _minimum_cut_values(
    forward: Sequence[LoopNode], backward: Sequence[LoopNode], writer: Mapping[StorageVersion, LoopNode],
    wanted: Collection[StorageVersion],
) -> set[StorageVersion]:  # fmt: skip
    """Return the values of minimum total weight from which the backward pass can compute all values that it reads."""
    readers: dict[StorageVersion, list[LoopNode]] = defaultdict(list)
    for node in forward:
        for value in node.values():
            readers[value].append(node)
    kept = {value for node in backward if node.kind == "extern" for value in node.values()}
    # a graph cannot recompute values of another graph
    compiled = [node for node in forward if node.kind != "extern"]
    kept |= {v for n in (*compiled, *backward) for v in n.values() if v in writer and writer[v].graph != n.graph}
    far = _ids_of_nodes_reading_across_calls(forward, readers)
    distance = _distances_to_backward(forward, readers, wanted)
    network, todo, seen = FlowNetwork(), deque(wanted), set(wanted)
    while todo:
        value = todo.popleft()
        node = writer[value]
        stored = node.kind == "extern" or any(r.kind == "extern" or r.graph != node.graph for r in readers[value])
        weight = distinct_bytes(node.writes[value]) * DISTANCE_BIAS ** max(1, min(distance.get(value, 1), FARTHEST))
        network.connect((value, "in"), (value, "out"), weight if stored else UNSTORED_FACTOR * weight)
        if value in wanted:
            network.connect((value, "out"), "backward", INFINITE)
        if _is_never_recomputed(node, value, kept) or id(node) in far:
            network.connect("forward", (value, "in"), INFINITE)
            continue
        for read in node.values():  # inputs of the step need not be saved
            if read in writer:
                network.connect((read, "out"), (value, "in"), INFINITE)
                if read not in seen:
                    seen.add(read)
                    todo.append(read)
    return {value for value, _ in network.minimum_cut_start_nodes("forward", "backward")}


def _is_never_recomputed(node: LoopNode, value: StorageVersion, kept: Collection[StorageVersion]) -> bool:
    """Return whether a value is never recomputed."""
    if node.kind == "extern" or node.is_random or value in kept:
        return True
    return REDUCTION_RATIO * distinct_bytes(node.writes[value]) < sum(map(distinct_bytes, node.reads.values()))


def _distances_to_backward(
    forward: Sequence[LoopNode],
    readers: Mapping[StorageVersion, Sequence[LoopNode]],
    wanted: Collection[StorageVersion],
) -> dict[StorageVersion, int]:
    """Return, for each value, its distance in nodes from the nearest value that the backward pass reads."""
    found: dict[StorageVersion, int] = {}
    for node in reversed(forward):
        for value in node.writes:
            near = [found[v] + 1 for r in readers[value] for v in r.writes if v in found]
            found[value] = 1 if value in wanted else min(near, default=FARTHEST)
    return found


def _ids_of_nodes_reading_across_calls(
    forward: Sequence[LoopNode], readers: Mapping[StorageVersion, Sequence[LoopNode]]
) -> set[int]:
    """Return the ``id`` of each node that reads a value again after a library call that depends on that value."""
    # Recomputing them in the backward pass would keep the value alive until then.
    place = {id(node): n for n, node in enumerate(forward)}
    found: set[int] = set()
    for node in forward:
        for value in node.writes:
            users = readers[value]
            if len(users) > 1:
                limit = max(place[id(u)] for u in users)
                first = _first_library_call_position(users, limit, place, readers)
                found |= {id(u) for u in users if u.kind != "extern" and place[id(u)] > first}
    return found


def _first_library_call_position(
    users: Sequence[LoopNode],
    limit: int,
    place: Mapping[int, int],
    readers: Mapping[StorageVersion, Sequence[LoopNode]],
) -> int:
    """Return the position of the first library call that chains of readers from ``users`` reach, at most ``limit``."""
    todo, seen, first = list(users), set[int](), limit
    while todo:
        node = todo.pop()
        here = place[id(node)]
        if id(node) in seen or here >= first:
            continue
        seen.add(id(node))
        if node.kind == "extern":
            first = here
            continue
        for value in node.writes:
            todo.extend(readers[value])
    return first


def _backward_with_recomputation(
    backward: Sequence[LoopNode], writer: Mapping[StorageVersion, LoopNode], saved: Collection[StorageVersion],
    new_storage: Mapping[StorageVersion, int],
) -> list[LoopNode]:  # fmt: skip
    """Return the nodes of the backward pass, with copies of the forward nodes that it recomputes."""
    found: list[LoopNode] = []
    recomputed: dict[StorageVersion, StorageVersion] = {}

    def recompute(value: StorageVersion, at: LoopNode) -> None:
        if value in saved or value in recomputed or value not in writer:
            return
        source = writer[value]
        for read in source.values():
            recompute(read, at)
        names = {v: StorageVersion(new_storage[v]) for v in source.writes if v not in saved}
        recomputed.update(names)
        writes = {names[v]: replace(t, storage=names[v].storage) for v, t in source.writes.items() if v in names}
        found.append(replace(source, reads=rename_reads(source.reads), writes=writes, recomputed=True, phase=at.phase))

    def rename_reads(reads: Mapping[TensorAccess, TensorRecord]) -> dict[TensorAccess, TensorRecord]:
        return {
            a._replace(value=recomputed[a.value]) if a.value in recomputed else a:
            replace(t, storage=recomputed[a.value].storage) if a.value in recomputed else t
            for a, t in reads.items()
        }  # fmt: skip

    for node in backward:
        for value in node.values():
            recompute(value, node)
        if any(v in recomputed for v in node.values()):
            node = replace(node, reads=rename_reads(node.reads))
        found.append(node)
    return found
