"""Leaves out dependencies that the times of a profile contradict, where tasks would wait for each other in a circle."""

from __future__ import annotations

from collections.abc import Sequence

from roller.insight.step.graph import Dependency, Task


def consistent(tasks: Sequence[Task], dependencies: Sequence[Dependency]) -> list[Dependency]:
    """Return the dependencies of tasks; only those that go forward in the profile's time where all make a circle.

    A damaged correlation ties a kernel to a call that came later; numbers are used again, and clocks differ.
    """
    if _is_ordered(len(tasks), dependencies):
        return list(dependencies)

    def when(number: int, of_end: bool) -> tuple[float, int, bool]:
        task = tasks[number]
        return (task.measured_end_us if of_end else task.measured_start_us), number, of_end

    return [d for d in dependencies if when(d.source, d.of_end) < when(d.target, d.to_end)]


def _is_ordered(count: int, dependencies: Sequence[Dependency]) -> bool:
    """Return whether starts and ends of so many tasks, each end after its start, can happen one after another."""
    waits = [0, 1] * count  # of task n: its start is event 2 n, its end 2 n + 1
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
