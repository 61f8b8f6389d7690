"""``roller replay``: simulate a recorded profile; report unexplained time and show where the time goes."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from roller.cli.shared_options_and_tables import JsonOption, console, print_json

if TYPE_CHECKING:
    from roller.insight.step.replay import Replay

#: Smallest share of unexplained waiting time for which the longest waits are printed.
_WORTH_SAYING = 0.001
#: File suffixes, which the table omits so that it fits a terminal.
_SUFFIX = re.compile(r"(\.pt\.trace)?\.json(\.gz)?")

FilesArgument = Annotated[
    list[Path],
    typer.Argument(metavar="FILE...", help="Profiles of PyTorch (export_chrome_trace), plain or gzipped."),
]
JointOption = Annotated[bool, typer.Option("--joint", help="The files are the ranks of one job: run them together.")]


def replay_command(files: FilesArgument, joint: JointOption = False, as_json: JsonOption = False) -> None:
    """Replay profiles, each as a graph with one latency and one gap; count unexplained time. Needs no device."""
    from roller.insight.step.replay import from_kineto, replay

    groups: list[list[Path]] = [list(files)] if joint else [[file] for file in files]
    found = [replay(from_kineto(list(group) if len(group) > 1 else group[0])) for group in groups]
    if as_json:
        print_json([x.to_dict() for x in found])
        return
    table = Table("profile", "tasks", "measured", "replayed", "error", "unexplained", box=None)
    for x in found:
        table.add_row(
            _SUFFIX.sub("", x.name), str(len(x.graph.tasks)), f"{x.measured_us / 1e3:.3f} ms",
            f"{x.replayed_us / 1e3:.3f} ms", f"{100 * x.error:+.2f} %", f"{100 * x.unexplained_share:.2f} %",
        )  # fmt: skip
    screen = console()
    screen.print(table)
    for x in found:
        screen.say(f"{x.name}:")
        for line in _replay_notes(x):
            screen.say(f"  {line}")


def _replay_notes(x: Replay) -> Iterator[str]:
    from roller.insight.step.unexplained_waits import MOST_UNEXPLAINED, describe_longest_waits

    whole = x.replayed_us or 1.0
    yield from x.graph.notes
    if x.graph.incomplete:
        yield f"{x.graph.incomplete} What a change of it would bring cannot be predicted."
    elif not x.is_explained and x.unexplained_share <= MOST_UNEXPLAINED:
        yield "The replay takes another time than the profile: what a change of it would bring cannot be predicted."
    elif not x.is_explained:
        yield (
            f"Waited {100 * x.unexplained_share:.1f} % of the time for what the profile does not show: what a change "
            f"of it would bring cannot be predicted. {describe_longest_waits(x.graph)}."
        )
    elif x.unexplained_share >= _WORTH_SAYING:
        yield f"Not explained, and left out of the replay: {describe_longest_waits(x.graph)}."
    if not x.graph.is_latency_measured and x.graph.has_device:
        yield f"No launch on an idle stream is in it: a latency of {x.graph.latency_us:.0f} us is assumed."
    if len({t.context.iteration for t in x.graph.tasks if t.context.iteration >= 0}) > 1:
        yield f"A steady step takes {x.iteration_us / 1e3:.3f} ms, measured {x.measured_iteration_us / 1e3:.3f} ms."
    parts = (("CPU only", "cpu_only_us"), ("device only", "device_only_us"), ("both", "both_us"))
    yield "Time: " + ", ".join(f"{name} {100 * getattr(x.overlap, part) / whole:.1f} %" for name, part in parts)
    if any(part.name not in ("forward", "other") for part in x.phases):
        yield "Critical path: " + ", ".join(f"{p.name} {100 * p.critical_us / whole:.1f} %" for p in x.phases)
    for lane in x.lanes[:4]:
        if lane.critical_us:
            yield f"{lane.lane}: {lane.tasks} tasks, {100 * lane.critical_us / whole:.1f} % of the critical path"
