"""``roller bundle``: build kernels here for another machine, and import its measurements."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

import roller
from roller.artifact import KernelArtifact
from roller.backends.build import build
from roller.cli.progress import track_progress
from roller.cli.shared_options_and_tables import (
    DeviceOption,
    JsonOption,
    SetOption,
    TopKOption,
    WorkersOption,
    console,
    load_device_spec,
    print_json,
    read_operator_rows,
    truncated_first_line,
)
from roller.compiler.autotune.prove_on_emulator import PROVE_ALL_S, ProofBudget, stored_proof_text
from roller.compiler.pipeline import lower
from roller.errors import ArtifactError, BuildError, RollerError, counted
from roller.expr import TensorExpr
from roller.hardware import DeviceSpec
from roller.runtime.build_pool import BuildResult, build_all
from roller.runtime.bundle_format import OperatorEntry, pack_candidates, unpack_candidates, write_bundle
from roller.runtime.bundle_import import import_results
from roller.runtime.cache_key import source_code_digest
from roller.runtime.candidate_records import grouped_reasons
from roller.templates.common.options import TEMPLATE_VERSION, ConstructOptions
from roller.tile import RProgram
from roller_runtime.core.processor_features_and_count import usable_processors
from roller_runtime.storage.verified_container import check_output_folder

bundle_app = typer.Typer(
    name="bundle",
    help="Kernels to be checked and timed on another machine.",
    no_args_is_help=True,
    add_completion=False,
)

#: Default limit on a bundle's size, in bytes.
LIMIT_BYTES = 60_000_000

#: Takes a candidate's id and its lowered kernel; returns the kernel with its proof, and the error found or ``""``.
Prove = Callable[[str, KernelArtifact], tuple[KernelArtifact, str]]

OpsOption = Annotated[Path, typer.Option("--ops", help="YAML with rows of operators, e.g. benchmarks/operators.yaml.")]
OutOption = Annotated[Path, typer.Option("--out", "-o", help="Folder to write; must not exist.")]
BatchOption = Annotated[int | None, typer.Option("--batch", min=1, help="Batch size; the rows' own when absent.")]
FilterOption = Annotated[str, typer.Option("--filter", help="Comma-separated ids or patterns, e.g. 'M*,C1?'.")]
LimitOption = Annotated[
    int, typer.Option("--limit-bytes", min=1, help="Size above which binaries are left out, worst ranks first.")
]
ProveOption = Annotated[
    float,
    typer.Option("--prove-s", metavar="SECONDS", min=0, help="Total time for emulating kernels; 0 for none."),
]
SourcesOption = Annotated[
    bool, typer.Option("--sources", help="Leave all binaries out; build them on the other machine.")
]
ResultsArgument = Annotated[Path, typer.Argument(metavar="RESULTS", help="JSON of `roller.runtime.bundle run`.")]


@dataclass(frozen=True)
class _OperatorJob:
    """An operator to construct, lower and build."""

    row: Mapping[str, Any]
    spec: DeviceSpec
    options: ConstructOptions
    batch: int | None
    binaries: bool
    prove_s: float = 0.0


@bundle_app.command("create")
def create_command(
    ops: OpsOption,
    out: OutOption,
    device: DeviceOption = "h200",
    top_k: TopKOption = 10,
    batch: BatchOption = None,
    pattern: FilterOption = "*",
    limit_bytes: LimitOption = LIMIT_BYTES,
    workers: WorkersOption = None,
    sources: SourcesOption = False,
    prove_s: ProveOption = PROVE_ALL_S,
    as_json: JsonOption = False,
    settings: SetOption = None,
) -> None:
    """Construct, lower and build the best candidates of a list of operators, and write them as one folder.

    Kernels run on the emulator first, the best of every operator before others, for --prove-s seconds at most. Wrong
    kernels are left out; unproved ones are listed. Run the folder on a machine with a GPU:
    ``python -m roller.runtime.bundle run FOLDER --json r.json``.
    """
    rows, spec = read_operator_rows(ops, pattern), load_device_spec(device, settings)
    done = create_bundle(
        rows, spec, out, top_k=top_k, batch=batch, limit_bytes=limit_bytes, workers=workers, binaries=not sources,
        prove_s=prove_s,
    )  # fmt: skip
    _print_created_bundle(done, out, as_json)


@dataclass(frozen=True)
class CreatedBundle:
    """A written bundle: its manifest, each operator's build result, and the number of binaries left out."""

    manifest: Mapping[str, Any]
    built: Mapping[str, BuildResult[Any]]
    left_out: int


