"""HTML report of what a path names: a step, a recording, a kernel, a compiled model or benchmark results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from roller.artifact import KernelArtifact
from roller.errors import RollerError
from roller.hardware import DeviceSpec
from roller.insight.capture.idle_timeout import PATIENCE_S
from roller.insight.rate_card import RateCard
from roller.insight.step_profile.difference import difference
from roller.insight.step_profile.hints_difference_json import hints_and_difference_data
from roller.insight.step_profile.profile_html_page import profile_html
from roller.insight.step_profile.profiling import SUFFIXES, profile, profile_source_file_kind
from roller.insight.step_profile.read_saved_profile_json import load_profile_with_hints
from roller.insight.step_profile.source_line_reader import source_line_reader
from roller.insight.step_profile.step_profile import StepProfile
from roller.report.benchmark_report import UNDERSTOOD, page_of_benchmark
from roller.report.compiled_model_html_report import page_of_model
from roller.report.kernel_report import page_of_kernel
from roller.runtime.container_kinds import MODEL_BUNDLE
from roller_runtime.core.files import open_regular_file
from roller_runtime.storage.verified_container import SAVED

#: Kinds of reports.
ReportKind = Literal["entry", "script", "model", "profile", "recording", "compiled model", "kernel", "benchmark"]

#: Number of bytes to read from a file to find its kind, and the marks of kinds; a benchmark has no mark.
_HEAD = 4096
_KERNEL_MARKS = (b"roller kernel\n", b'{"format_version": ')
_EVENTS = b'"traceEvents"'
_RECORDING_MARKS = (_EVENTS, b'"schemaVersion"', b'"deviceProperties"')


def html_report(
    path: str | Path,
    device: str | DeviceSpec | None = None,
    *,
    batch: int | None = None,
    curve: bool = False,
    measure: bool = False,
    anonymous: bool = False,
    explain_s: float = 30.0,
    hints: bool = False,
    prices: RateCard | None = None,
    before: StepProfile | None = None,
    moved_lines: Mapping[str, str] | None = None,
    arguments: Sequence[str] = (),
    patience_s: float = PATIENCE_S,
) -> str:
    """Return the report of what ``path`` names as one self-contained HTML file of at most 1.5 MB."""
    path = Path(path)
    kind = kind_of_report(path)
    if kind == "compiled model":
        return page_of_model(path, anonymous=anonymous, explain_s=explain_s)
    if kind == "kernel":
        return page_of_kernel(KernelArtifact.load(path), anonymous=anonymous)
    if kind == "benchmark":
        return page_of_benchmark(path, anonymous=anonymous)
    if kind == "profile":
        found, parts = load_profile_with_hints(path)
        parts = dict(parts)
        if hints and "hints" not in parts:
            hints_page_data(found, prices)  # raises with the reason
    else:
        found = profile(
            path, device, batch=batch, curve=curve, measure=measure, arguments=arguments, patience_s=patience_s
        )
        parts = hints_page_data(found, prices) if hints else {}
    if before is not None:
        parts |= hints_and_difference_data(found, None, difference(before, found, moved_lines))
    return profile_html(
        found,
        anonymous=anonymous,
        text_of=source_line_reader(path) if kind in ("entry", "script") else None,
        parts=parts,
    )


def hints_page_data(found: StepProfile, prices: RateCard | None) -> dict[str, Any]:
    """Return the data of a profile's hints for its page, with ``price_note`` if ``prices`` lacks the device."""
    rate = None if prices is None else prices.devices.get(found.device)
    hints = found.hints(None if rate is None else rate.per_hour)
    parts = hints_and_difference_data(found, hints, None, "" if prices is None else prices.currency, rate)
    if prices is not None and rate is None:
        parts["price_note"] = prices.missing_rate_note(found.device)
    return parts


def kind_of_report(path: Path) -> ReportKind:
    """Return the kind of report for a path, judged by its suffix and contents; raise an error if there is none."""
    if path.is_dir():
        if not any((path / kind.manifest).is_file() for kind in (MODEL_BUNDLE, SAVED)):
            raise RollerError(
                f"{path}: expected {UNDERSTOOD}, got a folder without {SAVED.manifest} or {MODEL_BUNDLE.manifest}. "
                f"Name one."
            )
        return "compiled model"
    try:
        with open_regular_file(path) as file:
            head = file.read(_HEAD)
    except OSError as error:
        got = "none" if isinstance(error, FileNotFoundError) else f"what cannot be read ({error.strerror})"
        raise RollerError(f"{path}: expected a file, got {got}. Name one that can be read.") from error
    if head.startswith(_KERNEL_MARKS):
        return "kernel"
    if not path.name.lower().endswith(SUFFIXES):
        raise RollerError(f"{path}: expected {UNDERSTOOD}, got a file of another kind. Name one.")
    kind = profile_source_file_kind(path)
    if kind != "recording" or path.name.lower().endswith(".gz") or head.lstrip().startswith(b"["):
        return kind
    return kind if any(mark in head for mark in _RECORDING_MARKS) or _file_contains(path, _EVENTS) else "benchmark"


def _file_contains(path: Path, mark: bytes) -> bool:
    """Return whether a file contains a mark anywhere; a recording may begin with a long description."""
    with open_regular_file(path) as file:
        before = b""
        while part := file.read(1 << 20):
            if mark in before + part:
                return True
            before = part[-len(mark) :]
    return False
