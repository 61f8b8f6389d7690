"""Detection of GPU profiles without device events, which must not be mistaken for runs on a CPU."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Sequence

from roller.insight.step.graph import DEVICE_KINDS
from roller.insight.step.kineto_reader import Event, Profile

#: Largest accepted share of launches without a kernel: buffers overflow, and events at a profile's ends are lost.
MOST_MISSING = 0.1
_REMEDY = "Record it with ProfilerActivity.CUDA beside CPU, or with roller record."


def missing_events_reason(profile: Profile) -> str:
    """Return why a profile has too few device events for a prediction; ``""`` if it has enough.

    Examples
    --------
    >>> launch = Event("cudaLaunchKernel", "call", 0.0, 4.0, "process 1, thread 1", 1, {})
    >>> missing_events_reason(Profile([launch]))[13:62]
    'events are missing, though a GPU was at work (cud'
    """
    calls = [e for e in profile.events if e.kind == "call"]
    if not any(e.kind in DEVICE_KINDS for e in profile.events):
        sign = calls[0].name if calls else profile.device_signs
        said = f"The device's events are missing, though a GPU was at work ({sign})"
        return f"{said}: only the host's time is in the profile. {_REMEDY}" if sign else ""
    launches, without = _count_all_and_lost_launches(profile)
    if without <= MOST_MISSING * launches:
        return ""
    return f"Of {launches} launches {without} have no kernel in the profile: device events are missing. {_REMEDY}"


def missing_events_notes(profile: Profile) -> tuple[str, ...]:
    """Return notes on a profile that is used although some or all of its device events may be missing."""
    if missing_events_reason(profile):
        return ()
    if any(e.kind in DEVICE_KINDS for e in profile.events):
        launches, without = _count_all_and_lost_launches(profile)
        have = "has" if without == 1 else "have"
        said = f"{without} of {launches} launches {have} no kernel in the profile: its time is not in any answer."
        return (said,) if without else ()
    if not profile.has_properties:
        return ()
    return ("The machine has a GPU, but nothing in the profile ran on it: it is taken for a run on the processor.",)


def _count_all_and_lost_launches(profile: Profile) -> tuple[int, int]:
    """Return the number of kernel launches, excluding captured ones, and the number of launches without a kernel."""
    launched = {e.correlation for e in profile.events if e.kind in DEVICE_KINDS}
    kernels = {e.correlation for e in profile.events if e.kind in ("kernel", "collective")}
    calls = [e for e in profile.events if e.kind == "call"]
    names, captures = {e.name for e in calls if e.correlation in kernels}, _graph_capture_times_by_thread(calls)
    launches = [e for e in calls if e.name in names and not _is_during_graph_capture(e, captures)]
    return len(launches), sum(e.correlation not in launched for e in launches)


def _graph_capture_times_by_thread(calls: Sequence[Event]) -> dict[str, tuple[list[float], list[float]]]:
    """Return the times at which each thread begins and ends graph capture; captured launches do not run."""
    found: dict[str, tuple[list[float], list[float]]] = defaultdict(lambda: ([], []))
    for call in sorted(calls, key=lambda e: e.start_us):
        begins, ends = found[call.lane]
        if "StreamBeginCapture" in call.name:
            begins.append(call.start_us)
        elif "StreamEndCapture" in call.name:
            ends.append(call.start_us)
    return found


def _is_during_graph_capture(call: Event, captures: dict[str, tuple[list[float], list[float]]]) -> bool:
    begins, ends = captures[call.lane]
    return bisect_right(begins, call.start_us) > bisect_right(ends, call.start_us)
