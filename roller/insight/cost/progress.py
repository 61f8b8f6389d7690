"""Reports how many operators of a step are priced: a first forecast on a device takes seconds."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from roller.insight.cost.operators import Price, Pricer
from roller.insight.trace.trace import Operator

#: Called with the operators priced so far, and how many there are.
Listener = Callable[[int, int], None]
_LISTENER: ContextVar[Listener | None] = ContextVar("listener", default=None)


@contextmanager
def listening(listener: Listener) -> Iterator[None]:
    """Tell ``listener`` of every operator that is priced meanwhile, in this context."""
    token = _LISTENER.set(listener)
    try:
        yield
    finally:
        _LISTENER.reset(token)


def priced(pricer: Pricer, operators: Iterable[Operator]) -> list[Price]:
    """Return the prices of operators, and keep what was found for them, also where an interrupt cuts it short."""
    todo, listener = tuple(operators), _LISTENER.get()
    found = []
    try:
        for operator in todo:
            found.append(pricer.price(operator))
            if listener is not None:
                listener(len(found), len(todo))
    finally:
        pricer.kernels.save()
    return found
