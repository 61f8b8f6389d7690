"""Diagnostics of a live profile: errors in the providers, insufficient memory, and hints."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from lsprotocol import types

from roller.insight.step_profile.earlier_revision_and_moved_lines import split_source_lines
from roller.server.find_project_lines_in_messages import first_project_line_in
from roller.server.lsp.editor_session import EditorSession
from roller.server.lsp.number_texts import interval_text, size_text, time_text
from roller.server.lsp.positions import Encoding, range_of_line

#: Number of lines of a failed process's output to quote in a diagnostic.
_OUTPUT_LINES = 5


@dataclass(frozen=True)
class Finding:
    """A diagnostic before placement: ``file`` and ``line`` refer to the profiled text; ``data`` has exact figures."""

    file: str
    line: int
    text: str
    severity: types.DiagnosticSeverity
    code: str
    data: Mapping[str, Any]


def session_findings(shown: EditorSession) -> list[Finding]:
    """Return the findings for a session's current state."""
    error = shown.session.state.error
    if error is not None:
        return [*_error_findings(shown, error)]
    if shown.figures_error:
        data, entry = {"text": shown.figures_error}, shown.project.entry_name
        return [Finding(entry, 1, shown.figures_error, types.DiagnosticSeverity.Error, "profile", data)]
    return [*_out_of_memory_findings(shown), *_hint_findings(shown)]


def _error_findings(shown: EditorSession, error: Mapping[str, Any]) -> Iterator[Finding]:
    entry = shown.project.entry_name
    output = [line for line in error["output"] if line.strip()][-_OUTPUT_LINES:]
    for problem in error["problems"] or [{"file": entry, "line": 1, "text": error["text"]}]:
        data = {"output": output, "text": error["text"]}
        yield Finding(
            problem["file"], problem["line"], problem["text"], types.DiagnosticSeverity.Error, "step", data
        )  # fmt: skip


def _out_of_memory_findings(shown: EditorSession) -> Iterator[Finding]:
    figures = shown.figures
    if figures is None or figures.profile.fits:
        return
    profile, fit = figures.profile, shown.result("fit")
    places = first_project_line_in(profile.out_of_memory, shown.project)
    entry = shown.project.entry_name
    file, line = (places[0]["file"], places[0]["line"]) if places else (entry, figures.steps.get(entry, 1))
    text = f"{profile.device}, batch {profile.batch} ({profile.source}): {profile.out_of_memory}"
    if fit:
        text += "\n" + _remedies_text(fit)
    yield Finding(file, line, text, types.DiagnosticSeverity.Error, "out-of-memory", fit or {})


def _remedies_text(fit: Mapping[str, Any]) -> str:
    largest = fit["largest"]
    said = [f"The largest batch that fits as it is: {largest}."] if largest else []
    said += ["Not even one sample fits as it is."] if largest == 0 else []
    for remedy in fit["remedies"]:
        verdict = "fits" if remedy["fits"] else "does not fit either"
        said.append(f"With {remedy['change']}: {size_text(remedy['total_bytes'])}, {verdict}.")
    return "\n".join(said)


def _hint_findings(shown: EditorSession) -> Iterator[Finding]:
    found = shown.result("hints")
    for hint in found.get("hints", ()) if isinstance(found, Mapping) else ():
        if hint["not_asked"] or hint["hardly_anything"] or not hint["delta_s"] < 0:
            continue
        entry = shown.project.entry_name
        file, _, line = hint["line"].rpartition(":")
        steps = {} if shown.figures is None else shown.figures.steps
        text = hint_text(hint)
        yield Finding(
            file or entry, int(line) if line else steps.get(entry, 1), text,
            types.DiagnosticSeverity.Information if not hint["upper_bound"] else types.DiagnosticSeverity.Hint,
            "hint", hint,
        )  # fmt: skip


def hint_text(hint: Mapping[str, Any]) -> str:
    """Describe the gain from a hint; name its change in the syntax of ``roller whatif --do`` if possible."""
    name = ", ".join(hint["options"]) or hint["change"]
    interval = interval_text(hint["lower_s"], hint["upper_s"])
    gain = f"saves {time_text(-hint['delta_s'])}"
    step = f"{time_text(hint['iteration_s'])} a step" + (f" ({interval})" if interval else "")
    bound = "; upper bound" if hint["upper_bound"] else ""
    rests = hint["rests_on"]
    label = hint["kind"] + (f", rests on {rests} times" if rests and rests != hint["kind"] else "")
    return f"{name}: {gain}; {step}, {label}{bound}."


def diagnostics_by_file(
    shown: EditorSession, text_of: Callable[[str], str | None], encoding: Encoding
) -> dict[str, list[types.Diagnostic]]:
    """Return the diagnostics by file, at the current lines of the documents."""
    placed: dict[str, list[types.Diagnostic]] = {}
    base = shown.error_texts if shown.session.state.error is not None else {}
    for finding in session_findings(shown):
        text = text_of(finding.file)
        if text is None:
            continue
        old = base.get(finding.file)
        if old is None and shown.figures is not None and shown.session.state.error is None:
            old = shown.figures.texts.get(finding.file)
        at = shown.map_lines_cached(old, text).get(finding.line) if old is not None else None
        if old is not None and at is None:
            continue  # the line no longer exists
        is_stale = shown.is_stale or (at is not None and at.is_changed)
        line = finding.line if at is None else at.line
        placed.setdefault(finding.file, []).append(
            types.Diagnostic(
                range_of_line(split_source_lines(text), line, encoding),
                ("Stale: " if is_stale else "") + finding.text,
                finding.severity, finding.code, source="roller", data={**finding.data, "stale": is_stale},
            )
        )  # fmt: skip
    return placed
