"""Removal of dependencies that contradict a profile's times, for dependencies that form a cycle."""

from __future__ import annotations

from collections.abc import Sequence

from roller.insight.step.graph import Dependency, Task


def drop_contradictory_dependencies(tasks: Sequence[Task], dependencies: Sequence[Dependency]) -> list[Dependency]:
    """Return the dependencies; if they form a cycle, keep only those that go forward in the profile's time."""
    # Cycles arise if a damaged correlation number ties a kernel to a later call, if correlation numbers are reused, or
    # if clocks differ.
    if _is_acyclic(len(tasks), dependencies):
        return list(dependencies)

    def event_key(number: int, of_end: bool) -> tuple[float, int, bool]:
        task = tasks[number]
        return (task.measured_end_us if of_end else task.measured_start_us), number, of_end

    return [d for d in dependencies if event_key(d.source, d.of_end) < event_key(d.target, d.to_end)]


def _is_acyclic(count: int, dependencies: Sequence[Dependency]) -> bool:
    """Return whether the starts and ends of ``count`` tasks can be sorted topologically."""
    waits = [0, 1] * count  # the start of task n is event 2 n, its end 2 n + 1
    held: list[list[int]] = [[] for _ in range(2 * count)]
    for d in dependencies:
        held[2 * d.source + d.of_end].append(2 * d.target + d.to_end)
        waits[2 * d.target + d.to_end] += 1
    ready = [n for n in range(0, 2 * count, 2) if not waits[n]]
    done = 0
    while ready:
        event = ready.pop()
        done += 1
        for then in (*held[event], *((event + 1,) if event % 2 == 0 else ())):
            waits[then] -= 1
            if not waits[then]:
                ready.append(then)
    return done == 2 * count
