"""Caches the programs of models, so that each model is partitioned only once.

A cached program is a file, called a note. Its name is a digest of all inputs to the program: the model's bytes,
overrides, Roller's sources and package versions. External and large weights are not hashed; they are identified by
their files (``cached_weight_files.py``).
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np

from roller.core.trusted_library_cache import check_folder_trusted, make_trusted_folder
from roller.errors import RollerError
from roller.expr.serialize import expr_from_dict, expr_to_dict
from roller.models.onnx.mapped_weights import read_message_without_weights
from roller.models.onnx.weight_file_identities import (
    external_file_names,
    file_identity,
    is_settled,
    map_array,
    resolve_path_below,
    weight_file_and_offset,
)
from roller.runtime.cache_key import ALL_CODE, source_code_digest
from roller_runtime.core.display import exact_repr
from roller_runtime.core.files import read_file, write_atomically
from roller_runtime.plan.execution_plan import Plan
from roller_runtime.plan.plan_json import plan_from_dict, plan_to_dict
from roller_runtime.plan.program_steps import KernelSource, Program

#: Maximum size, in bytes, of a cached model and of the constants in a note; maximum number of notes kept.
MOST_BYTES, MOST_NOTES = 1 << 26, 16
#: Exceptions that reading a damaged note or writing a note can raise.
_DAMAGES = (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError, RollerError)
#: Number of bytes in the checksum, and in the length of the header.
_SUM, _LENGTH = 32, 8
_SUFFIX = ".program"


@dataclass(frozen=True)
class CachedProgramFile:
    """The cached program of one model with one set of overrides.

    Parameters
    ----------
    folder
        The cache folder; ``None`` disables the note.
    base_dir
        Folder of external weights; by default the folder of the model.
    """

    folder: Path | None
    model: Any
    batch: int | None = None
    shapes: Mapping[str, Sequence[int]] | None = None
    base_dir: str | Path | None = None

    def load_or_make_and_cache(self, make: Callable[[], Program]) -> Program:
        """Return the cached program, or create and cache it."""
        began, path = time.time(), self.path()
        known = None if path is None else self._read(path)
        if known is not None:
            return known
        program = make()
        if path is not None:
            self.store(program, path, began)
        return program

    def store(self, program: Program, before: Path, began_s: float) -> bool:
        """Cache a program; return whether that was possible."""
        path = self.path()
        if path is None or path != before:  # the model's file has changed
            return False
        try:
            files = self.files_not_in_digest(began_s)
            data = None if files is None else _serialise_program(program, self._external_folder, files)
            if data is None or not _are_equal_programs(
                program, _parse_program(data, self._external_folder), self._external_folder
            ):
                return False
            make_trusted_folder(path.parent)
            _write_note_and_prune(path, data)
        except _DAMAGES:
            return False
        return True

    def _read(self, path: Path) -> Program | None:
        try:
            check_folder_trusted(path.parent.parent)
            check_folder_trusted(path)
            return _parse_program(read_file(path), self._external_folder)
        except _DAMAGES:
            return None

    @property
    def _external_folder(self) -> Path | None:
        """The folder of external weights; ``None`` if it is unknown."""
        if self.base_dir is not None:
            return Path(self.base_dir)
        return Path(self.model).parent if isinstance(self.model, (str, Path)) else None

    def files_not_in_digest(self, began_s: float) -> dict[str, list[int]] | None:
        """Return the identities of the files whose weights the digest excludes; ``None`` if one is not settled."""
        found, folder = _model_bytes_without_weights(self.model), self._external_folder
        if found is None:
            return None
        data, places = found
        names = {Path(self.model).name} if places else set[str]()
        if b"location" in data:  # the key of external tensors' files
            import onnx

            names |= external_file_names(onnx.ModelProto.FromString(data))
        files = {}
        for name in names:
            path = resolve_path_below(folder, name) if folder is not None else None
            known = None if path is None else file_identity(path)
            if path is None or known is None or not is_settled(known, began_s):
                return None
            files[os.path.relpath(path, os.path.realpath(folder or "."))] = known
        return files

    def path(self) -> Path | None:
        """Return the path of the note; ``None`` for a model that cannot have one."""
        found = None if self.folder is None else _model_bytes_without_weights(self.model)
        if self.folder is None or found is None:
            return None
        data, places = found
        if places and self._external_folder != Path(self.model).parent:  # a note supports one folder
            return None
        try:
            shapes = sorted((name, [repr(n) for n in shape]) for name, shape in (self.shapes or {}).items())
        except (TypeError, AttributeError):  # malformed shapes: the reader raises the error
            return None
        parts = [
            source_code_digest(ALL_CODE),
            repr(self.batch),
            shapes,
            places,
            *map(_package_version, ("onnx", "numpy", "ml_dtypes", "roller")),
        ]
        if isinstance(self.model, (str, Path)):
            parts.append(Path(self.model).name)  # a graph without a name takes its file's name
        digest = hashlib.sha256(json.dumps(parts).encode() + b"\0" + data).hexdigest()
        return self.folder / "notes" / f"{digest}{_SUFFIX}"


def _model_bytes_without_weights(model: Any) -> tuple[bytes, str] | None:
    """Return a model's bytes without large weights, and their locations; ``None`` if the model cannot have a note."""
    if isinstance(model, (bytes, bytearray)):
        return (bytes(model), "") if len(model) <= MOST_BYTES else None
    if not isinstance(model, (str, Path)):
        return None
    path = Path(model)
    try:
        if path.suffix == ".pb" or not path.is_file():
            return None
        if path.stat().st_size <= MOST_BYTES:
            return read_file(path), ""
        slim = read_message_without_weights(path)
    except (OSError, ValueError):
        return None
    if slim is None or len(slim[0]) > MOST_BYTES:
        return None
    return slim[0], json.dumps(sorted(slim[1].places.items()))


