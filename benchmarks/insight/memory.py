"""The simulator of the caching allocator beside streams that devices recorded, and how fast it is.

``python -m benchmarks.insight memory FOLDER``: every Kineto trace in the folder that has memory events. Limits: of the
addresses whose start state is known, all of the small pool and 99 % of the large one; 10^5 events per second.
"""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass
from pathlib import Path

import typer
from rich.console import Console
from rich.table import Table

from roller.insight.memory.caching_allocator import CachingAllocator
from roller.insight.memory.recorded_memory_events import (
    AddressCheck,
    MemoryEvent,
    check_simulated_addresses,
    read_memory_events,
)

#: Shares of addresses that must be right, and events per second.
SMALL_SHARE, LARGE_SHARE, EVENTS_PER_S = 1.0, 0.99, 1e5
_REPEATS = 5


@dataclass(frozen=True)
class Stream:
    """What one recorded stream gave."""

    name: str
    events: int
    small: AddressCheck
    large: AddressCheck
    events_per_s: float


#: Where ``--write`` puts the table.
RESULTS = Path(__file__).parents[1] / "results" / "insight_memory.md"


def main(folder: Path, *, strict: bool = False, write: bool = False) -> None:
    """Check every recorded stream of a folder; with ``--strict`` a missed limit is an error."""
    streams = [s for path in sorted(folder.glob("*.json*")) if (s := stream(path)) is not None]
    table = Table("stream", "events", "small: right of known", "large: right of known", "learnt", "events/s", box=None)
    for s in streams:
        checks = (s.small, s.large)
        cells = [f"{c.right}/{c.known}" for c in checks]
        table.add_row(s.name, str(s.events), *cells, str(sum(c.learnt for c in checks)), f"{s.events_per_s:.3g}")
    Console().print(table)
    small, large = _share([s.small for s in streams]), _share([s.large for s in streams])
    slowest = min((s.events_per_s for s in streams), default=0.0)
    print(f"small pool {100 * small:.2f} % (limit 100), large pool {100 * large:.2f} % (limit 99), "
          f"slowest {slowest:.3g} events/s of processor time (limit 1e5)")  # fmt: skip
    if write:
        RESULTS.write_text(_page(streams), encoding="utf-8")
    if strict and (small < SMALL_SHARE or large < LARGE_SHARE or slowest < EVENTS_PER_S):
        raise typer.Exit(1)


def _page(streams: list[Stream]) -> str:
    rows = [
        f"| {s.name} | {s.events} | {s.small.right} of {s.small.known} | {s.large.right} of {s.large.known} | "
        f"{s.small.learnt + s.large.learnt} |"
        for s in streams
    ]
    lines = [
        "# The simulated allocator against recorded allocations",
        "",
        "Memory events of the caching allocator in Kineto traces of an H100 (TraceLens, MIT licence) are replayed. For",
        "each pool, the table counts the simulated addresses that equal the recorded ones, among allocations whose",
        "initial state is known. What the recording does not say about the initial state is inferred from addresses;",
        "an allocation from which something was inferred counts as unknown (last column).",
        "",
        "| stream | events | small pool | large pool | learnt from |",
        "|---|---|---|---|---|",
        *rows,
        "",
        "Limits: all addresses in the small pool and 99 % of those in the large pool must be equal.",
    ]
    return "\n".join(lines) + "\n"


def _share(checks: list[AddressCheck]) -> float:
    known = sum(c.known for c in checks)
    return sum(c.right for c in checks) / known if known else 0.0


def stream(path: Path) -> Stream | None:
    """Return what a trace's stream gives; ``None`` where it has no memory events."""
    events = read_memory_events(path)
    if not events:
        return None
    small, large = check_simulated_addresses(events)
    return Stream(path.name.partition(".")[0], len(events), small, large, speed(events))


def speed(events: list[MemoryEvent]) -> float:
    """Return events per second of processor time, the median of some replays of at least 10^5 events each."""
    rounds, rates = -(-100_000 // len(events)), []
    for _ in range(_REPEATS):
        allocator, start = CachingAllocator(), time.process_time()
        for turn in range(rounds):
            for e in events:
                if e.size_bytes < 0:
                    allocator.free((turn, e.address))
                else:
                    allocator.malloc((turn, e.address), e.size_bytes)
        rates.append(rounds * len(events) / (time.process_time() - start))
    return statistics.median(rates)
