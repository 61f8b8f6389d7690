"""Seconds and memory of a large profile: a synthetic Kineto file is read, made a graph, simulated and broken down.

``python -m benchmarks.insight kineto --mb 200``. Limits: 200 MB in 60 s and 2 GiB, 1 GB in 6 min and 8 GiB of resident
memory, all phases together. The file is written by a child process, so that the peak is that of the phases.
"""

from __future__ import annotations

import multiprocessing
import resource
import sys
import tempfile
import time
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from benchmarks.insight.kineto_file import write_kineto_file

#: Megabytes of a file, seconds and GiB that it may take.
LIMITS = ((200, 60.0, 2.0), (1000, 360.0, 8.0))


def main(
    mb: Annotated[int, typer.Option(help="Megabytes of the synthetic file.")] = 200,
    file: Annotated[Path | None, typer.Option(help="A profile to read instead.")] = None,
    memory: Annotated[bool, typer.Option(help="Read the memory events, too.")] = False,
    strict: Annotated[bool, typer.Option(help="A missed limit is an error.")] = False,
) -> None:
    """Print seconds and peak resident memory of each phase."""
    with tempfile.TemporaryDirectory() as folder:
        if file is None:
            file = Path(folder) / "profile.json"
            child = multiprocessing.get_context("spawn").Process(target=write_kineto_file, args=(file, mb * 10**6))
            child.start()
            child.join()
        seconds, gib = _measure(file, memory)
        allowed = next(((s, g) for size, s, g in LIMITS if file.stat().st_size <= 1.05e6 * size), None)
    if allowed is not None:
        print(f"limits: {allowed[0]:.0f} s, {allowed[1]:.0f} GiB")
        if strict and (seconds > allowed[0] or gib > allowed[1]):
            raise typer.Exit(1)


def _measure(file: Path, memory: bool) -> tuple[float, float]:
    """Print a table of the phases, and return seconds and GiB of all."""
    from roller.insight.step.breakdown import breakdown
    from roller.insight.step.kineto_reader import read_profile
    from roller.insight.step.memory_curve import memory_curves
    from roller.insight.step.profile_graph import build_graph
    from roller.insight.step.simulate import simulate
    from roller.insight.step.step_categories import step_categories

    table, rows = Table("phase", "s", "CPU s", "peak GiB", "what", box=None), list[tuple[float, float]]()

    def done(phase: str, what: str) -> None:
        rows.append((time.perf_counter(), time.process_time()))
        (began, used), (ended, then) = rows[-2:]
        table.add_row(phase, f"{ended - began:.1f}", f"{then - used:.1f}", f"{_peak_gib():.2f}", what)

    print(f"{file.name}: {file.stat().st_size / 1e6:.0f} MB, {_peak_gib():.2f} GiB before")
    rows.append((time.perf_counter(), time.process_time()))
    profile = read_profile(file, memory=memory)
    done("read", f"{len(profile.events)} events")
    graph = build_graph(profile.events, overhead_us=profile.overhead_us)
    done("graph", f"{len(graph.tasks)} tasks, {len(graph.dependencies)} dependencies")
    timeline = simulate(graph)
    done("simulate", f"{timeline.makespan_us / 1e6:.3f} s of {graph.measured_us / 1e6:.3f}")
    done("breakdown", f"{len(breakdown(graph, timeline, 'kernel'))} kernels")
    done("categories", f"{len(step_categories(profile).steps)} steps")
    if memory:
        curves = memory_curves(profile)
        done("memory", ", ".join(f"{x.device}: {len(x.times_us)} records, {len(x.live())} live" for x in curves))
    seconds, used, gib = rows[-1][0] - rows[0][0], rows[-1][1] - rows[0][1], _peak_gib()
    table.add_row("all", f"{seconds:.1f}", f"{used:.1f}", f"{gib:.2f}", "")
    Console().print(table)
    return seconds, gib


def _peak_gib() -> float:
    """Return the peak of this process's resident memory."""
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 2**30
