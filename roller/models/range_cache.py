"""The cache of models with dynamic sizes: saved sessions, each with the data to prove its kernels at further sizes."""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import pickle
import shutil
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from roller.compiler.dynamic.range_prover import RangeProver
from roller.core.trusted_library_cache import check_folder_trusted, make_trusted_folder
from roller.errors import RollerError
from roller.hardware import DeviceSpec
from roller.models.onnx.program_cache import CachedProgramFile
from roller.models.session.saved import load_saved_ranges
from roller.runtime.cache import KernelCache
from roller.runtime.small_result_cache import RANGES_FOLDER
from roller_runtime.core.display import exact_repr
from roller_runtime.plan.proven_kernels import ProvenKernels
from roller_runtime.session.range_plan import Sizes
from roller_runtime.session.range_session import RangeSession
from roller_runtime.session.save_ranges import save_ranges

_LOG = logging.getLogger("roller")
#: Maximum number of cached models, and maximum size, in bytes, of the weights of one.
MOST_ENTRIES, MOST_BYTES = 8, 1 << 31
#: Exceptions that reading a damaged entry, or writing one, can raise.
_DAMAGES = (OSError, ValueError, LookupError, TypeError, AttributeError, pickle.PickleError, EOFError, RollerError)


@dataclass(frozen=True)
class RangeCache:
    """The cached session of one model with one set of ranges and options.

    Parameters
    ----------
    model, base_dir
        The model, and the folder of its external weights.
    shapes
        Shapes of the inputs, with ranges.
    spec
        The processor, with as many cores as a call uses.
    options
        All options that determine the kernels.
    """

    model: Any
    shapes: Mapping[str, Any]
    base_dir: str | Path | None
    spec: DeviceSpec
    options: tuple[Any, ...]

    def load(self) -> RangeSession | None:
        """Return the cached session; ``None`` if there is none, or if it is damaged or may be foreign."""
        path = self._path
        if path is None or not path.is_dir():
            return None
        try:
            for folder in (path.parent.parent, path.parent, path):
                check_folder_trusted(folder)
            session, opened = load_saved_ranges(path)
            prover = opened.manifest["prover"]
            data = None if prover is None else opened.read(prover["file"])
        except _DAMAGES:
            return None
        with contextlib.suppress(OSError):
            os.utime(path)  # the entries that were used least recently are removed first
        if data is None:
            return session
        libraries = {key: kernel.library for key, kernel in session.parts.kernels.items()}
        chooser = CachedChooser(
            session.plan.chooser.prove_all(None), lambda: RangeProver.from_bytes(data, self.spec, libraries)
        )
        return RangeSession(replace(session.parts, plan=replace(session.plan, chooser=chooser)))

    def store(self, session: RangeSession, results: Mapping[str, ProvenKernels] | None = None) -> bool:
        """Cache a session that was compiled in this process; return whether that was possible.

        With the results of proofs for all sizes, the cached session needs no further ones.
        """
        path, prover = self._path, session.plan.chooser
        if path is None or not isinstance(prover, RangeProver) or session.constants.nbytes > MOST_BYTES:
            return False
        if path != replace(self)._path:  # the model's file has changed
            return False
        try:
            make_trusted_folder(path.parent.parent)
            make_trusted_folder(path.parent)
            shutil.rmtree(path, ignore_errors=True)  # a damaged entry
            known, data = (prover.known_results(), prover.to_bytes()) if results is None else (results, None)
            save_ranges(session.parts, path, known, sources=False, prover=data)
            path.chmod(0o700)
            _prune(path.parent)
        except _DAMAGES as err:
            _LOG.debug("%s: not cached, so that another process compiles it again: %s", session.name, err)
            return False
        return True

    @cached_property
    def _path(self) -> Path | None:
        note = CachedProgramFile(KernelCache().folder, self.model, None, self.shapes, self.base_dir)
        path, files = note.path(), note.files_not_in_digest(time.time())
        if path is None or files is None:
            return None
        parts = [path.stem, sorted(files.items()), exact_repr(self.spec), exact_repr(self.options)]
        return path.parent.parent / RANGES_FOLDER / hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def _prune(folder: Path) -> None:
    """Remove the entries that were used least recently, and leftovers of killed writers."""

    def used_s(path: Path) -> float:
        with contextlib.suppress(OSError):
            return path.stat().st_mtime
        return 0.0

    entries = sorted(folder.iterdir(), key=used_s)
    for old in entries[:-MOST_ENTRIES]:
        shutil.rmtree(old, ignore_errors=True)


class CachedChooser:
    """Chooses kernels by earlier proofs, and proves them at further sizes; see ``range_plan.KernelChooser``.

    Parameters
    ----------
    proven
        Results of earlier proofs by key.
    load
        Function that returns the prover; it is called when a proof is first needed, because it imports the compiler.
    """

    def __init__(self, proven: Mapping[str, ProvenKernels], load: Callable[[], RangeProver]) -> None:
        self._proven, self._load = proven, load

    @cached_property
    def _prover(self) -> RangeProver:
        return self._load()

    def choose(self, key: str, sizes: Sizes) -> int:
        """Return the position of the fastest kernel that is proven correct at the sizes."""
        found = self._proven[key].kernel_proven_at(sizes)
        return self._prover.choose(key, sizes) if found is None else found

    def predicted(self, key: str, number: int, sizes: Sizes) -> float:
        """Return the predicted time of a kernel, in seconds."""
        return self._prover.predicted(key, number, sizes)

    def known_results(self) -> Mapping[str, ProvenKernels]:
        """Return the results of earlier proofs by key."""
        return self._proven

    def prove_all(self, proofs: int | None) -> Mapping[str, ProvenKernels]:
        """Prove kernels at all sizes, or at some, and return the results by key."""
        return self._prover.prove_all(proofs)
