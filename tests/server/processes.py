"""Processes of this machine, as ``/proc`` lists them, for tests that none is left."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from pathlib import Path


def descendants_of(pid: int) -> set[int]:
    """Return the numbers of all processes below one that are no zombies."""
    parents = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if fields[0] != "Z":
            parents[int(stat.parent.name)] = int(fields[1])
    found, todo = set(), [pid]
    while todo:
        below = [one for one, parent in parents.items() if parent in (found | {pid}) and one not in found]
        todo = below
        found.update(below)
    return found


def alive(pids: Iterable[int]) -> set[int]:
    """Return those of some processes that still run."""
    found = set()
    for pid in pids:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            continue
        if state != "Z":
            found.add(pid)
    return found


def wait_until(is_so: Callable[[], object], seconds: float = 30.0) -> None:
    """Wait until a condition holds."""
    end = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < end, "waited for too long"
        time.sleep(0.02)
