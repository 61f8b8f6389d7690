"""Where in the step each call belongs: the marks and operators that stand around it on its thread.

Nothing is synchronised to find it out. A backward operator shares a sequence number with its forward one, and so the
layer; gradients that are summed up follow the operator before them; a device task belongs where its call does.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from roller.insight.step.graph import NO_CONTEXT, TaskContext
from roller.insight.step.kineto_reader import MODULE, Event
from roller.insight.trace.trace import Phase

_STEP = re.compile(r"ProfilerStep")
_LOADING = re.compile(r"enumerate\(|.*DataLoader")
_PHASES: tuple[tuple[Phase, re.Pattern[str]], ...] = (
    ("backward", re.compile(r"(torch::)?autograd::|.*Backward\d*$|(## )?backward( ##)?$")),
    ("other", re.compile(r"Optimizer\.zero_grad|(## )?zero_grad( ##)?$")),
    ("optimizer", re.compile(r"Optimizer\.|(## )?(optim(izer)?|update)( ##)?$")),
    ("forward", re.compile(r"(.*\.|## )?forward( ##)?$")),
)
#: Marks that libraries set around what they send: no layers.
_LIBRARY = re.compile(r"(nccl|gloo|ucc|mpi):")
_SUMS = "AccumulateGrad"
_MARK, _OPERATOR, _CALL = range(3)


def is_loading(event: Event) -> bool:
    """Return whether an event is the loading of a batch.

    Examples
    --------
    >>> is_loading(Event("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", "mark", 0, 9, "1", None, {}))
    True
    """
    return event.kind == "mark" and _LOADING.match(event.name) is not None


def places(calls: Sequence[Event], events: Sequence[Event]) -> list[TaskContext]:
    """Return the place of every call.

    Parameters
    ----------
    calls
        What is done on threads.
    events
        All of the profile; operators and marks of it are read.
    """
    return _Places(calls, [e for e in events if e.kind in ("mark", "operator")]).found


class _Places:
    """What is open on the thread at hand, and which layer a forward's sequence number belongs to."""

    def __init__(self, calls: Sequence[Event], around: Sequence[Event]) -> None:
        self.calls, self.around = calls, around
        self.found = [NO_CONTEXT] * len(calls)
        self.layers: dict[int, str] = {}
        self.last_layer = ""
        steps = sorted({(e.start_us, e.end_us) for e in around if e.kind == "mark" and _STEP.match(e.name)})
        self.starts, self.ends = [s for s, _ in steps], [e for _, e in steps]
        threads: dict[str, list[tuple[float, float, int, str, int]]] = defaultdict(list)
        for n, e in enumerate(around):
            kind = _MARK if e.kind == "mark" else _OPERATOR
            threads[e.lane].append((e.start_us, -e.duration_us, kind, e.name, n))
        for n, e in enumerate(calls):
            threads[e.lane].append((e.start_us, -e.duration_us, _CALL, e.name, n))
        # a thread that begins sooner runs the forward, whose sequence numbers another's backward looks up
        for lane in sorted(threads, key=lambda x: (min(threads[x]), x)):
            self._sweep(sorted(threads[lane]))

    def _sweep(self, items: list[tuple[float, float, int, str, int]]) -> None:
        stack: list[tuple[float, TaskContext]] = []
        self.last_layer = ""
        for start, minus_duration, kind, name, n in items:
            while stack and stack[-1][0] <= start:
                stack.pop()
            # a step may begin before the optimizer's mark has ended, in which a hook told that one is over
            outer = stack[-1][1] if stack and not _STEP.match(name) else self._outside(start)
            if kind != _CALL:
                stack.append((start - minus_duration, self._within(self.around[n], outer)))
            elif is_loading(self.calls[n]):
                self.found[n] = outer._replace(phase="data")
            else:
                own = self.calls[n].kind == "operator"
                self.found[n] = self._within(self.calls[n], outer) if own else outer

    def _outside(self, start: float) -> TaskContext:
        """Return the place of what no mark stands around: on the thread that trains, that is the forward."""
        if not self.starts:
            return TaskContext(0, "forward")
        step = bisect_right(self.starts, start) - 1
        return TaskContext(step, "forward" if step >= 0 and start <= self.ends[step] else "other")

    def _within(self, event: Event, outer: TaskContext) -> TaskContext:
        named = "data" if is_loading(event) else _phase_of(event.name)
        phase = named or outer.phase
        if event.kind == "mark":
            is_layer = named is None and not _STEP.match(event.name) and not _LIBRARY.match(event.name)
            return outer._replace(phase=phase, module=event.name.removeprefix(MODULE) if is_layer else outer.module)
        said = event.arguments
        layer = self._layer(event.name, said.get("sequence"), phase, outer.module)
        shapes, dtypes = said.get("shapes", outer.shapes), said.get("dtypes", outer.dtypes)
        return TaskContext(outer.iteration, phase, layer, event.name, shapes, dtypes)

    def _layer(self, name: str, sequence: Any, phase: Phase, outer: str) -> str:
        if phase != "backward":
            if isinstance(sequence, int) and sequence >= 0 and outer:
                self.layers[sequence] = outer
            return outer
        if _SUMS in name:
            return self.last_layer or outer
        if isinstance(sequence, int) and sequence in self.layers:
            self.last_layer = self.layers[sequence]
            return self.last_layer
        return outer


@lru_cache(maxsize=4096)
def _phase_of(name: str) -> Phase | None:
    """Return the phase that a mark or an operator begins; a module's name says nothing."""
    if name.startswith(MODULE):
        return None
    return next((phase for phase, pattern in _PHASES if pattern.match(name)), None)
