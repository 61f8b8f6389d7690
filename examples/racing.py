"""What both races share: how the machine was disturbed meanwhile, said in the words of the clock."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from roller.runtime.clock import system_clock
from roller.runtime.disturbance import Disturbance


@dataclass
class Watched:
    """What others did on the processors within a ``with`` block: empty where nothing was seen."""

    doubt: str = ""


@contextmanager
def watched() -> Iterator[Watched]:
    """Watch the machine while something is timed."""
    clock, found = system_clock(), Watched()
    before = clock.load()
    try:
        yield found
    finally:
        if not clock.trusting:
            found.doubt = str(Disturbance.between(before, clock.load()))
