"""The median time of a call over undisturbed windows."""

from __future__ import annotations

from collections.abc import Callable

from roller_runtime.timing.clock import Clock, system_or_trusting_clock
from roller_runtime.timing.undisturbed_timing_windows import (
    WINDOW_S,
    ExtraTime,
    Timing,
    TimingSeries,
    calls_per_window,
    time_calls_together,
)

#: Time, in seconds, beyond the budget of a comparison that may be spent to find quiet windows.
PATIENCE_S = 2.0


def measure_median(
    run: Callable[[], object],
    *,
    budget_s: float = 0.3,
    min_samples: int = 5,
    max_samples: int = 100,
    warm_up: int = 2,
    clock: Clock | None = None,
    patience: ExtraTime | None = None,
) -> Timing:
    """Return the median time of ``run`` over undisturbed windows; ``run`` must finish its work before it returns.

    Examples
    --------
    >>> measure_median(lambda: None, budget_s=0.001).samples >= 5
    True
    """
    chosen = clock or system_or_trusting_clock()
    more = patience or ExtraTime(chosen, PATIENCE_S)
    try:
        once = min(time_calls_together(run, chosen).wall_s for _ in range(max(1, warm_up)))
        chosen.attend()
        series = TimingSeries(run, chosen, calls_per_window(once, WINDOW_S), min_samples)
        end = chosen.now() + budget_s
        while len(series.windows) < max_samples and (len(series.windows) < min_samples or chosen.now() < end):
            series.take()
        while not series.do_windows_agree() and more.count_and_has_time_left():
            series.retry()
        return series.timing()
    finally:
        more.pause()
        if clock is None:
            chosen.release()
