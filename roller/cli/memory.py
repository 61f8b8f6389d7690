"""``roller memory``: predict the memory that a training step needs on a device, what holds it, and what fits."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from roller.cli.output_file_checks import check_output_paths
from roller.cli.progress import track_progress
from roller.cli.shared_options_and_tables import JsonOption, SetOption, console, print_json
from roller.cli.terminal_escaping import redirect_stdout_to_stderr
from roller.cli.training_options import (
    LARGEST,
    MIB,
    AmpOption,
    BatchesOption,
    CallsOption,
    CheckpointOption,
    DevicesOption,
    EntryArgument,
    TorchReleaseOption,
    monitor_memory_text,
    parse_amps,
    parse_batches,
    parse_checkpoints,
    parse_devices,
    trace_step_of_file,
    training_combinations,
    write_memory_snapshot,
)
from roller.cli.training_script_options import PATIENCE_S, GivenArgument, PatienceOption, ScriptRun, YesOption
from roller.cli.usage_error import UsageError
from roller.errors import ModelError, NoCandidateError
from roller.hardware import DeviceSpec

if TYPE_CHECKING:
    from roller.insight.memory.settings import AllocatorSettings
    from roller.insight.memory.simulate import Memory
    from roller.insight.traced_step import TracedStep

TopOption = Annotated[int, typer.Option("--top", min=0, help="Number of holders of bytes at the peak to print.")]
AllocatorOption = Annotated[
    str, typer.Option("--allocator", metavar="CONF", help="As PYTORCH_ALLOC_CONF, e.g. expandable_segments:True.")
]
SnapshotOption = Annotated[
    Path | None,
    typer.Option("--snapshot", help="Write the step as PyTorch's memory snapshot (a pickle), for its memory_viz."),
]


def memory_command(
    file: EntryArgument,
    given: GivenArgument = None,
    devices: DevicesOption = "a100",
    batches: BatchesOption = "",
    amp: AmpOption = "fp32",
    checkpoint: CheckpointOption = "no",
    calls: CallsOption = None,
    torch_release: TorchReleaseOption = "",
    allocator: AllocatorOption = "",
    top: TopOption = 8,
    snapshot: SnapshotOption = None,
    yes: YesOption = False,
    patience: PatienceOption = PATIENCE_S,
    as_json: JsonOption = False,
    settings: SetOption = None,
) -> None:
    """Predict the memory of a training step (entry file or script; PyTorch): peak, what holds it, what does not fit.

    `--batch max` searches for the largest batch that fits: one more sample does not fit.
    """
    from roller.insight.memory.settings import AllocatorSettings
    from roller.insight.trace.entry_file_providers import is_script

    specs, sizes = parse_devices(devices, settings), parse_batches(batches, largest=True)
    ways = list(training_combinations(parse_amps(amp), parse_checkpoints(checkpoint)))
    conf = AllocatorSettings.parse(allocator) if allocator else None  # otherwise, the entry file's settings
    if any(count > 1 for _, count in specs):
        raise UsageError(
            "--device: expected one of each, got several. Ask `roller sweep` for devices that share a batch."
        )
    if snapshot is not None and len(specs) * len(sizes) * len(ways) != 1:
        raise UsageError("--snapshot: expected one device, batch and way of training, got several. Name one of each.")
    check_output_paths([file], {"--snapshot": snapshot})
    script = ScriptRun(given or [], yes, patience)
    script.check(file, is_script(file))
    step = trace_step_of_file(file, calls, script, torch_release=torch_release)
    rows: list[MemoryRow] = []
    failed: list[ModelError] = []
    with track_progress("memory", len(specs) * len(sizes) * len(ways)) as done, redirect_stdout_to_stderr():
        for spec, _ in specs:
            for way in ways:
                for size in sizes:
                    try:
                        rows.append(MemoryRow.of(step, spec, size, *way, conf))
                    except ModelError as error:  # e.g. a device without bfloat16; other rows continue
                        failed.append(error)
                        rows.append(MemoryRow(spec, size if isinstance(size, int) else 0, *way, None, str(error)))
                    done(rows[-1].device)
    if len(failed) == len(rows):
        raise failed[0]
    if snapshot is not None:
        _write_row_snapshot(step, rows[0], specs[0][0], conf, snapshot)
    if as_json:
        print_json([row.to_dict() for row in rows])
        return
    screen = console()
    screen.say(f"{file.name}: predicted")
    screen.print(_memory_table(rows))
    said: dict[str, None] = {}
    for row in rows:
        if row.memory is not None and top:
            screen.print(_peak_holders_table(row, top))
        for line in (*row.advice(step, conf), *row.monitor_error_lines(), *row.notes):
            if line not in said:
                said[line] = None
                screen.say(line)


class MemoryRow:
    """Memory of a step on one device, for one batch size, precision and checkpointing option."""

    def __init__(
        self, spec: DeviceSpec, batch: int, amp: str, checkpoint: bool, memory: Memory | None, said: str = "",
        near: str = "", notes: tuple[str, ...] = (),
    ) -> None:  # fmt: skip
        self.spec, self.device, self.batch = spec, spec.name, batch
        self.amp, self.checkpoint, self.memory, self.said, self.near = amp, checkpoint, memory, said, near
        self.notes = notes

    @classmethod
    def of(
        cls, step: TracedStep, spec: DeviceSpec, batch: int | str | None, amp: str, checkpoint: bool,
        conf: AllocatorSettings | None,
    ) -> MemoryRow:  # fmt: skip
        """Return the row for batch size ``batch``, or for the largest batch that fits if it is ``LARGEST``."""
        from roller.insight.memory.largest_batch import fit_uncertainty_note

        if batch == LARGEST:
            try:
                found = step.max_batch(spec, amp=amp, checkpoint=checkpoint, settings=conf)
            except NoCandidateError as error:
                return cls(spec, 0, amp, checkpoint, None, str(error))
            size, memory, said = found.batch, found.memory, f"batch {found.batch + 1} does not fit"
        else:
            size, said = int(batch or step.options["batch"]), ""
            memory = step.memory(spec, batch=size, amp=amp, checkpoint=checkpoint, settings=conf)
        traced = step.at(batch=size, device=spec, amp=amp, checkpoint=checkpoint)
        return cls(
            spec,
            size,
            amp,
            checkpoint,
            memory,
            said,
            fit_uncertainty_note(traced.as_run(spec), spec, memory, conf),
            tuple(traced.warnings),
        )

    def advice(self, step: TracedStep, conf: AllocatorSettings | None) -> list[str]:
        """Return notes and, if the step does not fit, the reason and the effects of simulated changes, as lines."""
        near = [self.near] if self.near else []
        if self.memory is None or self.memory.fits:
            return [*near, *([f"{self.device}: {self.said}."] if self.said else [])]
        lines = [f"{self.device}, batch {self.batch}: {self.memory.oom}", *near]
        operator = self.memory.oom_operator
        traced = step.at(batch=self.batch, device=self.spec, amp=self.amp, checkpoint=self.checkpoint)
        trace = traced.as_run(self.spec)
        if operator is not None and 0 <= operator < len(trace.operators):
            at = trace.operators[operator]
            place = "" if at.source is None else f" at {at.source[0]}:{at.source[1]}"
            lines.append(f"It fails in {at.phase}: {at.name} of {at.module or 'the step'}{place}.")
        others = [("with --checkpoint yes", self.amp, True), ("with --amp bf16", "bf16", self.checkpoint)]
        for words, amp, checkpoint in others:
            if (amp, checkpoint) == (self.amp, self.checkpoint):
                continue
            try:
                tried = step.memory(self.spec, batch=self.batch, amp=amp, checkpoint=checkpoint, settings=conf)
            except ModelError:  # no repeated blocks, so nothing to checkpoint
                continue
            lines.append(f"  {words}: {monitor_memory_text(tried)}")
        try:
            largest = step.max_batch(self.spec, amp=self.amp, checkpoint=self.checkpoint, settings=conf).batch
            lines.append(f"  the largest batch that fits as it is: {largest}")
        except NoCandidateError:
            lines.append("  not even one sample fits as it is")
        return lines

    def monitor_error_lines(self) -> list[str]:
        """Return at most one line; it splits the monitor figure's error into the model's and the environment's."""
        memory = self.memory
        if memory is None or not memory.fits or not memory.context_most_bytes:
            return []
        least, held, most = (
            n / MIB for n in (memory.context_least_bytes, memory.context_bytes, memory.context_most_bytes)
        )
        return [
            f"{self.device}, batch {self.batch}: of the error {memory.model_error_bytes / MIB:.0f} MiB are the model's "
            f"and {memory.environment_error_bytes / MIB:.0f} the environment's: {least:.0f} to {most:.0f} MiB of "
            f"context and libraries were published, {held:.0f} are counted."
        ]

    def to_dict(self) -> dict[str, Any]:
        """Return the row as JSON-ready data; every number is predicted."""
        from roller.insight.memory.largest_batch import device_capacity_bytes

        memory = self.memory
        base = {
            "device": self.device, "batch": self.batch, "amp": self.amp, "checkpoint": self.checkpoint,
            "kind": "predicted", "fits": memory is not None and memory.fits, "said": self.said, "border": self.near,
            "capacity_bytes": device_capacity_bytes(self.spec), "notes": list(self.notes),
        }  # fmt: skip
        if memory is None:
            return base
        return {
            **base,
            "requested_bytes": memory.peak.requested_bytes,
            "allocated_bytes": memory.peak.allocated_bytes,
            "reserved_bytes": memory.peak.reserved_bytes,
            "total_bytes": memory.total_bytes,
            "total_error_bytes": memory.total_error_bytes,
            "model_error_bytes": memory.model_error_bytes,
            "environment_error_bytes": memory.environment_error_bytes,
            "context_bytes": memory.context_bytes,
            "context_least_bytes": memory.context_least_bytes,
            "context_most_bytes": memory.context_most_bytes,
            "oom": None if memory.oom is None else str(memory.oom),
            "by_kind": dict(memory.by_kind()),
            "holders": [
                {
                    "kind": h.kind, "module": h.module, "source": h.source and f"{h.source[0]}:{h.source[1]}",
                    "requested_bytes": h.requested_bytes, "tensors": h.tensors,
                }
                for h in memory.holders
            ],
        }  # fmt: skip