def create_bundle(
    rows: Sequence[Mapping[str, Any]], spec: DeviceSpec, out: Path, *, top_k: int | Literal["auto"] = 10,
    batch: int | None = None, limit_bytes: int = LIMIT_BYTES, workers: int | None = None, binaries: bool = True,
    prove_s: float = 0.0,
) -> CreatedBundle:  # fmt: skip
    """Construct, lower and build the best candidates for operators, and write them as one folder."""
    check_output_folder(out)
    if not spec.traits.discrete:
        raise ArtifactError(
            f"--device: expected the spec of a GPU, got '{spec.name}'. CPU kernels compile where they run."
        )
    options = ConstructOptions(top_k=top_k)
    share_s = prove_s * (workers or usable_processors()) / max(1, len(rows))
    jobs = {str(row["id"]): _OperatorJob(row, spec, options, batch, binaries, share_s) for row in rows}
    built = build_operators(jobs, _build_operator, workers)
    operators, left_out = _drop_binaries_to_limit([r.value for r in built.values() if r.value is not None], limit_bytes)
    return CreatedBundle(write_bundle(out, bundle_header(spec, options, batch), operators), built, left_out)


def build_operators(
    jobs: Mapping[str, Any], build_one: Callable[[Any], tuple[OperatorEntry, bytes]], workers: int | None
) -> dict[str, BuildResult[tuple[OperatorEntry, bytes]]]:
    """Build all jobs in parallel; return their results by id. Raise an error if all fail."""
    import roller.te.compat  # noqa: F401 - imported before forking, so that the children inherit TVM

    with track_progress("operators", len(jobs)) as details:
        built = build_all(
            jobs, build_one, workers=workers, timeout_s=900.0, on_result=lambda record: details(record.candidate_id)
        )
    if not any(r.value is not None for r in built.values()):
        reasons = grouped_reasons(r.record for r in built.values()).rstrip(".")
        raise BuildError(
            f"no operator could be built: {reasons}. Correct what is named, or add --sources to skip building."
        )
    return built


@bundle_app.command("import")
def import_command(results: ResultsArgument, as_json: JsonOption = False) -> None:
    """Import the winners and measured times from a bundle's run into this machine's cache."""
    done = import_results(results)
    if as_json:
        print_json(done)
        return
    screen = console()
    screen.print(f"imported {done['kernels']} kernels and {done['measurements']} measurements")
    if not done["current"]:
        screen.print("the kernels were built by other sources of roller than these, which will build their own")


def _build_operator(job: _OperatorJob) -> tuple[OperatorEntry, bytes]:
    expr = roller.ops.from_spec(job.row, batch=job.batch)
    found = roller.construct(expr, job.spec.emitted, options=job.options)
    candidates = [(c.id, c.program, c.estimate.to_dict()) for c in found]
    flops = job.row.get("flops") if job.batch is None else None
    prove = ProofBudget(job.prove_s, partial(lower, spec=job.spec)) if job.prove_s else None
    return lower_and_build_operator(str(job.row["id"]), expr, candidates, job.spec, job.binaries, flops, prove)


def lower_and_build_operator(
    name: str, expr: TensorExpr, candidates: Sequence[tuple[str, RProgram, Mapping[str, Any]]], spec: DeviceSpec,
    binaries: bool = True, flops: float | None = None, prove: Prove | None = None,
) -> tuple[OperatorEntry, bytes]:  # fmt: skip
    """Lower and build one operator's candidates; the entry lists those that failed, with reasons."""
    good: list[tuple[str, KernelArtifact]] = []
    failed: list[tuple[str, str]] = []
    for candidate, program, estimate in candidates:
        try:
            artifact = replace(lower(program, expr, spec), estimate=dict(estimate))
            wrong = ""
            if prove is not None:
                artifact, wrong = prove(candidate, artifact)
            if wrong:
                failed.append((candidate, f"wrong: {wrong}"))
            else:
                good.append((candidate, build(artifact) if binaries else artifact))
        except RollerError as err:
            failed.append((candidate, str(err)))
    if not good:
        raise BuildError(f"{name}: no candidate could be built: {failed[0][1] if failed else 'there is none'}")
    entry = OperatorEntry(
        name, str(expr), "", "", 0, tuple(name for name, _ in good),
        tuple(a.estimate["seconds"] for _, a in good), len(good) if binaries else 0, tuple(failed), flops,
        tuple(stored_proof_text(a) for _, a in good) if prove is not None else (),
    )  # fmt: skip
    return entry, pack_candidates(good)


