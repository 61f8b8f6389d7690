"""Minimum cut of a flow network (Dinic's algorithm): the cheapest assignment of one of two labels to each node.

Neighbours with different labels incur a cost. Capacities are integers, so that results are identical on all machines.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import ClassVar

#: Capacity of an edge that must not be cut.
INFINITE = 1 << 62


@dataclass
class FlowNetwork:
    """A flow network; nodes, including the source and the sink, are integers."""

    SOURCE: ClassVar[int] = 0
    SINK: ClassVar[int] = 1
    nodes: int = 2
    heads: list[int] = field(default_factory=list)
    room: list[int] = field(default_factory=list)
    edges: list[list[int]] = field(default_factory=lambda: [[], []])

    def add_node(self) -> int:
        """Add a node and return it."""
        self.nodes += 1
        self.edges.append([])
        return self.nodes - 1

    def add_edge(self, tail: int, head: int, capacity: int) -> None:
        """Add an edge that costs ``capacity`` if ``tail`` is on the source's side and ``head`` on the sink's."""
        for here, there, room in ((tail, head, capacity), (head, tail, 0)):
            self.edges[here].append(len(self.heads))
            self.heads.append(there)
            self.room.append(room)

    def source_side(self) -> set[int]:
        """Return the smallest set of nodes on the source's side of a minimum cut.

        Examples
        --------
        >>> net = FlowNetwork()
        >>> a, b = net.add_node(), net.add_node()
        >>> for tail, head, cost in [(net.SOURCE, a, 5), (a, net.SINK, 2), (b, net.SINK, 2), (a, b, 3)]:
        ...     net.add_edge(tail, head, cost)
        >>> a in net.source_side(), b in net.source_side()
        (True, True)
        """
        while True:
            level = self._bfs_levels()
            if level[self.SINK] < 0:
                return {n for n in range(self.nodes) if level[n] >= 0}
            first = [0] * self.nodes
            while self._augment_flow(level, first):
                pass

    def _bfs_levels(self) -> list[int]:
        """Return each node's distance from the source over edges with residual capacity; -1 if unreachable."""
        level = [-1] * self.nodes
        level[self.SOURCE], queue = 0, deque([self.SOURCE])
        while queue:
            here = queue.popleft()
            for e in self.edges[here]:
                if self.room[e] > 0 and level[self.heads[e]] < 0:
                    level[self.heads[e]] = level[here] + 1
                    queue.append(self.heads[e])
        return level

    def _augment_flow(self, level: list[int], first: list[int]) -> bool:
        """Augment the flow along one shortest path; return whether there was one."""
        way: list[int] = []
        here = self.SOURCE
        while here != self.SINK:
            edges = self.edges[here]
            while first[here] < len(edges):
                e = edges[first[here]]
                if self.room[e] > 0 and level[self.heads[e]] == level[here] + 1:
                    break
                first[here] += 1
            if first[here] < len(edges):
                way.append(edges[first[here]])
                here = self.heads[way[-1]]
            elif not way:
                return False
            else:
                here = self.heads[way.pop() ^ 1]
                first[here] += 1
        least = min(self.room[e] for e in way)
        for e in way:
            self.room[e] -= least
            self.room[e ^ 1] += least
        return True
