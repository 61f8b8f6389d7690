"""Keeps the pauses short in which Python answers no request: full garbage collections, and turns of other threads."""

from __future__ import annotations

import gc
import sys

#: A thread that computes figures gives way to the loop after as long; the default of 5 ms adds up over a request.
_TURN_S = 0.0005
#: Full collections that Python starts by itself would go through whole profiles: there are none in practice.
_SELDOM = 100_000


def shorten_pauses() -> None:
    """Set up a server that has imported what it needs."""
    sys.setswitchinterval(_TURN_S)
    young, middle, _ = gc.get_threshold()
    gc.set_threshold(young, middle, _SELDOM)
    pass_over_present_objects()


def pass_over_present_objects() -> None:
    """Collect garbage, and let later collections pass over all objects that there are, such as those of a profile.

    They have no cycles, so they are freed where nothing refers to them any more.
    """
    gc.collect(1)
    gc.freeze()