def _package_version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""


def _serialise_program(program: Program, folder: Path | None, files: Mapping[str, list[int]]) -> bytes | None:
    """Return a program as bytes; ``None`` if the constants outside ``files`` are too large."""
    rows: list[list[Any]] = []
    inside_note = list[np.ndarray]()
    for array in program.constants.values():
        place = weight_file_and_offset(array, folder) if folder is not None else None
        rows.append([array.dtype.name, list(array.shape)])
        if place is not None and place[0] in files:
            rows[-1] += place
        else:
            inside_note.append(array)
    if sum(a.nbytes for a in inside_note) > MOST_BYTES:
        return None
    head = {
        "plan": plan_to_dict(Plan(program, {}, 0)),
        "arrays": rows,
        "files": files,
        "kernels": [[k, expr_to_dict(s.expression), list(s.constants)] for k, s in program.kernels.items()],
    }
    text = json.dumps(head, separators=(",", ":")).encode()
    whole = b"".join([len(text).to_bytes(_LENGTH, "little"), text, *(a.tobytes() for a in inside_note)])
    return hashlib.sha256(whole).digest() + whole


def _parse_program(data: bytes, folder: Path | None) -> Program:
    """Return the program in a note; raise one of ``_DAMAGES`` if it is damaged or external files have changed."""
    whole = memoryview(data)[_SUM:]
    if hashlib.sha256(whole).digest() != data[:_SUM]:
        raise ValueError("checksum")
    start = _LENGTH + int.from_bytes(whole[:_LENGTH], "little")
    head = json.loads(bytes(whole[_LENGTH:start]))
    arrays = {}
    for name, (kind, shape, *place) in zip(head["plan"]["constants"], head["arrays"], strict=True):
        dtype = _numpy_dtype(kind)
        if place and folder is not None:
            location, offset = place
            arrays[name] = map_array(folder, location, offset, dtype, tuple(shape))
            continue
        count = int(np.prod(shape, dtype=np.int64))
        # Arrays are copied for alignment, and so that each is released once it is packed.
        arrays[name] = np.frombuffer(whole[start : start + count * dtype.itemsize], dtype).reshape(shape).copy()
        start += count * dtype.itemsize
    for name, known in head["files"].items():  # checked after opening, so that the opened files are verified
        path = resolve_path_below(folder, name) if folder is not None else None
        if path is None or file_identity(path) != known:
            raise ValueError(name)
    program = plan_from_dict(head["plan"], arrays, "note").program
    kernels = {k: KernelSource(expr_from_dict(e), tuple(c)) for k, e, c in head["kernels"]}
    return replace(program, kernels=kernels)


def _numpy_dtype(name: str) -> np.dtype[Any]:
    try:
        return np.dtype(name)
    except TypeError:
        import ml_dtypes

        found: np.dtype[Any] = np.dtype(getattr(ml_dtypes, name))
        return found


def _are_equal_programs(one: Program, other: Program, folder: Path | None) -> bool:
    """Return whether two programs are equal; constants must be bitwise equal or at the same location in a file."""
    if one.constants.keys() != other.constants.keys():
        return False
    for name, array in one.constants.items():
        found = other.constants[name]
        if (array.dtype, array.shape) != (found.dtype, found.shape):
            return False
        place = weight_file_and_offset(found, folder) if folder is not None else None
        if place is None and array.tobytes() != found.tobytes():
            return False
        if place is not None and folder is not None and place != weight_file_and_offset(array, folder):
            return False
    # Programs are compared as text, because kernels differ for the equal numbers 1 and 1.0, or 0.0 and -0.0.
    return exact_repr(replace(one, constants={})) == exact_repr(replace(other, constants={}))


def _write_note_and_prune(path: Path, data: bytes) -> None:
    """Write a note atomically and remove the oldest notes."""
    with write_atomically(path) as file:
        file.write(data)
    notes = sorted(path.parent.glob(f"*{_SUFFIX}"), key=_modification_time)
    for old in notes[:-MOST_NOTES]:
        with contextlib.suppress(OSError):
            old.unlink()


def _modification_time(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0
