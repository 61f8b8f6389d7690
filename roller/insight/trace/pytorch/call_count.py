"""How many calls of a step are traced: until every optimizer has stepped, and the calls repeat.

A step that accumulates gradients updates once in several calls; one whose lengths differ asks for other memory in each.
Calls are alike if their forwards run the same operators on the same shapes, and the same optimizers step.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from roller.insight.trace.pytorch.compat import writes_by_name
from roller.insight.trace.trace import Operator

#: Calls that are traced at least: the first sets up the state of optimizers.
LEAST = 2
#: Calls that are traced at most until all optimizers have stepped twice.
MOST = 32
#: Calls that are traced at most until shapes repeat, where all optimizers have stepped.
MOST_UNLIKE = 16


@dataclass(frozen=True)
class Call:
    """One call of a step.

    Parameters
    ----------
    first
        Index of its first operator.
    forward
        What its forward runs: equal for calls that are alike.
    stepped
        The optimizers that step in it, by their number.
    """

    first: int
    forward: int
    stepped: frozenset[int]


@dataclass(frozen=True)
class Cycle:
    """The calls at the end of a trace that repeat.

    Parameters
    ----------
    calls
        How many; those of the last half of the trace where none repeat.
    steps
        Training steps in them: calls after which an optimizer steps; every call where none does.
    repeats
        Whether the calls before were alike.
    """

    calls: int
    steps: int
    repeats: bool

    @property
    def accumulate(self) -> float:
        """Calls for each step."""
        return self.calls / self.steps


def forward_of(operators: Sequence[Operator]) -> int:
    """Return what the forward of a call runs, as one number; what only clears gradients is left out."""
    return hash(
        tuple(
            (o.name, *(t.shape for t in o.outputs))
            for o in operators
            if o.phase == "forward" or (o.phase == "other" and not writes_by_name(o.name))
        )
    )


def cycle_of(calls: Sequence[Call], optimizers: frozenset[int]) -> Cycle | None:
    """Return the shortest cycle that ends a trace, in which all of these optimizers step; ``None``: there is none.

    Examples
    --------
    Three calls that accumulate, and a fourth that steps: it takes eight to know.

    >>> calls = [Call(n, 7, frozenset([0]) if n % 4 == 3 else frozenset()) for n in range(8)]
    >>> [cycle_of(calls[:n], frozenset([0])) is not None for n in (2, 4, 7, 8)]
    [False, False, False, True]
    >>> cycle_of(calls, frozenset([0]))
    Cycle(calls=4, steps=1, repeats=True)
    """
    kinds = [(call.forward, call.stepped) for call in calls]
    for size in range(1, len(calls) // 2 + 1):
        last = calls[-size:]
        done = frozenset().union(*(call.stepped for call in last))
        if kinds[-size:] == kinds[-2 * size : -size] and optimizers <= done and _ends(last):
            return Cycle(size, len(list(_steps(last))), True)
    return None


def traced_cycle(calls: Sequence[Call], optimizers: frozenset[int]) -> Cycle:
    """Return the cycle at the end of a trace; where nothing repeats, the steps of its last half."""
    found = cycle_of(calls, optimizers) if len(calls) > 1 else None
    if found is not None:
        return found
    bounds = boundaries(calls)
    steps = max(1, len(bounds) // 2)
    first = bounds[-steps - 1] if steps < len(bounds) else 0
    return Cycle(max(1, bounds[-1] - first), steps, len(calls) == 1)


def boundaries(calls: Sequence[Call]) -> list[int]:
    """Return after how many calls each training step ends; the last one ends with the trace."""
    ends = [n + 1 for n, call in enumerate(calls) if call.stepped]
    if not ends:
        return list(range(1, len(calls) + 1))
    ends[-1] = len(calls)
    return ends


def is_enough(calls: Sequence[Call], optimizers: frozenset[int]) -> bool:
    """Whether no further call is traced."""
    if len(calls) < LEAST:
        return False
    if cycle_of(calls, optimizers) is not None or len(calls) >= MOST:
        return True
    stepped = [sum(n in call.stepped for call in calls) for n in optimizers]
    return len(calls) >= MOST_UNLIKE and all(times > 1 for times in stepped)


def said(calls: Sequence[Call], cycle: Cycle, names: dict[int, str], optimizers: frozenset[int]) -> Iterator[str]:
    """Yield what a report says of calls that are not alike, or of an optimizer that does not step."""
    done = frozenset().union(*(call.stepped for call in calls))
    count = len(calls)
    for number in sorted(optimizers - done):
        yield (
            f"{names[number]}: the optimizer does not step within {count} calls, so its state is not counted and its "
            f"time is missing. Trace more: --calls {4 * count}, in Python calls={4 * count}."
        )
    if not cycle.repeats:
        yield (
            f"calls: none of the {count} that were traced repeat in shapes and updates. Time is the mean of the last "
            f"{cycle.steps} steps, memory the most of all; a longer one may need more. --calls traces more."
        )
    elif cycle.steps > 1:
        yield (
            f"calls: {cycle.calls} that differ repeat. Time is the mean of their {cycle.steps} steps, memory the most "
            f"of all."
        )
    if cycle.repeats and done and cycle.calls > cycle.steps:
        yield (
            f"calls: optimizers step every {cycle.accumulate:g} calls. A step is all of these: its time is theirs, and "
            f"its samples are {cycle.accumulate:g} batches."
        )


def never_updated(count: int) -> str:
    """Return what a report says of a step that computes gradients and never updates a parameter."""
    return (
        f"optimizer: none steps within {count} calls, though parameters get gradients, so neither its time nor its "
        f"state is counted. Where the step updates them every so many calls, trace more: --calls {4 * count}, in "
        f"Python calls={4 * count}."
    )


def _ends(calls: Sequence[Call]) -> bool:
    """Whether calls end with a step, or hold none."""
    return bool(calls[-1].stepped) or not any(call.stepped for call in calls)


def _steps(calls: Sequence[Call]) -> Iterator[Call]:
    any_steps = any(call.stepped for call in calls)
    return (call for call in calls if call.stepped or not any_steps)
