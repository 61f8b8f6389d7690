"""The minimum cut of a network by Dinic's algorithm (E. A. Dinic, Soviet Math. Doklady 11, 1970)."""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable
from typing import Any

#: Capacity of an edge that is never cut.
INFINITE = float("inf")
_LEAST = 1e-6


class FlowNetwork:
    """A directed network with capacities."""

    def __init__(self) -> None:
        self._number: dict[Any, int] = {}
        self._edges: list[list[int]] = []
        self._to: list[int] = []
        self._residual: list[float] = []

    def _node_number(self, name: Hashable) -> int:
        if name not in self._number:
            self._number[name] = len(self._edges)
            self._edges.append([])
        return self._number[name]

    def connect(self, source: Hashable, to: Hashable, capacity: float) -> None:
        """Add an edge from ``source`` to ``to``."""
        a, b = self._node_number(source), self._node_number(to)
        for start, end, residual in ((a, b, capacity), (b, a, 0.0)):
            self._edges[start].append(len(self._to))
            self._to.append(end)
            self._residual.append(residual)

    def minimum_cut_start_nodes(self, source: Hashable, sink: Hashable) -> set[Any]:
        """Return the start nodes of the edges in a minimum cut."""
        a, b = self._node_number(source), self._node_number(sink)
        while (level := self._distances_from_node(a))[b] >= 0:
            tried = [0] * len(self._edges)
            while self._push_flow_along_path(a, b, level, tried):
                pass
        names = {number: name for name, number in self._number.items()}
        return {
            names[n] for n, edges in enumerate(self._edges) if level[n] >= 0
            for e in edges if e % 2 == 0 and level[self._to[e]] < 0
        }  # fmt: skip

    def _distances_from_node(self, start: int) -> list[int]:
        level = [-1] * len(self._edges)
        level[start] = 0
        todo = deque([start])
        while todo:
            n = todo.popleft()
            for e in self._edges[n]:
                if self._residual[e] > _LEAST and level[self._to[e]] < 0:
                    level[self._to[e]] = level[n] + 1
                    todo.append(self._to[e])
        return level

    def _push_flow_along_path(self, start: int, end: int, level: list[int], tried: list[int]) -> bool:
        """Send flow along one shortest path; return whether such a path exists."""
        path: list[int] = []
        n = start
        while n != end:
            while tried[n] < len(self._edges[n]):
                e = self._edges[n][tried[n]]
                if self._residual[e] > _LEAST and level[self._to[e]] == level[n] + 1:
                    break
                tried[n] += 1
            if tried[n] < len(self._edges[n]):
                path.append(e)
                n = self._to[e]
            elif path:  # a dead end
                n = self._to[path.pop() ^ 1]
                tried[n] += 1
            else:
                return False
        sent = min(self._residual[e] for e in path)
        for e in path:
            self._residual[e] -= sent
            self._residual[e ^ 1] += sent
        return True