def _memory_table(rows: list[MemoryRow]) -> Table:
    from roller.insight.memory.largest_batch import device_capacity_bytes

    columns = (
        "device", "batch", "amp", "checkpoint", "requested", "allocated", "reserved", "as the monitor shows it", "of",
    )  # fmt: skip
    table = Table(*columns, box=None)
    for row in rows:
        first = [row.device, str(row.batch or "-"), row.amp, "yes" if row.checkpoint else "no"]
        capacity = f"{device_capacity_bytes(row.spec) / MIB:.0f} MiB"
        if row.memory is None:
            table.add_row(*first, "-", "-", "-", "no such step", capacity)
            continue
        peak = row.memory.peak
        levels = (peak.requested_bytes, peak.allocated_bytes, peak.reserved_bytes)
        table.add_row(*first, *(f"{n / MIB:.1f} MiB" for n in levels), monitor_memory_text(row.memory), capacity)
    return table


def _peak_holders_table(row: MemoryRow, top: int) -> Table:
    assert row.memory is not None
    title = f"{row.device}, batch {row.batch}: who holds the bytes at the peak"
    table = Table("kind", "module", "line", "tensors", "MiB", title=title, box=None)
    for holder in row.memory.holders[:top]:
        line = "" if holder.source is None else f"{Path(holder.source[0]).name}:{holder.source[1]}"
        size = f"{holder.requested_bytes / MIB:.1f}"
        table.add_row(holder.kind, holder.module or "-", line, str(holder.tensors), size)
    rest = row.memory.holders[top:]
    if rest:
        count, size = sum(h.tensors for h in rest), f"{sum(h.requested_bytes for h in rest) / MIB:.1f}"
        table.add_row("others", f"{len(rest)} rows", "", str(count), size)
    return table


def _write_row_snapshot(
    step: TracedStep, row: MemoryRow, spec: DeviceSpec, conf: AllocatorSettings | None, path: Path
) -> None:
    traced = step.at(batch=row.batch or None, device=spec, amp=row.amp, checkpoint=row.checkpoint)
    write_memory_snapshot(traced.as_run(spec), spec, path, conf)
