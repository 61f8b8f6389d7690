"""Shortens pauses in which Python handles no request: full garbage collections, and other threads' time slices."""

from __future__ import annotations

import gc
import sys

#: Switch interval of threads in seconds; the default of 5 ms adds up over a request.
_TURN_S = 0.0005
#: Threshold for full collections, which would traverse whole profiles; this value effectively disables them.
_SELDOM = 100_000


def tune_gc_and_switch_interval() -> None:
    """Configure thread switching and garbage collection; called after all imports."""
    sys.setswitchinterval(_TURN_S)
    young, middle, _ = gc.get_threshold()
    gc.set_threshold(young, middle, _SELDOM)
    freeze_present_objects()


def freeze_present_objects() -> None:
    """Collect garbage and exclude all present objects, such as a profile's, from later collections."""
    # Profiles have no reference cycles, so they are freed without the collector.
    gc.collect(1)
    gc.freeze()