def _drop_binaries_to_limit(
    operators: list[tuple[OperatorEntry, bytes]], limit_bytes: int
) -> tuple[list[tuple[OperatorEntry, bytes]], int]:
    """Drop binaries, worst ranks first, until the bundle fits; return the operators and how many were dropped."""
    most = max(entry.binaries for entry, _ in operators)
    kept = operators
    for keep in range(most, -1, -1):
        if keep < most:
            kept = [
                (replace(e, binaries=min(keep, e.binaries)), pack_candidates(unpack_candidates(data, e.id),
                                                                             keep)) if e.binaries > keep
                else (e, data)
                for e, data in operators
            ]  # fmt: skip
        if sum(len(data) for _, data in kept) <= limit_bytes:
            before, after = (sum(e.binaries for e, _ in x) for x in (operators, kept))
            return kept, before - after
    size = sum(len(data) for _, data in kept)
    raise ArtifactError(f"--limit-bytes: the sources alone take {size} bytes. Raise it, or lower --top-k.")


def bundle_header(spec: DeviceSpec, options: ConstructOptions, batch: int | None = None) -> dict[str, Any]:
    """Return the manifest entries that describe the whole bundle."""
    return {
        "device": spec.name,
        "spec": spec.to_dict(),
        "options": options.to_dict(),
        "template_version": TEMPLATE_VERSION,
        "code": source_code_digest(),
        "batch": batch,
        "roller": roller.__version__,
    }


def _print_created_bundle(done: CreatedBundle, out: Path, as_json: bool) -> None:
    failed = {name: r.record.reason for name, r in done.built.items() if r.value is None}
    rows = done.manifest["operators"]
    summary = {
        "folder": str(out),
        "operators": len(rows),
        "candidates": sum(len(r["candidates"]) for r in rows),
        "binaries": sum(r["binaries"] for r in rows),
        "binaries_left_out": done.left_out,
        "size_bytes": sum(p.stat().st_size for p in out.rglob("*") if p.is_file()),
        "build_s": sum(r.record.build_s or 0.0 for r in done.built.values()),
        "failed": failed,
        "proofs": _group_candidates_by_proof(rows),
    }
    if as_json:
        print_json(summary)
        return
    screen = console()
    screen.print(
        f"{out}: {summary['operators']} operators, {summary['candidates']} candidates ({summary['binaries']} with a "
        f"binary), {summary['size_bytes'] / 1e6:.2f} MB", soft_wrap=True,
    )  # fmt: skip
    for line, ids in _group_candidates_by_proof(rows).items():
        screen.print(
            f"{line}: {counted(len(ids), 'candidate')}: {truncated_first_line(', '.join(ids))}", soft_wrap=True
        )
    for name, reason in failed.items():
        screen.print(f"{name}: left out: {reason}", soft_wrap=True)
    screen.print(f"run it there: python -m roller.runtime.bundle run {out.name} --json results.json", soft_wrap=True)


def _group_candidates_by_proof(rows: Sequence[Mapping[str, Any]]) -> dict[str, list[str]]:
    """Group candidates (``"operator #rank"``) by the proof's status, and operators with wrong candidates by reason."""
    found: dict[str, list[str]] = {}
    for row in rows:
        for rank, known in enumerate(row.get("proved", ()), 1):
            kind = "emulated, some blocks" if known.startswith("emulated:") else known
            found.setdefault(kind, []).append(f"{row['id']} #{rank}")
        for _, reason in row["failed"]:
            if reason.startswith("wrong:"):
                found.setdefault(reason, []).append(str(row["id"]))
    return dict(sorted(found.items(), key=lambda kv: (-len(kv[1]), kv[0])))
