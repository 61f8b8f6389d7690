"""``roller report``: a step, a recording, a kernel or a compiled model as one HTML file to look at and to send."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from roller.cli.common import SetOption, console, device_of
from roller.cli.outputs import check_outputs
from roller.cli.progress import counted_steps
from roller.cli.terminal import prints_aside
from roller.cli.usage import UsageError
from roller.core.files import whole_file

#: Device of a step where none is named.
_DEVICE = "a100"

PathArgument = Annotated[
    Path,
    typer.Argument(
        metavar="X",
        help="A profile, an entry file, a recording of PyTorch, a compiled model's folder, a kernel, or a benchmark's "
        "JSON.",
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
    out: OutOption = Path("report.html"),
    device: DeviceOption = "",
    batch: BatchOption = None,
    curve: CurveOption = False,
    measure: MeasureOption = False,
    anonymous: AnonymousOption = False,
    explain_s: ExplainOption = 30.0,
    settings: SetOption = None,
) -> None:
    """Write one HTML file that shows a step, a recording, a kernel or a compiled model: no server, no request.

    The file is at most 1.5 MB and opens in any browser, offline. Every number in it says whether it was measured,
    predicted or recorded.
    """
    from roller.insight.html_report import html_report, kind_of_report
    from roller.insight.trace.progress import listening

    kind = kind_of_report(path)
    given = {"--curve": curve, "--measure": measure, "--device": bool(device or settings), "--batch": batch is not None}
    allowed = {"entry": set(given), "model": {"--device", "--batch"}}.get(kind, set())
    wrong = next((name for name, is_given in given.items() if is_given and name not in allowed), None)
    if wrong is not None:
        raise UsageError(
            f"{path.name}: expected no {wrong} for {_words(kind)}, which has its own or none. Leave it out."
        )
    if measure and (device or settings):
        raise UsageError("--device: expected none beside --measure, which runs on this processor. Leave it out.")
    check_outputs([] if path.is_dir() else [path], {"--out": out})
    spec = device_of(device or _DEVICE, settings) if device or settings else None
    with prints_aside(), counted_steps("report", 1) as done, listening(done.within):
        page = html_report(
            path, spec, batch=batch, curve=curve, measure=measure, anonymous=anonymous, explain_s=explain_s
        )
        done(path.name)
    with whole_file(out) as file:
        file.write(page.encode())
    size = len(page.encode())
    console().say(f"{out}: report of {_words(kind)}, {size:,} bytes. Open it in a browser; it needs no network.")


def _words(kind: str) -> str:
    return {"entry": "an entry file", "model": "an ONNX model"}.get(kind, f"a {kind}")
