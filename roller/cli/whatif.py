"""``roller whatif``: predict the effect of a change to a training step from a recorded profile."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from roller.cli.memory_change_text import LONGEST_NAME, memory_change_text
from roller.cli.output_file_checks import check_output_paths
from roller.cli.progress import track_progress
from roller.cli.shared_options_and_tables import JsonOption, console, print_json
from roller.cli.terminal_escaping import redirect_stdout_to_stderr
from roller.cli.training_options import Tf32Option
from roller.cli.usage_error import UsageError
from roller_runtime.core.display import truncate_text

if TYPE_CHECKING:
    from roller.insight.step.graph import StepGraph
    from roller.insight.whatif.memory_effect import MemoryEffect, MemoryOf
    from roller.insight.whatif.predict import Answer
    from roller.insight.whatif.search import SearchResult
    from roller.insight.whatif.what_if import WhatIf

FilesArgument = Annotated[
    list[Path] | None,
    typer.Argument(metavar="FILE...", help="A profile of PyTorch; several are the ranks of one job. Or an entry file."),
]
ScenarioOption = Annotated[
    list[Path] | None, typer.Option("--scenario", "-s", metavar="FILE", help="YAML with the changes to make.")
]
DoOption = Annotated[
    list[str] | None,
    typer.Option(
        "--do", metavar="CHANGE", help="A change, such as amp or ddp:devices=8,bandwidth=25e9; several add up."
    ),
]
AllOption = Annotated[bool, typer.Option("--all", help="Try every applicable change alone, and the best in pairs.")]
DeviceOption = Annotated[
    str | None,
    typer.Option(
        "--device",
        help="Device of the profile, which prices new kernels. Entry files need it.",
    ),
]
ForceOption = Annotated[bool, typer.Option("--force", help="Answer even if much of the profile cannot be explained.")]
PerfettoOption = Annotated[
    Path | None, typer.Option("--perfetto", metavar="FILE", help="Write timelines before and after, as trace events.")
]
ListOption = Annotated[bool, typer.Option("--list", help="List the changes and their parameters.")]


def whatif_command(
    files: FilesArgument = None,
    scenario: ScenarioOption = None,
    do: DoOption = None,
    search_all: AllOption = False,
    device: DeviceOption = None,
    force: ForceOption = False,
    perfetto: PerfettoOption = None,
    tf32: Tf32Option = None,
    as_json: JsonOption = False,
    list_changes: ListOption = False,
) -> None:
    """Predict the effect of a change to a training step from its profile, without a device or PyTorch."""
    from roller.insight.whatif import parse_what_if_scenarios as scenarios

    if list_changes:
        _print_change_list()
        return
    if not files:
        raise UsageError("FILE: expected a profile of PyTorch, got none. Name one, or ask for --list.")
    asked: dict[str, tuple[WhatIf, ...]] = {}
    measured_us: dict[str, float] = {}
    for path in scenario or ():
        read = scenarios.read_scenarios(path)
        device, measured_us = device or read.device, {**measured_us, **read.measured_us}
        asked |= {(name if name != "changes" else path.stem): changes for name, changes in read.changes.items()}
    if do:
        asked[" + ".join(do)] = tuple(scenarios.parse_what_if_option(text) for text in do)
    if not asked and not search_all:
        raise UsageError("what to change: expected --do CHANGE, --scenario FILE or --all, got none. See --list.")
    check_output_paths(files or (), {"--perfetto": perfetto})
    if perfetto is not None and (search_all or len(asked) != 1):
        raise UsageError("--perfetto: expected one scenario, got several. Name one with --do or --scenario.")
    graph, memory_of = _graph_and_memory(files, device, tf32)
    graph = replace(graph, measured_kernels_us=measured_us)
    if search_all:
        _search_and_print(graph, memory_of, force, as_json)
        return
    from roller.insight.whatif.predict import what_if

    answers = {name: what_if(graph, *changes, force=force) for name, changes in asked.items()}
    if perfetto is not None:
        from roller.insight.step.trace_event_writer import write_trace_events

        # Process 1 of the file is the profile, process 2 the prediction.
        first, titles = next(iter(answers.values())), ("before (replayed)", "after (predicted)")
        write_trace_events(perfetto, zip(titles, first.graphs, first.timelines, strict=True))
    if as_json:
        print_json([{"scenario": name} | answer.to_dict() for name, answer in answers.items()])
        return
    _print_answers(answers)


def _graph_and_memory(files: list[Path], device: str | None, tf32: bool | None) -> tuple[StepGraph, MemoryOf | None]:
    """Return the graph of profiles or of an entry file's step, and the memory function (``None`` for profiles)."""
    from roller.insight.step.replay import from_kineto

    if len(files) == 1 and files[0].suffix == ".py":
        from roller.cli.training_options import trace_step_of_file

        if device is None:
            raise UsageError(
                f"{files[0]}: --device: expected the device to run it on, got none. Name one, such as a100."
            )
        with redirect_stdout_to_stderr():
            step = trace_step_of_file(files[0], tf32=tf32)
            return step.graph(device), cache(lambda change: step.memory_with(change, device))
    if tf32 is not None:
        raise UsageError(f"{files[0]}: expected no --tf32 for a recording, which has its kernels. Leave it out.")
    return from_kineto([str(f) for f in files], device=device), None


