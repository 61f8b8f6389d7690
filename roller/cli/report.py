"""``roller report``: write a step, a recording, a kernel or a compiled model as one HTML file."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from roller.cli.output_file_checks import check_output_paths
from roller.cli.predicted_change_hints import read_rate_card_option
from roller.cli.profile import MEASURE_S, AgainstOption, HintsOption
from roller.cli.profiles_from_files import ProfileOptionsGiven, make_baseline_profile
from roller.cli.progress import track_progress
from roller.cli.shared_options_and_tables import SetOption, console, load_device_spec
from roller.cli.sweep import PricesOption
from roller.cli.terminal_escaping import redirect_stdout_to_stderr
from roller.cli.training_script_options import PATIENCE_S, GivenArgument, PatienceOption, ScriptRun, YesOption
from roller.cli.usage_error import UsageError
from roller_runtime.core.files import write_atomically

if TYPE_CHECKING:
    from collections.abc import Mapping

    from roller.hardware import DeviceSpec
    from roller.insight.step_profile.step_profile import StepProfile

#: Default device for profiling a step.
_DEVICE = "a100"

PathArgument = Annotated[
    Path,
    typer.Argument(
        metavar="X",
        help="A profile, what profile --json prints, an entry file, a training script, a recording of PyTorch, a "
        "compiled model's folder, a kernel, or a benchmark's JSON.",
    ),
]
OutOption = Annotated[Path, typer.Option("--out", "-o", metavar="FILE", help="The HTML file to write.")]
DeviceOption = Annotated[
    str, typer.Option("--device", "-d", metavar="NAME", help="Of an entry file or an ONNX model; a100 by default.")
]
BatchOption = Annotated[
    int | None, typer.Option("--batch", "-b", min=1, help="Of an entry file or an ONNX model; its own by default.")
]
CurveOption = Annotated[
    bool, typer.Option("--curve", help="Of an entry file: throughput and memory over the batch, too.")
]
MeasureOption = Annotated[
    bool, typer.Option("--measure", help="Of an entry file: run the step on this machine's processor.")
]
AnonymousOption = Annotated[bool, typer.Option("--anonymous", help="Leave out sources, the text of lines, and paths.")]
ExplainOption = Annotated[
    float,
    typer.Option("--explain-s", min=0.0, metavar="SECONDS", help="Of a compiled model: time for explaining kernels."),
]


def report_command(
    path: PathArgument,
    script_arguments: GivenArgument = None,
    out: OutOption = Path("report.html"),
    device: DeviceOption = "",
    batch: BatchOption = None,
    curve: CurveOption = False,
    measure: MeasureOption = False,
    anonymous: AnonymousOption = False,
    explain_s: ExplainOption = 30.0,
    against: AgainstOption = "",
    hints: HintsOption = False,
    prices: PricesOption = None,
    yes: YesOption = False,
    patience: PatienceOption = PATIENCE_S,
    settings: SetOption = None,
) -> None:
    """Write one HTML file that shows a step, a recording, a kernel or a compiled model, without server or requests.

    The file is at most 1.5 MB and opens in any browser, offline. Every number in it is labelled as measured, predicted
    or recorded. A training script's own arguments follow `--`; it runs as in `roller profile`.
    """
    from roller.insight.trace.progress import listening
    from roller.report.report_of_path import html_report, kind_of_report

    kind = kind_of_report(path)
    given = {
        "--curve": curve, "--measure": measure, "--device": bool(device or settings), "--batch": batch is not None,
        "--hints": hints, "--against": bool(against),
    }  # fmt: skip
    allowed = {
        "entry": set(given), "script": set(given) - {"--measure"}, "model": {"--device", "--batch", "--against"},
        "recording": {"--hints", "--against"},
        "profile": {"--against", "--hints"},
    }.get(kind, set())  # fmt: skip
    wrong = next((name for name, is_given in given.items() if is_given and name not in allowed), None)
    if wrong is not None:
        raise UsageError(
            f"{path.name}: expected no {wrong} for {_report_kind_text(kind)}, which has its own or none. Leave it out."
        )
    if measure and (device or settings):
        raise UsageError("--device: expected none beside --measure, which runs on this processor. Leave it out.")
    if hints and measure:
        raise UsageError("--hints: expected a step that is traced or recorded, got one that is measured. Leave it out.")
    if kind == "profile":
        _check_saved_profile_options(path, hints, prices)
    script = ScriptRun(script_arguments or [], yes, patience)
    if kind != "script":
        script.check(path, is_script=False)
    check_output_paths([*([] if path.is_dir() else [path]), *filter(None, [prices])], {"--out": out})
    card = read_rate_card_option(prices, hints)
    if kind == "script":
        script.check(path, is_script=True)
        script = replace(script, yes=True)  # permission for the same script is asked once
    spec = load_device_spec(device or _DEVICE, settings) if device or settings else None
    with redirect_stdout_to_stderr(), track_progress("report", 1) as done, listening(done.report_step_share):
        before, moved = _baseline_profile(path, against, spec, batch, measure, script) if against else (None, None)
        page = html_report(
            path, spec, batch=batch, curve=curve, measure=measure, anonymous=anonymous, explain_s=explain_s,
            hints=hints, prices=card, before=before, moved_lines=moved, arguments=script.arguments,
            patience_s=script.patience_s,
        )  # fmt: skip
        done(path.name)
    with write_atomically(out) as file:
        file.write(page.encode())
    size = len(page.encode())
    console().say(
        f"{out}: report of {_report_kind_text(kind)}, {size:,} bytes. Open it in a browser; it needs no network."
    )


def _baseline_profile(
    path: Path, against: str, spec: DeviceSpec | None, batch: int | None, measure: bool, script: ScriptRun
) -> tuple[StepProfile, Mapping[str, str]]:
    """Return the baseline profile, made with the same options, and a map of the lines that have moved since then."""
    made_on = [(spec or load_device_spec(_DEVICE, None), 1)]
    asked = ProfileOptionsGiven(
        made_on, [batch], amp="fp32", checkpoint=False, calls=None, curve=False, measure=measure, budget_s=MEASURE_S,
        trace=None, snapshot=None, script=script,
    )  # fmt: skip
    return make_baseline_profile(path, against, asked, made_on[0][0].name if spec else "")


def _check_saved_profile_options(path: Path, hints: bool, prices: Path | None) -> None:
    """Raise an error if an option needs the step itself but only a saved profile is available."""
    from roller.insight.step_profile.read_saved_profile_json import load_profile_with_hints

    if hints and prices is not None:
        raise UsageError(
            "--prices: expected none for a saved profile, whose hints have the prices that they were written with. "
            "Pass --prices to roller profile --json --hints."
        )
    if hints and "hints" not in load_profile_with_hints(path).parts:
        raise UsageError(
            f"{path.name}: --hints: a saved profile has no hints: write them with roller profile train.py --json "
            f"--hints > profile.json, or name the entry file."
        )


def _report_kind_text(kind: str) -> str:
    return {"entry": "an entry file", "model": "an ONNX model"}.get(kind, f"a {kind}")
