"""HTML report of a kernel: tiles, terms of its predicted time, comparison with other candidates, and source."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from roller.artifact import KernelArtifact
from roller.construction.constructor import construct_candidates
from roller.errors import ArtifactError, RollerError
from roller.explanation.kernel_explanations import explain_kernel
from roller.hardware import load_spec
from roller.page.anonymize_report_paths import without_paths
from roller.page.html_page import html_page
from roller.perf import Estimate
from roller.templates.common.options import ConstructOptions
from roller.tile.program import RProgram
from roller.tile.winograd_batched_product import tiled_product_of_program

#: Maximum number of candidates to list.
_CANDIDATES = 10


@dataclass(frozen=True)
class _ExplainableArtifact:
    """Artifact with the interface that ``explain`` needs."""

    artifact: KernelArtifact

    @property
    def program(self) -> RProgram:
        return self.artifact.program


def page_of_kernel(artifact: KernelArtifact, *, anonymous: bool = False) -> str:
    """Return the report of a kernel as one self-contained HTML file."""
    data = {"view": "kernel", **kernel_data(artifact)}
    if anonymous:
        data = without_paths({**data, "source": ""})
    return html_page(f"{data['name']} for {data['device']}: kernel", data)


def kernel_data(artifact: KernelArtifact, *, explained: bool = True) -> dict[str, Any]:
    """Return a kernel's page data; if ``explained``, construct its candidates again, which takes seconds."""
    estimate = stored_estimate(artifact)
    data: dict[str, Any] = {
        "name": artifact.expression.name,
        "expression": str(artifact.expression),
        "device": artifact.device,
        "language": artifact.language,
        "program": str(artifact.program),
        "predicted_s": None if estimate is None else estimate.seconds,
        "interval_s": None if estimate is None else list(estimate.interval_s),
        "bottleneck": "" if estimate is None else estimate.bottleneck,
        "measured_s": artifact.measured_s,
        "doubt": artifact.doubt or artifact.tied,
        "levels": tile_levels(artifact.program),
        "launches": [[x.entry, list(x.grid), list(x.block), x.dynamic_shared_bytes] for x in artifact.launches],
        "arguments": [[a.name, a.role, list(a.shape), a.dtype] for a in artifact.arguments],
        "source": artifact.source,
        "explanation": None,
        "candidates": [],
        "notes": [],
    }
    if not explained:
        return data
    try:
        return {**data, **_explanation_and_candidates(artifact)}
    except RollerError as error:
        return {**data, "notes": [f"Why the program is as it is cannot be told: {error}"]}


def _explanation_and_candidates(artifact: KernelArtifact) -> dict[str, Any]:
    found = explain_kernel(_ExplainableArtifact(artifact), None, None)
    why = found.to_dict()
    why["rivals"] = [{**rival, "time": None} for rival in why["rivals"]]  # each is a large tree
    options = ConstructOptions(constants=artifact.program.constants)
    rows = construct_candidates(artifact.expression, load_spec(artifact.device), options)[:_CANDIDATES]
    candidates = [
        {
            "program": str(row.program), "predicted_s": row.estimate.seconds,
            "interval_s": list(row.estimate.interval_s), "bottleneck": row.estimate.bottleneck,
            "chosen": row.program == artifact.program,
        }
        for row in rows
    ]  # fmt: skip
    return {"explanation": why, "candidates": candidates, "notes": list(found.notes)}


def stored_estimate(artifact: KernelArtifact) -> Estimate | None:
    """Return the prediction stored in an artifact, or ``None`` if there is none or it is malformed."""
    try:
        return Estimate.from_dict(artifact.estimate) if artifact.estimate.get("seconds") is not None else None
    except ArtifactError:
        return None


def tile_levels(program: RProgram) -> list[dict[str, Any]]:
    """Return the name and the extents by axis of each tile of a program, from the whole down to the smallest."""
    program = tiled_product_of_program(program) or program  # its tiles are the tiles of the matrix products
    reduced = {a.name for a in program.axes if a.kind != "spatial"}
    whole: Mapping[str, int] = {a.name: a.extent for a in program.axes}
    levels = [("whole", whole), *((name, program.tile(name)) for name in reversed(program.layers))]
    if program.fragment is not None and len(program.matrix_axes) == 3:
        f = program.fragment
        levels.append((f.name, dict(zip(program.matrix_axes, (f.m, f.n, f.k), strict=True))))
    return [
        {"name": name, "extents": [[axis, int(tile.get(axis, 1)), axis in reduced] for axis in whole]}
        for name, tile in levels
    ]
