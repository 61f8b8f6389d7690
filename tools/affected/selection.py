"""Selection: from changed files to the test files that can reach them, nearest first."""

from __future__ import annotations

import re
from collections import defaultdict, deque
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from tools.affected.data_files import ALWAYS, SELECTS_NONE, selects_all
from tools.affected.import_graph import Graph, Repository, build_graph

_TEST_FILE = re.compile(r"tests/(.*/)?test_\w+\.py")


@dataclass(frozen=True)
class Selected:
    """A test file that a change can reach.

    Parameters
    ----------
    path
        A test file, or a module with doctests.
    distance
        Edges of the import graph between the change and the file: 0 where it changed itself.
    why
        The files between them, the changed one last.
    """

    path: str
    distance: int
    why: tuple[str, ...]

    def __str__(self) -> str:
        """Return one line: distance, file, reason."""
        return f"{self.distance:3} {self.path}" + (f"  <- {' <- '.join(self.why)}" if self.why else "")


def affected(changed: Iterable[str], root: Path) -> list[Selected]:
    """Return the test files that changed files can reach, nearest first.

    A changed file that no rule knows selects every test file: those that no edge leads to come last.
    """
    repository = Repository(root)
    return select(list(changed), build_graph(repository), repository)


def select(changed: list[str], graph: Graph, repository: Repository) -> list[Selected]:
    """Select test files with a graph that is built already; see :func:`affected`."""
    tests = test_files(repository)
    users: dict[str, list[str]] = defaultdict(list)
    for node in sorted(graph):
        for other in graph[node]:
            users[other].append(node)
    is_gone = {p for p in changed if not (repository.root / p).exists() and _TEST_FILE.fullmatch(p)}
    everything = selects_all((p for p in changed if p not in is_gone), graph.keys() | users.keys())
    sources = [p for p in changed if p not in is_gone and not SELECTS_NONE.fullmatch(p)]
    came = _breadth_first(sources, users)
    found = [Selected(path, *_route(node, came)) for path in tests for node in _nodes(path) if node in came]
    nearest = {s.path: s for s in sorted(found, key=lambda s: (-s.distance, s.path))}
    far = max((s.distance for s in nearest.values()), default=0) + 1
    why = everything or "inspects the whole repository"
    for path in tests if everything else tests.intersection(ALWAYS):
        nearest.setdefault(path, Selected(path, far, (why,)))
    return sorted(nearest.values(), key=lambda s: (s.distance, s.path))


def test_files(repository: Repository) -> set[str]:
    """Return all files with tests or doctests."""
    code = ("roller/", "roller_runtime/", "tests/", "tools/")
    return {
        path
        for path, text in repository.texts.items()
        if _TEST_FILE.fullmatch(path) or (path.startswith(code) and path.endswith(".py") and ">>>" in text)
    }


def reachable(starts: Iterable[str], graph: Graph) -> set[str]:
    """Return all nodes that some nodes reach, themselves among them."""
    seen, todo = set(starts), list(starts)
    while todo:
        fresh = graph.get(todo.pop(), set()) - seen
        seen |= fresh
        todo += fresh
    return seen


def _nodes(path: str) -> tuple[str, str]:
    return path, f"{path}::doctests"


def _breadth_first(sources: list[str], users: dict[str, list[str]]) -> dict[str, str]:
    """Return for every node that reaches a source the next node on the shortest way to it."""
    came = dict.fromkeys(sources, "")
    todo = deque(sources)
    while todo:
        node = todo.popleft()
        for user in users.get(node, ()):
            if user not in came:
                came[user] = node
                todo.append(user)
    return came


def _route(node: str, came: dict[str, str]) -> tuple[int, tuple[str, ...]]:
    """Return the distance of a node to its source, and the files between."""
    files: list[str] = []
    while came[node]:
        node = came[node]
        files.append(node)
    return len(files), tuple(files)


test_files.__test__ = False  # type: ignore[attr-defined] # pytest does not collect it
