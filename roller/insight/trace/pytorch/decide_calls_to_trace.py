"""Decides how many calls of a step to trace: until every optimizer has stepped and the calls repeat.

A step that accumulates gradients updates once in several calls, and a step with varying lengths needs different memory
in each call. Calls are equal if their forward passes run the same operators on the same shapes, and the same
optimizers step.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from roller.insight.trace.pytorch.compat import is_in_place_name
from roller.insight.trace.trace import Operator

#: Minimum number of traced calls, since the first call sets up the state of optimizers.
LEAST = 2
#: Maximum number of traced calls if some optimizer does not step twice.
MOST = 32
#: Maximum number of traced calls if all optimizers have stepped twice but the calls do not repeat.
MOST_UNLIKE = 16


@dataclass(frozen=True)
class Call:
    """One call of a step.

    Parameters
    ----------
    first
        Index of the call's first operator.
    forward
        Hash of the operators and shapes in the call's forward pass.
    stepped
        Indices of the optimizers that step in the call.
    """

    first: int
    forward: int
    stepped: frozenset[int]


@dataclass(frozen=True)
class Cycle:
    """The repeating calls at the end of a trace.

    Parameters
    ----------
    calls
        Number of calls; if none repeat, the number of calls in the last half of the trace.
    steps
        Number of training steps: calls in which an optimizer steps, or all calls if no optimizer steps.
    repeats
        Whether the preceding calls were equal to these.
    """

    calls: int
    steps: int
    repeats: bool

    @property
    def calls_per_step(self) -> float:
        """Number of calls per training step."""
        return self.calls / self.steps


def forward_hash(operators: Sequence[Operator]) -> int:
    """Return a hash of the operators and shapes in a call's forward pass, excluding operators that clear gradients."""
    return hash(
        tuple(
            (o.name, *(t.shape for t in o.outputs))
            for o in operators
            if o.phase == "forward" or (o.phase == "other" and not is_in_place_name(o.name))
        )
    )


def find_repeating_cycle(calls: Sequence[Call], optimizers: frozenset[int]) -> Cycle | None:
    """Return the shortest cycle at a trace's end in which all given optimizers step; ``None`` if there is none.

    Examples
    --------
    If three calls accumulate and a fourth steps, eight calls are needed.

    >>> calls = [Call(n, 7, frozenset([0]) if n % 4 == 3 else frozenset()) for n in range(8)]
    >>> [find_repeating_cycle(calls[:n], frozenset([0])) is not None for n in (2, 4, 7, 8)]
    [False, False, False, True]
    >>> find_repeating_cycle(calls, frozenset([0]))
    Cycle(calls=4, steps=1, repeats=True)
    """
    kinds = [(call.forward, call.stepped) for call in calls]
    for size in range(1, len(calls) // 2 + 1):
        last = calls[-size:]
        done = frozenset().union(*(call.stepped for call in last))
        if kinds[-size:] == kinds[-2 * size : -size] and optimizers <= done and _ends_with_optimizer_step(last):
            return Cycle(size, len(list(_calls_with_optimizer_step(last))), True)
    return None


def repeating_or_last_half_cycle(calls: Sequence[Call], optimizers: frozenset[int]) -> Cycle:
    """Return the cycle at the end of a trace; if nothing repeats, the steps in the last half of the trace."""
    found = find_repeating_cycle(calls, optimizers) if len(calls) > 1 else None
    if found is not None:
        return found
    bounds = call_counts_at_step_ends(calls)
    steps = max(1, len(bounds) // 2)
    first = bounds[-steps - 1] if steps < len(bounds) else 0
    return Cycle(max(1, bounds[-1] - first), steps, len(calls) == 1)


def call_counts_at_step_ends(calls: Sequence[Call]) -> list[int]:
    """Return, for each training step, the number of calls up to the step's end; the last step ends with the trace."""
    ends = [n + 1 for n, call in enumerate(calls) if call.stepped]
    if not ends:
        return list(range(1, len(calls) + 1))
    ends[-1] = len(calls)
    return ends


def is_trace_complete(calls: Sequence[Call], optimizers: frozenset[int]) -> bool:
    """Return whether no further call has to be traced."""
    if len(calls) < LEAST:
        return False
    if find_repeating_cycle(calls, optimizers) is not None or len(calls) >= MOST:
        return True
    stepped = [sum(n in call.stepped for call in calls) for n in optimizers]
    return len(calls) >= MOST_UNLIKE and all(times > 1 for times in stepped)


def cycle_notes(
    calls: Sequence[Call], cycle: Cycle, names: dict[int, str], optimizers: frozenset[int]
) -> Iterator[str]:
    """Yield notes on calls that differ and on optimizers that do not step."""
    done = frozenset().union(*(call.stepped for call in calls))
    count = len(calls)
    for number in sorted(optimizers - done):
        yield (
            f"{names[number]}: the optimizer does not step within {count} calls, so its state is not counted and its "
            f"time is missing. Trace more: --calls {4 * count}, in Python calls={4 * count}."
        )
    if count == 1 and done:
        yield (
            "calls: one call was traced, in which optimizers create their state. Its time and memory are those of a "
            "first step; --calls 2, in Python calls=2, gives a steady one."
        )
    elif not cycle.repeats:
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
            f"calls: optimizers step every {cycle.calls_per_step:g} calls. A step is all of these: its time is theirs, "
            f"and its samples are {cycle.calls_per_step:g} batches."
        )


def no_update_note(count: int) -> str:
    """Return the note on a step that computes gradients but never updates a parameter."""
    return (
        f"optimizer: none steps within {count} calls, though parameters get gradients, so neither its time nor its "
        f"state is counted. Where the step updates them every so many calls, trace more: --calls {4 * count}, in "
        f"Python calls={4 * count}."
    )


def _ends_with_optimizer_step(calls: Sequence[Call]) -> bool:
    """Return whether calls end with an optimizer's step or contain no such step."""
    return bool(calls[-1].stepped) or not any(call.stepped for call in calls)


def _calls_with_optimizer_step(calls: Sequence[Call]) -> Iterator[Call]:
    any_steps = any(call.stepped for call in calls)
    return (call for call in calls if call.stepped or not any_steps)