def _print_answers(answers: dict[str, Answer]) -> None:
    from roller.insight.step.unexplained_waits import describe_longest_waits

    screen = console()
    for name, x in answers.items():
        screen.say(f"{name}: {_speedup_text(x)}")
        steps = len(x.graphs[0].iterations)
        table = Table("" if steps < 2 else f"all {steps} steps", "before", "after (predicted)", box=None)
        for label, part in (("CPU only", "cpu_only_us"), ("device only", "device_only_us"), ("both", "both_us")):
            table.add_row(label, _ms_text(getattr(x.before, part)), _ms_text(getattr(x.after, part)))
        before = {p.name: p for p in x.phases_before}
        after = {p.name: p for p in x.phases_after}
        for phase in ("data", "forward", "backward", "optimizer", "other"):
            if phase in before or phase in after:
                parts = (known[phase].critical_us if phase in known else 0.0 for known in (before, after))
                table.add_row(f"critical path in {phase}", *map(_ms_text, parts))
        screen.print(table)
        rests = ", ".join(f"{100 * share:.0f} % {word}" for word, share in x.provenance.items() if share >= 0.005)
        screen.say(f"  The predicted path rests on times that are {rests}.")
        if x.spread:
            screen.say(f"  Steps of the profile differ by {100 * x.spread:.0f} % of the median one.")
        if x.unexplained_share >= 0.001:
            said = f"{100 * x.unexplained_share:.1f} % of the profile is waiting that it does not explain"
            screen.say(f"  {said}: {describe_longest_waits(x.graphs[0])}.")
        for sentence in (*x.in_place, *x.notes):
            screen.say(f"  {sentence}")
        for sentence in x.assumptions:
            screen.say(f"  Assumed: {sentence}")


def _speedup_text(x: Answer) -> str:
    interval = f"{_ms_text(x.lower_us)} to {_ms_text(x.upper_us)}"
    if x.in_place and not x.is_changed:
        return f"already in place: {_ms_text(x.baseline_us)} a step stays (1.00x)"
    steps = f"{_ms_text(x.baseline_us)} a step, then {_ms_text(x.iteration_us)}"
    if x.is_hardly_anything:
        return f"hardly anything: {steps} ({interval}), predicted"
    word = "faster" if x.gain > 0 else "slower"
    ratio = x.speedup if x.gain > 0 else 1.0 / x.speedup
    return f"{ratio:.2f}x {word}: {steps} ({interval}), predicted"


def _ms_text(us: float) -> str:
    return f"{us / 1e3:.3f} ms"


def _search_and_print(graph: StepGraph, memory_of: MemoryOf | None, force: bool, as_json: bool) -> None:
    from roller.insight.whatif.search import MOST_ASKED, search

    with track_progress("what-ifs", MOST_ASKED) as done:
        found = search(graph, force=force, seen=lambda one: done(one.name))
    effects = {x.name: x.memory_effect(graph, memory_of) for x in found if x.answer is not None}
    if as_json:
        print_json([_search_result_json(x, effects.get(x.name)) for x in found])
        return
    screen = console()
    answered = [x for x in found if x.answer is not None]
    of_memory = ["memory"] if memory_of is not None else []
    table = Table("change", "a step", "from", "to", "gain", *of_memory, "rests on", box=None)
    for x in answered:
        a = x.answer
        assert a is not None
        gain = "hardly anything" if a.is_hardly_anything else f"{100 * a.gain:+.1f} %"
        is_there = bool(a.in_place) and not a.is_changed
        times = (_ms_text(us) for us in (a.iteration_us, a.lower_us, a.upper_us))
        table.add_row(
            ("at most: " if x.is_bound else "") + truncate_text(x.name, LONGEST_NAME), *times,
            "already in place" if is_there else gain,
            *(memory_change_text(effects[x.name]) for _ in of_memory), "" if is_there else a.rests_on,
        )  # fmt: skip
    if answered and answered[0].answer is not None:
        screen.say(f"{graph.name}: {_ms_text(answered[0].answer.baseline_us)} a step; all times below are predicted")
    screen.print(table)
    if any(x.answer is not None and x.answer.rests_on == "assumed" for x in answered):
        screen.say("assumed: some times of it rest on a factor or a number that the profile does not hold; --do tells.")
    for name, effect in effects.items() if of_memory else ():
        if effect.has_specific_reason:
            screen.say(f"{name}: memory: {effect.reason}")
    for sentence in answered[0].answer.notes if answered and answered[0].answer is not None else ():
        screen.say(sentence)
    if all(x.answer is None or x.is_bound or x.answer.gain <= 0 or x.answer.is_hardly_anything for x in found):
        screen.say("Hardly anything helps: none of the changes that can be built gains more than profiles differ by.")
    for x in found:
        if x.answer is None:
            screen.say(f"{x.name}: not asked: {x.reason}")


def _search_result_json(x: SearchResult, effect: MemoryEffect | None) -> dict[str, object]:
    row: dict[str, object] = {"changes": x.name, "upper_bound": x.is_bound, "not_asked": x.reason or None}
    if x.answer is None or effect is None:
        return row
    return row | x.answer.to_dict() | {"memory_delta_bytes": effect.delta_bytes, "memory_note": effect.reason}


def _print_change_list() -> None:
    from dataclasses import MISSING, fields

    from roller.insight.whatif.whatifs import WHATIFS

    table = Table("change", "what it does", "parameters", box=None)
    for name, kind in WHATIFS.items():
        parameters = (f.name if f.default is MISSING else f"{f.name}={f.default}" for f in fields(kind))
        table.add_row(name, (kind.__doc__ or "").strip().splitlines()[0], ", ".join(parameters))
    console().print(table)
