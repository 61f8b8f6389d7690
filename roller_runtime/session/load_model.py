"""Loading of saved models: a session starts in under a second, without a compiler.

Arrays are memory-mapped and shared by all processes that load the folder; ``save_session.py`` describes its files.
"""

from __future__ import annotations

import logging
import os
import platform
import sys
import time
from pathlib import Path
from typing import Any, TypeAlias

from roller_runtime.core.processor_features_and_count import missing_features
from roller_runtime.core.temporary_folders import ScratchLibraries
from roller_runtime.core.validation import validate_flag, validate_threads
from roller_runtime.core.validation import validate_path as path_of
from roller_runtime.errors import ArtifactError, counted
from roller_runtime.plan.plan_json import plan_from_dict
from roller_runtime.session.cpu_kernel_loading import CpuKernelInterface, load_kernel
from roller_runtime.session.cpu_session import Session
from roller_runtime.session.decoder_inputs import DecoderInputs
from roller_runtime.session.decoder_session import DecoderSession
from roller_runtime.session.fallback_runtime import require_runtimes
from roller_runtime.session.native_runner import load_runner
from roller_runtime.session.packed_constants import Constants, PanelKey, flatten_lanes
from roller_runtime.session.range_session import RangeSession
from roller_runtime.session.save_ranges import RangeParts, plan_from_json
from roller_runtime.session.save_session import SessionParts
from roller_runtime.session.saved_artifacts import ArtifactReader, SavedArtifacts, read_as_data
from roller_runtime.storage.array_file import ArrayReader
from roller_runtime.storage.verified_container import MANIFEST, SAVED, Container

_LOG = logging.getLogger("roller.session")
#: Session of a saved model on a processor.
CpuModelSession: TypeAlias = "Session | RangeSession | DecoderSession"


def load_model(
    folder: str | os.PathLike[str], *, verify: bool = False, threads: int | None = None
) -> Session | RangeSession | DecoderSession:
    """Load a saved model for this processor; nothing is compiled or packed, and weights are memory-mapped.

    Parameters
    ----------
    folder
        Folder written by a session's ``save``. Its kernels are executable code: load only from trusted sources.
    verify
        Whether to verify the checksums of the weights, which reads them all. The manifest and the code are always
        verified. :func:`roller_runtime.verify_saved_model` verifies everything without loading the model.
    threads
        Number of threads per call, including the calling thread; by default as many as it was compiled for. Kernels
        are not changed: to get the kernels that suit this number best, compile with ``threads=``.

    Returns
    -------
    Session, RangeSession or DecoderSession
        A :class:`RangeSession` if the model was compiled for ranges of sizes, a :class:`DecoderSession` if
        ``roller.compile_decoder`` compiled it.

    Raises
    ------
    ArtifactError
        If the folder is damaged, incomplete, in a newer format, or for a different kind of machine.
    LaunchError
        If TVM's runtime library or a package that computes steps is not found, or if ``threads`` is not a positive
        integer.
    """
    where = path_of(folder, "folder", error=ArtifactError, what="the folder of a saved model")
    checked = validate_flag(verify, "verify", error=ArtifactError)
    count = None if threads is None else validate_threads(threads, discrete=False)
    if not (where / SAVED.manifest).exists() and (where / MANIFEST).exists():
        raise ArtifactError(
            f"{where}: expected a model for a processor, got a bundle, such as a model for a GPU. Load it with roller."
        )
    return open_saved_model(where, verify=checked, threads=count)[0]


def open_saved_model(
    folder: Path, *, verify: bool = False, threads: int | None = None, read: ArtifactReader = read_as_data
) -> tuple[CpuModelSession, Container]:
    """Load a saved model; return its session and its folder. ``read`` makes artifacts of their JSON data."""
    opened, start = Container(folder, SAVED), time.perf_counter()
    with opened.fields():
        _check_machine(opened)
        session = _restore_session(opened, verify, threads, read)
    held: Any = getattr(session, "range_session", session)  # that of a decoder
    _LOG.info(
        "%s: loaded from %s in %.3f s: %s, %s, %.1f MB of constants, %.1f MB per call", session.name, folder,
        time.perf_counter() - start, counted(len(opened.manifest["kernels"]), "kernel"),
        counted(held.cores, "thread"), held.constants.nbytes / 1e6, held.plan.arena_bytes / 1e6,
    )  # fmt: skip
    return session, opened


def _check_machine(folder: Container) -> None:
    """Raise an error if this machine cannot run the model's kernels."""
    path, body, here = folder.folder / SAVED.manifest, folder.manifest, [sys.platform, platform.machine()]
    if body.get("machine") != here:
        raise ArtifactError(f"{path}: saved for {body.get('machine')}, this is {here}. Compile the model here.")
    lacking = missing_features(str(feature) for feature in body["features"])
    if lacking:
        raise ArtifactError(
            f"{path}: expected a processor with {', '.join(body['features'])}, got one without {', '.join(lacking)}. "
            "Compile the model on this machine, or for a device whose 'mcpu' both have."
        )


def _restore_session(folder: Container, verify: bool, threads: int | None, read: ArtifactReader) -> CpuModelSession:
    body, arrays = folder.manifest, folder.manifest["arrays"]
    reader = ArrayReader(folder.path(arrays["file"]), int(arrays["bytes"]), verify=False)
    constants = Constants(
        {str(name): reader.get(row) for name, row in arrays["constants"]},
        {_parse_panel_key(key, names): tuple(reader.get(r) for r in rows) for key, names, rows in arrays["panels"]},
    )
    if verify:
        reader.check()
    runner = None if body["runner"] is None else load_runner(folder.read(body["runner"]["file"]))
    launch = runner.launch if runner is not None else None
    with ScratchLibraries() as scratch:
        kernels = {
            str(row["key"]): load_kernel(
                CpuKernelInterface.from_dict(row["code"]), folder.read(row["file"]), launch, scratch
            )
            for row in body["kernels"]
        }
    details = {str(row["key"]): row["artifact"]["file"] for row in body["kernels"] if "artifact" in row}
    cores = int(body["cores"]) if threads is None else threads
    artifacts = SavedArtifacts(folder, details, read)
    model_sha256 = None if body.get("model_sha256") is None else str(body["model_sha256"])
    if "ranges" in body:
        if runner is None:
            raise ValueError("runner")
        ranges = plan_from_json(folder.json(body["plan"]["file"]), {key: k.code for key, k in kernels.items()})
        doubt = str(body["doubt"])
        parts = RangeParts(ranges, kernels, constants, cores, runner, doubt, artifacts, lambda: model_sha256)
        session = RangeSession(parts)
        return session if body.get("decoder") is None else _restore_decoder(session, body["decoder"])
    plan = plan_from_dict(body["plan"], {}, str(folder.folder / SAVED.manifest))
    require_runtimes(flatten_lanes(plan.program.steps))
    return Session(SessionParts(plan, kernels, constants, cores, runner, artifacts, lambda: model_sha256))


def _restore_decoder(session: RangeSession, data: Any) -> DecoderSession:
    found = DecoderInputs.from_dict(data)
    made = DecoderSession(session, found.caches, found.tokens_per_call, found.lengths)
    made.prepare()
    return made


def _parse_panel_key(key: Any, names: Any) -> PanelKey:
    return str(key), tuple(str(n) for n in names)
