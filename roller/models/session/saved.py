"""Loading of saved models for a processor, in ``roller_runtime``, and for a GPU."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from roller.errors import ArtifactError
from roller.runtime.container_kinds import MODEL_BUNDLE
from roller_runtime.core.validation import validate_flag, validate_threads
from roller_runtime.core.validation import validate_path as path_of
from roller_runtime.session.cpu_session import Session
from roller_runtime.session.decoder_session import DecoderSession
from roller_runtime.session.load_model import open_saved_model
from roller_runtime.session.range_session import RangeSession
from roller_runtime.storage.verified_container import SAVED, Container

if TYPE_CHECKING:
    from roller.models.session.gpu_device import Device
    from roller.models.session.gpu_session import GpuSession


def load_model(
    folder: str | os.PathLike[str],
    *,
    verify: bool = False,
    device: str | Device | None = None,
    threads: int | None = None,
) -> Session | RangeSession | DecoderSession | GpuSession:
    """Load a saved model; nothing is compiled or packed, and weights are memory-mapped.

    Models for a processor need only the package ``roller_runtime``: see :func:`roller_runtime.load_model`.

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
        If TVM's runtime library is not found, or if ``threads`` is not a positive integer or is given for a GPU model.
    """
    where = path_of(folder, "folder", error=ArtifactError, what="the folder of a saved model")
    verify = validate_flag(verify, "verify", error=ArtifactError)
    on_gpu = MODEL_BUNDLE.is_kind_of_folder(where)
    if threads is not None:
        threads = validate_threads(threads, on_gpu)
    if on_gpu:
        from roller.models.session.gpu_session import load_bundle  # a processor's model does not need it

        return load_bundle(where, device)
    if device is not None and not _is_this_machine(device):
        Container(where, SAVED)  # a folder that is no saved model at all is the first thing to report
        raise ArtifactError(f"{where}: device: expected none for a model of this processor. Leave it out.")
    return open_saved_model(where, verify=verify, threads=threads, read=_read_artifact)[0]


def _is_this_machine(device: object) -> bool:
    from roller.targets import THIS_MACHINE, canonical_device_name  # most calls name no device

    return isinstance(device, str) and canonical_device_name(device) == THIS_MACHINE


def load_saved_ranges(folder: Path) -> tuple[RangeSession, Container]:
    """Load a saved model with dynamic sizes, and return its opened folder as well."""
    session, opened = open_saved_model(folder, read=_read_artifact)
    if not isinstance(session, RangeSession):
        kind = type(session).__name__
        raise ArtifactError(f"{folder}: expected a model with ranges of sizes, got a {kind}. Load it with load_model.")
    return session, opened


def _read_artifact(data: Any, where: str) -> Any:
    from roller.artifact import KernelArtifact  # calls need no artifacts

    return KernelArtifact.from_dict(data, where)
