"""Options and helpers shared by the commands for training steps."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from roller.cli.shared_options_and_tables import load_device_spec
from roller.cli.terminal_escaping import redirect_stdout_to_stderr
from roller.cli.training_script_options import ScriptRun
from roller.cli.usage_error import UsageError
from roller.errors import did_you_mean, shown
from roller.hardware import DeviceSpec

if TYPE_CHECKING:
    from roller.insight.memory.settings import AllocatorSettings
    from roller.insight.memory.simulate import Memory
    from roller.insight.trace.trace import Trace
    from roller.insight.traced_step import TracedStep

MIB = 1 << 20
#: Value of ``--batch`` for the largest batch that fits.
LARGEST = "max"

DevicesOption = Annotated[
    str, typer.Option("--device", "-d", metavar="NAMES", help="E.g. h100,a100; 2xa100 for two that train together.")
]
BatchesOption = Annotated[
    str, typer.Option("--batch", "-b", metavar="N,...", help="Batch sizes, e.g. 8,16,32; by default the file's own.")
]
AmpOption = Annotated[
    str,
    typer.Option("--amp", metavar="NAMES", help="Automatic mixed precision around the step: fp32 (none), fp16, bf16."),
]
CheckpointOption = Annotated[
    str,
    typer.Option(
        "--checkpoint", metavar="WORDS", help="Blocks that run again in backward: no, yes, or no,yes for both."
    ),
]
CallsOption = Annotated[
    int | None,
    typer.Option(
        "--calls", min=1, metavar="N",
        help="Calls of the step to trace; by default until all optimizers have stepped and shapes repeat.",
    ),
]  # fmt: skip
TorchReleaseOption = Annotated[
    str,
    typer.Option(
        "--torch-release", metavar="VERSION",
        help="Release of PyTorch whose rules decide what is saved and allocated, e.g. 1.10; by default the newest.",
    ),
]  # fmt: skip
Tf32Option = Annotated[
    bool | None,
    typer.Option(
        "--tf32/--no-tf32",
        help="Whether float32 convolutions and products use TF32 (from sm_80 on). Default: as the file sets PyTorch.",
    ),
]
EntryArgument = Annotated[
    Path,
    typer.Argument(metavar="FILE", help="An entry file in Python with provider functions, or a training script."),
]


def parse_devices(text: str, settings: Sequence[str] | None) -> list[tuple[DeviceSpec, int]]:
    """Parse ``"h100,2xa100"``; return each specification with its number of devices."""
    found = [(load_device_spec(name, settings), count) for name, count in split_device_names(text)]
    if not found:
        raise UsageError(f"--device: expected names of devices, got {shown(text)}. Write e.g. --device h100,2xa100.")
    return found


def split_device_names(text: str) -> Iterator[tuple[str, int]]:
    """Yield each name or path in ``"h100,2xa100"`` with its number of devices."""
    for name in (word.strip() for word in text.split(",")):
        count, times, rest = name.partition("x")
        several = bool(times) and count.isascii() and count.isdigit() and len(count) < 6 and int(count) > 0
        if name:
            yield (rest, int(count)) if several else (name, 1)


def parse_batches(text: str, *, largest: bool = False) -> list[int | str | None]:
    """Parse batch sizes from ``"8,16"``, and ``"max"`` if ``largest``; return ``[None]`` for an empty text."""
    sizes: list[int | str | None] = []
    for word in (w.strip() for w in text.split(",")):
        if largest and word == LARGEST:
            sizes.append(LARGEST)
        elif word:
            if not word.isascii() or not word.isdigit() or len(word) > 12 or int(word) < 1:
                more = " or max" if largest else ""
                raise UsageError(f"--batch: expected whole numbers of at least 1{more}, e.g. 8,16, got {shown(text)}.")
            sizes.append(int(word))
    return sizes or [None]


def parse_word_list(option: str, text: str, known: Sequence[str]) -> list[str]:
    """Parse a comma-separated list whose words are all in ``known``; otherwise raise an error."""
    words = [w.strip() for w in text.split(",") if w.strip()]
    wrong = next((w for w in words if w not in known), None)
    if wrong is not None or not words:
        hint = did_you_mean(wrong or "", known) or f". Write {known[0]}."
        raise UsageError(f"{option}: expected {', '.join(known)}, got {shown(wrong or text)}{hint}")
    return list(dict.fromkeys(words))


def parse_amps(text: str) -> list[str]:
    """Parse the precisions of ``--amp``."""
    return parse_word_list("--amp", text, ("fp32", "fp16", "bf16"))


def parse_checkpoints(text: str) -> list[bool]:
    """Parse the values of ``--checkpoint``: ``True`` for yes, ``False`` for no."""
    return [word == "yes" for word in parse_word_list("--checkpoint", text, ("no", "yes"))]


def trace_step_of_file(
    file: Path, calls: int | None = None, script: ScriptRun | None = None, *, batch: int | None = None,
    device: DeviceSpec | None = None, torch_release: str = "", tf32: bool | None = None,
) -> TracedStep:  # fmt: skip
    """Trace the step of an entry file or training script; callers then apply each table row's options to the trace."""
    from roller.insight.capture.script_tracer import trace_script
    from roller.insight.trace.entry_file_providers import is_script
    from roller.insight.tracing import require_torch, trace_entry

    require_torch()
    with redirect_stdout_to_stderr():
        if script is not None and is_script(file):
            step = trace_script(
                file, script.arguments, batch=batch, device=device, calls=calls, patience_s=script.patience_s,
                torch_release=torch_release,
            )  # fmt: skip
        else:
            step = trace_entry(file, batch=batch, device=device, calls=calls, torch_release=torch_release)
    return step if tf32 is None else step.with_tf32(tf32)


def training_combinations(amps: Sequence[str], checkpoints: Sequence[bool]) -> Iterator[tuple[str, bool]]:
    """Return an iterator over all pairs of a precision and a checkpointing option."""
    return ((amp, checkpoint) for amp in amps for checkpoint in checkpoints)


def monitor_memory_text(memory: Memory) -> str:
    """Format the memory that the vendor's monitor would show; return ``"does not fit"`` if it exceeds the device's."""
    if not memory.fits:
        return "does not fit"
    error = f" ± {memory.total_error_bytes / MIB:.0f}" if memory.total_error_bytes else ""
    return f"{memory.total_bytes / MIB:.0f}{error} MiB"


def write_memory_snapshot(step: Trace, spec: DeviceSpec, path: Path, settings: AllocatorSettings | None = None) -> None:
    """Write a step's memory as a snapshot in PyTorch's format; refuse a device without a caching allocator."""
    from roller.insight.memory.largest_batch import allocator_settings_for_trace
    from roller.insight.memory.simulate import Library
    from roller.insight.memory.snapshot import make_snapshot, write_snapshot

    if not spec.traits.discrete:
        raise UsageError(
            f"--snapshot: expected a device with a caching allocator, got {spec.name}, a processor. Name a GPU."
        )
    write_snapshot(
        path,
        make_snapshot(
            step, settings=allocator_settings_for_trace(step, settings), library=Library.of(spec, step.options)
        ),
    )
