"""``roller profile``: time and memory of a training step by module and line."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from roller.cli.output_file_checks import check_output_paths
from roller.cli.predicted_change_hints import hints_with_costs, print_hints, read_rate_card_option
from roller.cli.print_profile_difference import check_budget_and_exit, print_difference, read_budget_option
from roller.cli.profile_tables import print_profile
from roller.cli.profiles_from_files import ProfileOptionsGiven, make_baseline_profile, make_profiles
from roller.cli.shared_options_and_tables import JsonOption, SetOption, console, print_json
from roller.cli.sweep import PricesOption
from roller.cli.terminal_escaping import redirect_stdout_to_stderr
from roller.cli.training_options import (
    BatchesOption,
    CallsOption,
    CheckpointOption,
    Tf32Option,
    TorchReleaseOption,
    parse_batches,
    parse_checkpoints,
    parse_devices,
    parse_word_list,
)
from roller.cli.training_script_options import PATIENCE_S, GivenArgument, PatienceOption, ScriptRun, YesOption
from roller.cli.usage_error import UsageError

if TYPE_CHECKING:
    from roller.insight.rate_card import RateCard
    from roller.insight.step_profile.difference import ProfileDifference
    from roller.insight.step_profile.step_profile import StepProfile
    from roller.insight.step_profile.what_if_hints import Hint

#: Default device of a profile.
_DEVICE = "a100"
#: Default time budget in seconds for timing a measured step.
MEASURE_S = 60.0

FileArgument = Annotated[
    Path,
    typer.Argument(
        metavar="FILE",
        help="An entry file, a training script, an ONNX model, a recording of PyTorch, or a profile of --out.",
    ),
]
DevicesOption = Annotated[
    str,
    typer.Option("--device", "-d", metavar="NAMES", help="E.g. h100,a100; 2xa100 for two. By default a100."),
]
AmpOption = Annotated[
    str,
    typer.Option("--amp", metavar="NAME", help="Automatic mixed precision around the step: fp32 (none), fp16, bf16."),
]
DepthOption = Annotated[int, typer.Option("--depth", min=1, metavar="N", help="Levels of the tree to print.")]
TopOption = Annotated[
    int, typer.Option("--top", min=1, metavar="N", help="Number of children of a node to print; twice as many lines.")
]
SortOption = Annotated[str, typer.Option("--sort", metavar="NAME", help="Order by time or memory.")]
CurveOption = Annotated[
    bool, typer.Option("--curve", help="Throughput and memory over the batch, too; three batches are traced.")
]
MeasureOption = Annotated[
    bool, typer.Option("--measure", help="Run the step on this machine's processor, and measure it: no --device.")
]
MeasureSecondsOption = Annotated[
    float | None,
    typer.Option("--measure-s", min=1.0, metavar="S", help="Seconds of timing with --measure; by default 60."),
]
AgainstOption = Annotated[
    str,
    typer.Option("--against", metavar="WHAT", help="Print the difference from a file, git:REV or device:NAME."),
]
BudgetOption = Annotated[
    Path | None,
    typer.Option("--budget", metavar="FILE", help="Exit with 1 if the profile exceeds these limits."),
]
SarifOption = Annotated[
    Path | None, typer.Option("--sarif", metavar="FILE", help="Write exceeded limits as SARIF, for code scanning.")
]
WriteBudgetOption = Annotated[
    Path | None, typer.Option("--write-budget", metavar="FILE", help="Write a budget that this profile keeps.")
]
HintsOption = Annotated[
    bool, typer.Option("--hints", help="List changes: their effect on time and memory, and on cost with --prices.")
]
OutOption = Annotated[Path | None, typer.Option("--out", "-o", metavar="FILE", help="Write the profile as JSON.")]
TraceOption = Annotated[
    Path | None, typer.Option("--trace", metavar="FILE", help="Write the timeline as trace events, for Perfetto.")
]
SnapshotOption = Annotated[
    Path | None,
    typer.Option("--snapshot", metavar="FILE", help="Write PyTorch's memory snapshot (a pickle), for memory_viz."),
]


def profile_command(
    file: FileArgument,
    given: GivenArgument = None,
    devices: DevicesOption = "",
    batches: BatchesOption = "",
    amp: AmpOption = "fp32",
    checkpoint: CheckpointOption = "no",
    calls: CallsOption = None,
    torch_release: TorchReleaseOption = "",
    tf32: Tf32Option = None,
    depth: DepthOption = 5,
    top: TopOption = 5,
    sort: SortOption = "time",
    curve: CurveOption = False,
    measure: MeasureOption = False,
    measure_s: MeasureSecondsOption = None,
    out: OutOption = None,
    trace: TraceOption = None,
    snapshot: SnapshotOption = None,
    against: AgainstOption = "",
    budget: BudgetOption = None,
    sarif: SarifOption = None,
    write_budget: WriteBudgetOption = None,
    hints: HintsOption = False,
    prices: PricesOption = None,
    yes: YesOption = False,
    patience: PatienceOption = PATIENCE_S,
    as_json: JsonOption = False,
    settings: SetOption = None,
) -> None:
    """Show the time and memory of a training step by module and line, on a device that is not here.

    FILE is an entry file with `model_provider()`, `input_provider(batch_size=16)` and `iteration_provider(model)`
    (needs PyTorch), an ONNX model, a file from PyTorch's profiler, or a profile written by `--out`.

    A training script without these functions runs unchanged until its steps repeat; its own arguments follow `--`. It
    computes shapes only, so nothing is trained, in a process that can neither change files nor use the network.
    """
    order = parse_word_list("--sort", sort, ("time", "memory"))[0]
    precisions, again = parse_word_list("--amp", amp, ("fp32", "fp16", "bf16")), parse_checkpoints(checkpoint)
    sizes = [None if n is None else int(n) for n in parse_batches(batches)]
    asked = ProfileOptionsGiven(
        parse_devices(devices or _DEVICE, settings), sizes, precisions[0], again[0], calls, curve, measure,
        MEASURE_S if measure_s is None else measure_s, trace, snapshot, ScriptRun(given or [], yes, patience),
        torch_release, tf32,
    )  # fmt: skip
    if measure_s is not None and not measure:
        raise UsageError("--measure-s: expected --measure beside it, got none. Add it, or leave both out.")
    if len(precisions) > 1 or len(again) > 1:
        raise UsageError("--amp, --checkpoint: expected one way of training, got several. Name one of each.")
    outputs = {
        "--out": out, "--trace": trace, "--snapshot": snapshot, "--sarif": sarif, "--write-budget": write_budget
    }  # fmt: skip
    if (any(outputs.values()) or budget or against) and len(asked.specs) * len(sizes) != 1:
        raise UsageError(
            f"{', '.join(outputs)}, --budget, --against: expected one device and batch, got several. Name one of each."
        )
    if sarif is not None and budget is None:
        raise UsageError("--sarif: expected a --budget, got none. Name one.")
    check_output_paths([file, *filter(None, [budget, prices])], outputs)
    card, limits = read_rate_card_option(prices, hints), read_budget_option(budget)
    with redirect_stdout_to_stderr():
        found = make_profiles(file, asked, devices)
    if out is not None:
        from roller.insight.step_profile.profile_json import save_profile

        save_profile(found[0], out)
    if write_budget is not None:
        from roller.insight.step_profile.budget import write_budget as write

        write(found[0], write_budget)
    with redirect_stdout_to_stderr():
        parts = [_compare_and_add_hints(file, profile, asked, devices, against, hints, card) for profile in found]
    if as_json:
        print_json([part.to_data() for part in parts])
    for part in parts if not as_json else ():
        _print_profile_output(part, depth, top, order, file)
    if limits is not None:
        check_budget_and_exit(found[0], limits, sarif)


@dataclass(frozen=True)
class _ProfileOutput:
    """A profile with the requested difference and hints."""

    profile: StepProfile
    difference: ProfileDifference | None
    hints: tuple[Hint, ...] | None
    prices: RateCard | None

    def to_data(self) -> dict[str, Any]:
        """Return the profile as JSON-ready data, under the key ``profile`` if hints or a difference come with it."""
        from roller.insight.step_profile.hints_difference_json import hints_and_difference_data
        from roller.insight.step_profile.profile_json import profile_to_json_data

        profile, card = profile_to_json_data(self.profile), self.prices
        rate = None if card is None else card.devices.get(self.profile.device)
        more = hints_and_difference_data(self.profile, self.hints, self.difference, card.currency if card else "", rate)
        return {"profile": profile, **more} if more else profile


def _compare_and_add_hints(
    file: Path,
    profile: StepProfile,
    asked: ProfileOptionsGiven,
    devices: str,
    against: str,
    hints: bool,
    card: RateCard | None,
) -> _ProfileOutput:
    compared = None
    if against:
        from roller.insight.step_profile.difference import difference

        before, moved = make_baseline_profile(file, against, asked, devices)
        compared = difference(before, profile, moved)
    return _ProfileOutput(profile, compared, hints_with_costs(profile, card) if hints else None, card)


def _print_profile_output(parts: _ProfileOutput, depth: int, top: int, order: str, file: Path) -> None:
    screen = console()
    if parts.difference is not None:
        print_difference(screen, parts.difference, top)
    else:
        print_profile(screen, parts.profile, depth, top, order, file)
    if parts.hints is not None:
        print_hints(screen, parts.profile, parts.hints, parts.prices)
