"""The position of each call in the step: the marks and operators around the call on its thread."""

# A backward operator shares a sequence number, and so the layer, with its forward operator; the accumulation of
# gradients has the layer of the previous operator; a device task has the context of its call.

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
#: Marks that libraries set around communication, which are not layers.
_LIBRARY = re.compile(r"(nccl|gloo|ucc|mpi):")
_SUMS = "AccumulateGrad"
_MARK, _OPERATOR, _CALL = range(3)


def is_batch_loading(event: Event) -> bool:
    """Return whether an event marks the loading of a batch.

    Examples
    --------
    >>> name = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
    >>> is_batch_loading(Event(name, "mark", 0, 9, "1", None, {}))
    True
    """
    return event.kind == "mark" and _LOADING.match(event.name) is not None


def is_step_mark(event: Event) -> bool:
    """Return whether an event marks a step of the profiler's schedule."""
    return event.kind == "mark" and _STEP.match(event.name) is not None


def is_communication_mark(event: Event) -> bool:
    """Return whether an event is a library's mark around its communication."""
    return event.kind in ("mark", "operator") and _LIBRARY.match(event.name) is not None


def contexts_of_calls(calls: Sequence[Event], events: Sequence[Event]) -> list[TaskContext]:
    """Return the context of each call."""
    return _ContextFinder(calls, [e for e in events if e.kind in ("mark", "operator")]).found


class _ContextFinder:
    """Finds each call's context from the open marks on its thread and the layers of forward sequence numbers."""

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
        # the thread that begins first runs the forward pass; backward threads look up its sequence numbers
        for lane in sorted(threads, key=lambda x: (min(threads[x]), x)):
            self._find_contexts_on_thread(sorted(threads[lane]))

    def _find_contexts_on_thread(self, items: list[tuple[float, float, int, str, int]]) -> None:
        stack: list[tuple[float, TaskContext]] = []
        self.last_layer = ""
        for start, minus_duration, kind, name, n in items:
            while stack and stack[-1][0] <= start:
                stack.pop()
            # a step may begin within the optimizer's mark, if a hook of the optimizer ends the step
            outer = stack[-1][1] if stack and not _STEP.match(name) else self._context_outside_marks(start)
            if kind != _CALL:
                stack.append((start - minus_duration, self._context_within(self.around[n], outer)))
            elif is_batch_loading(self.calls[n]):
                self.found[n] = outer._replace(phase="data")
            else:
                own = self.calls[n].kind == "operator"
                self.found[n] = self._context_within(self.calls[n], outer) if own else outer

    def _context_outside_marks(self, start: float) -> TaskContext:
        """Return the context of a call outside all marks: within a step, the forward pass."""
        if not self.starts:
            return TaskContext(0, "forward")
        step = bisect_right(self.starts, start) - 1
        return TaskContext(step, "forward" if step >= 0 and start <= self.ends[step] else "other")

    def _context_within(self, event: Event, outer: TaskContext) -> TaskContext:
        named = "data" if is_batch_loading(event) else _phase_of_mark_or_operator(event.name)
        phase = named or outer.phase
        if event.kind == "mark":
            is_layer = named is None and not _STEP.match(event.name) and not _LIBRARY.match(event.name)
            return outer._replace(phase=phase, module=event.name.removeprefix(MODULE) if is_layer else outer.module)
        said = event.arguments
        layer = self._layer_of_operator(event.name, said.get("sequence"), phase, outer.module)
        shapes, dtypes = said.get("shapes", outer.shapes), said.get("dtypes", outer.dtypes)
        return TaskContext(outer.iteration, phase, layer, event.name, shapes, dtypes)

    def _layer_of_operator(self, name: str, sequence: Any, phase: Phase, outer: str) -> str:
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
def _phase_of_mark_or_operator(name: str) -> Phase | None:
    """Return the phase that a mark or an operator denotes; ``None`` if it denotes none, as for a module."""
    if name.startswith(MODULE):
        return None
    return next((phase for phase, pattern in _PHASES if pattern.match(name)), None)
