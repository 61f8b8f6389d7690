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
from typing import TYPE_CHECKING, Any

from roller.core.processor_features_and_count import missing_features
from roller.core.validation import validate_flag, validate_threads
from roller.core.validation import validate_path as path_of
from roller.errors import ArtifactError, counted
from roller.models.graph.plan_json import plan_from_dict
from roller.models.session.array_file import ArrayReader
from roller.models.session.cpu_kernel_loading import CpuKernelInterface, load_kernel
from roller.models.session.cpu_session import Session
from roller.models.session.native_runner import load_runner
from roller.models.session.packed_constants import Constants, PanelKey
from roller.models.session.save_session import SessionParts
from roller.models.session.saved_artifacts import SavedArtifacts
from roller.runtime.verified_container import MODEL_BUNDLE, SAVED, Container

if TYPE_CHECKING:
    from roller.models.session.decoder_session import DecoderSession
    from roller.models.session.gpu_device import Device
    from roller.models.session.gpu_session import GpuSession
    from roller.models.session.range_session import RangeSession

_LOG = logging.getLogger("roller.session")


def load_model(
    folder: str | os.PathLike[str],
    *,
    verify: bool = False,
    device: str | Device | None = None,
    threads: int | None = None,
) -> Session | RangeSession | DecoderSession | GpuSession:
    """Load a saved model; nothing is compiled or packed, and weights are memory-mapped.

    Parameters
    ----------
    folder
        Folder written by a session's ``save``. Its kernels are executable code: load only from trusted sources.
    verify
        Whether to verify the checksums of the weights, which reads them all. The manifest, the code and the weights of
        models for GPUs are always verified. ``roller check FOLDER`` verifies everything without loading the model.
    device
        The GPU to run a GPU model on, for example ``"cuda:1"``; by default the first GPU of its kind.
    threads
        Number of threads per call for a model on a processor, including the calling thread; by default as many as it
        was compiled for. Kernels are not changed: to get the kernels that suit this number best, compile with
        ``threads=``.

    Returns
    -------
    Session, RangeSession, DecoderSession or GpuSession
        A :class:`GpuSession` if the model was compiled for a GPU, a :class:`RangeSession` if it was compiled for ranges
        of sizes, a :class:`DecoderSession` if :func:`roller.compile_decoder` compiled it.

    Raises
    ------
    ArtifactError
        If the folder is damaged, incomplete, in a newer format, or for a different kind of machine.
    LaunchError
        If TVM's runtime is not installed, or if ``threads`` is not a positive integer or is given for a GPU model.
    """
    where = path_of(folder, "folder", error=ArtifactError, what="the folder of a saved model")
    verify = validate_flag(verify, "verify", error=ArtifactError)
    if threads is not None:
        threads = validate_threads(threads, MODEL_BUNDLE.is_kind_of_folder(where))
    if MODEL_BUNDLE.is_kind_of_folder(where):
        from roller.models.session.gpu_session import load_bundle  # a processor's model does not need it

        return load_bundle(where, device)
    opened = Container(where, SAVED)
    if device is not None and not _is_this_machine(device):
        raise ArtifactError(f"{where}: device: expected none for a model of this processor. Leave it out.")
    start = time.perf_counter()
    with opened.fields():
        _check_machine(opened)
        session = _restore_session(opened, verify, threads)
    held: Any = getattr(session, "range_session", session)  # that of a decoder
    _LOG.info(
        "%s: loaded from %s in %.3f s: %s, %s, %.1f MB of constants, %.1f MB per call", session.name, where,
        time.perf_counter() - start, counted(len(opened.manifest["kernels"]), "kernel"),
        counted(held.cores, "thread"), held.constants.nbytes / 1e6, held.plan.arena_bytes / 1e6,
    )  # fmt: skip
    return session


def _is_this_machine(device: object) -> bool:
    from roller.targets import THIS_MACHINE, canonical_device_name  # most calls name no device

    return isinstance(device, str) and canonical_device_name(device) == THIS_MACHINE


def load_saved_ranges(folder: Path) -> tuple[RangeSession, Container]:
    """Load a saved model with dynamic sizes, and return its opened folder as well."""
    from roller.models.session.range_session import RangeSession

    opened = Container(folder, SAVED)
    with opened.fields():
        _check_machine(opened)
        session = _restore_session(opened, False, None)
        if not isinstance(session, RangeSession):
            raise ValueError("ranges")
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


def _restore_session(folder: Container, verify: bool, threads: int | None) -> Session | RangeSession | DecoderSession:
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
    kernels = {
        str(row["key"]): load_kernel(CpuKernelInterface.from_dict(row["code"]), folder.read(row["file"]), launch)
        for row in body["kernels"]
    }
    details = {str(row["key"]): row["artifact"]["file"] for row in body["kernels"] if "artifact" in row}
    cores = int(body["cores"]) if threads is None else threads
    artifacts = SavedArtifacts(folder, details)
    model_sha256 = None if body.get("model_sha256") is None else str(body["model_sha256"])
    if "ranges" in body:
        from roller.models.session.range_session import RangeSession
        from roller.models.session.save_ranges import RangeParts, plan_from_json

        if runner is None:
            raise ValueError("runner")
        ranges = plan_from_json(folder.json(body["plan"]["file"]), {key: k.code for key, k in kernels.items()})
        doubt = str(body["doubt"])
        parts = RangeParts(ranges, kernels, constants, cores, runner, doubt, artifacts, lambda: model_sha256)
        session = RangeSession.from_parts(parts)
        return session if body.get("decoder") is None else _restore_decoder(session, body["decoder"])
    plan = plan_from_dict(body["plan"], {}, str(folder.folder / SAVED.manifest))
    fixed = SessionParts(plan, kernels, constants, cores, runner, artifacts, lambda: model_sha256)
    return Session.from_parts(fixed)


def _restore_decoder(session: RangeSession, data: Any) -> DecoderSession:
    from roller.models.session.decoder_inputs import DecoderInputs
    from roller.models.session.decoder_session import DecoderSession

    found = DecoderInputs.from_dict(data)
    made = DecoderSession(session, found.caches, found.tokens_per_call, found.lengths)
    made.prepare()
    return made


def _parse_panel_key(key: Any, names: Any) -> PanelKey:
    return str(key), tuple(str(n) for n in names)
