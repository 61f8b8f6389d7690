"""HTML report of a compiled model's folder: predicted and measured times of its steps, and all kernels."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from roller.artifact import KernelArtifact
from roller.errors import ArtifactError
from roller.models.session.gpu_bundle import ModelBundle
from roller.page.anonymize_report_paths import without_paths
from roller.page.html_page import html_page
from roller.report.kernel_report import kernel_data, stored_estimate
from roller.runtime.container_kinds import MODEL_BUNDLE
from roller_runtime.plan.plan_json import plan_from_dict
from roller_runtime.plan.program_steps import ParallelGroup, Step, iterate_kernel_runs
from roller_runtime.session.saved_artifacts import SavedArtifacts
from roller_runtime.storage.verified_container import SAVED, Container


def page_of_model(folder: Path, *, anonymous: bool = False, explain_s: float = 30.0) -> str:
    """Return a compiled model's report as one HTML file; explain its kernels for about ``explain_s`` seconds."""
    name, device, steps, artifacts = _read_model_folder(folder)
    data = model_data(name, device, steps, artifacts, explain_s)
    if anonymous:
        kernels = {key: {**kernel, "source": ""} for key, kernel in data["kernels"].items()}
        data = without_paths({**data, "name": "model", "kernels": kernels})
    while True:
        try:
            return html_page(f"{data['name']} for {device}: compiled model", data)
        except ArtifactError:
            if not any(kernel["source"] for kernel in data["kernels"].values()):
                raise
        kernels = {key: {**kernel, "source": ""} for key, kernel in data["kernels"].items()}
        data = {**data, "kernels": kernels, "notes": [*data["notes"], "Sources are left out: the page would be large."]}


def _read_model_folder(folder: Path) -> tuple[str, str, Sequence[Step], Mapping[str, KernelArtifact]]:
    """Read the name, device, steps and kernels from a model's folder."""
    if MODEL_BUNDLE.is_kind_of_folder(folder):
        bundle = ModelBundle(folder)
        return bundle.model, bundle.device, bundle.plan().program.steps, bundle.artifacts()
    opened = Container(folder, SAVED)
    with opened.fields():
        body = opened.manifest
        plan = plan_from_dict({**body["plan"], "constants": []}, {}, str(folder / SAVED.manifest))
        files = {str(row["key"]): row["artifact"]["file"] for row in body["kernels"] if "artifact" in row}
    artifacts = dict(SavedArtifacts(opened, files))
    device = next((a.device for a in artifacts.values()), "cpu")
    return plan.program.name or folder.name, device, plan.program.steps, artifacts


def model_data(
    name: str, device: str, steps: Sequence[Step], artifacts: Mapping[str, KernelArtifact], explain_s: float
) -> dict[str, Any]:
    """Return a model's page data: its steps in order, and its kernels by key."""
    runs = Counter(run.kernel for run in iterate_kernel_runs(steps))
    predicted = {key: stored_estimate(artifact) for key, artifact in artifacts.items()}
    heavy = sorted(artifacts, key=lambda key: -runs[key] * (found.seconds if (found := predicted[key]) else 0.0))
    kernels, began = {}, time.monotonic()
    for number, key in enumerate(heavy):
        wanted = explain_s > 0 and (number == 0 or time.monotonic() - began < explain_s)
        kernels[key] = {**kernel_data(artifacts[key], explained=wanted), "runs": runs[key], "explained": wanted}
    left = sum(1 for kernel in kernels.values() if not kernel["explained"])
    notes = [f"{left} of {len(kernels)} kernels are shown without an explanation; --explain-s gives them more time."]
    rows = list(_step_rows(steps, artifacts))
    return {
        "view": "model", "name": name, "device": device, "steps": rows, "kernels": kernels,
        "predicted_s": _sum_over_kernel_steps(rows, "predicted_s"), "interval_s": _sum_intervals(rows),
        "measured_s": _sum_over_kernel_steps(rows, "measured_s"),
        "notes": notes if left else [],
    }  # fmt: skip


def _sum_over_kernel_steps(rows: Sequence[Mapping[str, Any]], name: str) -> float | None:
    """Sum a value over the steps that run a kernel; return ``None`` if there are none or one lacks it."""
    values = [row[name] for row in rows if row["kind"] == "run"]
    return sum(values) if values and None not in values else None


def _sum_intervals(rows: Sequence[Mapping[str, Any]]) -> list[float] | None:
    """Sum the steps' interval ends, as if all errors had the same sign; return ``None`` if one is unknown."""
    ends = [row["interval_s"] for row in rows if row["kind"] == "run"]
    return None if not ends or None in ends else [sum(end[place] for end in ends) for place in (0, 1)]


def _step_rows(
    steps: Sequence[Step], artifacts: Mapping[str, KernelArtifact], lane: int | None = None
) -> Iterator[Any]:
    for step in steps:
        if isinstance(step, ParallelGroup):
            for number, inner in enumerate(step.lanes):
                yield from _step_rows(inner, artifacts, number)
            continue
        kind, key = type(step).__name__.lower(), getattr(step, "kernel", "")
        artifact = artifacts.get(key)
        estimate = None if artifact is None else stored_estimate(artifact)
        label = getattr(step, "label", "") or getattr(step, "function", "") or getattr(step, "target", "") or kind
        yield {
            "kind": kind, "label": str(label), "kernel": key, "nodes": list(getattr(step, "nodes", ())), "lane": lane,
            "predicted_s": None if estimate is None else estimate.seconds,
            "interval_s": None if estimate is None else list(estimate.interval_s),
            "bottleneck": "" if estimate is None else estimate.bottleneck,
            "measured_s": None if artifact is None else artifact.measured_s,
        }  # fmt: skip
