"""Runs the probes of a device in rounds and decides which values may be written."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from roller.errors import RollerError
from roller.hardware import DeviceSpec
from roller.hardware.spec import settable_fields
from roller.probing.probe_header import Probe, ProbeResult
from roller.probing.robust_window_statistics import MeasuredValue, accept_or_reject_by_spread, median_of_good_rounds
from roller_runtime.timing.clock import Load
from roller_runtime.timing.disturbance import Disturbance

#: Numbers of rounds of a normal and of a quick run.
ROUNDS, QUICK_ROUNDS = 7, 1
#: Time limit of all rounds in seconds; a loaded machine completes fewer.
LIMIT_S = 50.0
#: Suffixes of fields that disturbances only raise, and of fields that they only lower.
_TIMES, _RATES = ("_s",), ("_per_s", "clock_hz", "_flops_per_s", "schedulers_per_unit")
#: Fields that are differences of two times; a disturbance of the shorter time lowers them, too.
_DIFFERENCES = ("execution.barrier_s", "execution.fork_s", "memory_layers.l1.tlb_miss_s")
#: Prefix of messages about disturbed probes, and name for remarks about the whole run.
_OTHERS, _MACHINE = "disturbed: ", "this machine"


def _sign_of_disturbance(path: str) -> int:
    """Return 1 if disturbances lower the field, -1 if they raise it, and 0 otherwise.

    >>> [_sign_of_disturbance(p) for p in ("execution.launch_s", "clock_hz", "execution.fork_s",
    ...     "memory_layers.l1.tlb_entries")]
    [-1, 1, 0, 0]
    """
    if path in _DIFFERENCES:
        return 0
    if path.endswith(_RATES) or path.startswith("compute.") or path.endswith("_per_cycle"):
        return 1
    return -1 if path.endswith(_TIMES) else 0


def _describe_disturbance(before: Load | None, load: Callable[[], Load] | None) -> str:
    """Return the disturbance of the processors since ``before``; empty if there was none or there is no monitor."""
    if before is None or load is None:
        return ""
    found = str(Disturbance.between(before, load()))
    return f"{_OTHERS}{found} while this was measured" if found else ""


@dataclass(frozen=True)
class ProbeReport:
    """Result of a run of all probes."""

    values: dict[str, MeasuredValue]  #: Values that may be written, keyed by dotted path
    beside: dict[str, MeasuredValue]  #: Values outside the schema
    refused: dict[str, str]  #: Maps paths to the reasons why their values must not be written
    failed: dict[str, str] = field(default_factory=dict)  #: Maps probes to the reasons why they could not run
    remarks: tuple[str, ...] = ()  #: Remarks of the probes in the last round
    wall_s: float = 0.0


def run_probes(
    probes: Sequence[Probe],
    session: Any,
    spec: DeviceSpec,
    rounds: int = ROUNDS,
    progress: Callable[[str], None] = lambda name: None,
    load: Callable[[], Load] | None = None,
) -> ProbeReport:
    """Run every probe once per round and keep the values on which the rounds agree."""
    start = time.perf_counter()
    seen: dict[str, list[MeasuredValue]] = {}
    doubted: dict[str, list[str]] = {}
    failed: dict[str, str] = {}
    remarks: dict[str, tuple[str, ...]] = {}
    done = 0
    first = load() if load is not None else None
    while done < rounds and (time.perf_counter() - start) * (done + 1) <= LIMIT_S * max(done, 1):
        done += 1
        for probe in probes:
            progress(probe.name)
            before = load() if load is not None else None
            try:
                finding: ProbeResult = probe.run(session)
            except (RollerError, ValueError) as err:
                failed[probe.name] = str(err)
                continue
            disturbed = _describe_disturbance(before, load)
            remarks[probe.name] = finding.remarks
            for path, m in finding.values.items():
                if path in finding.doubts:
                    doubted.setdefault(path, []).append(
                        f"{disturbed}. Repeat on a quieter machine." if disturbed else finding.doubts[path]
                    )
                else:
                    seen.setdefault(path, []).append(m)
    known = settable_fields(spec)
    settled = {p: median_of_good_rounds(ms, _sign_of_disturbance(p)) for p, ms in seen.items() if 2 * len(ms) > done}
    fine, refused = accept_or_reject_by_spread(settled)
    refused |= {p: reasons[-1] for p, reasons in doubted.items() if p not in fine}
    throughout = _describe_disturbance(first, load)
    if throughout:
        refused = {p: why if why.startswith(_OTHERS) else f"{throughout}: {why}" for p, why in refused.items()}
        remarks = {_MACHINE: (f"{throughout}: what was refused says nothing of the device.",), **remarks}
    return ProbeReport(
        {p: m for p, m in fine.items() if p in known},
        {p: m for p, m in fine.items() if p not in known},
        refused,
        failed,
        tuple(f"{name}: {text}" for name, texts in remarks.items() for text in texts),
        time.perf_counter() - start,
    )
