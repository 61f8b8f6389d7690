"""The program of a model beside the kernels of the cache: a model that was partitioned once is not taken apart again.

A note is found by a digest of everything that decides the program: the model's bytes, the overrides, roller's own
sources and the packages that read models. It is kept only where it reads back equal, carries a checksum, and one that
is damaged is as if it were not there. Models with weights beside them have none: nobody would hash gigabytes to save
a second.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np

from roller.errors import RollerError
from roller.expr.serialize import expr_from_dict, expr_to_dict
from roller.model.plan import Plan
from roller.model.plan_data import plan_from_dict, plan_to_dict
from roller.model.steps import KernelSource, Program
from roller.runtime.cache_key import code_digest

#: Larger models, and programs with more constants, are read anew; so many programs are kept at most.
MOST_BYTES, MOST_NOTES = 1 << 26, 16
#: Bytes of the checksum, and of the length of what precedes the arrays.
_SUM, _LENGTH = 32, 8
_SUFFIX = ".program"


@dataclass(frozen=True)
class ProgramNote:
    """Where the program of one model with one set of overrides is kept.

    Parameters
    ----------
    folder
        The cache folder; ``None`` for nowhere.
    model
        As :func:`roller.onnx.reader.read` takes it.
    batch, shapes
        Overrides.
    """

    folder: Path | None
    model: Any
    batch: int | None = None
    shapes: Mapping[str, Sequence[int]] | None = None

    def load_or_make(self, make: Callable[[], Program]) -> Program:
        """Return the program, made and kept where it is not known."""
        path = self.path()
        known = None if path is None else _read(path)
        if known is not None:
            return known
        program = make()
        if path is not None:
            self.store(program, path)
        return program

    def store(self, program: Program, before: Path) -> bool:
        """Keep a program; say whether it was. ``before`` is :meth:`path` as it was before the model was read."""
        path = self.path()
        if path is None or path != before:  # the file was written meanwhile
            return False
        try:
            data = _bytes_of(program)
            if data is None or not _same(program, _program_of(data)):
                return False
            path.parent.mkdir(parents=True, exist_ok=True)
            _write(path, data)
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError, RollerError):
            return False
        return True

    def path(self) -> Path | None:
        """Return the file of the note, ``None`` where the model has none."""
        data = None if self.folder is None else _contents(self.model)
        # Tensors beside the model name their file's `location`: their bytes are not among these.
        if self.folder is None or data is None or b"location" in data:
            return None
        try:
            shapes = sorted((name, [repr(n) for n in shape]) for name, shape in (self.shapes or {}).items())
        except (TypeError, AttributeError):  # no shapes at all: the reader says so
            return None
        parts = [
            code_digest((".",)),
            repr(self.batch),
            shapes,
            *map(_version, ("onnx", "numpy", "ml_dtypes", "roller")),
        ]
        if isinstance(self.model, (str, Path)):
            parts.append(Path(self.model).name)  # a graph without a name takes that of its file
        digest = hashlib.sha256(json.dumps(parts).encode() + b"\0" + data).hexdigest()
        return self.folder / "notes" / f"{digest}{_SUFFIX}"


def _read(path: Path) -> Program | None:
    try:
        return _program_of(path.read_bytes())
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError, RollerError):
        return None


def _contents(model: Any) -> bytes | None:
    """Return the bytes of a model that may have a note."""
    if isinstance(model, (bytes, bytearray)):
        return bytes(model) if len(model) <= MOST_BYTES else None
    if not isinstance(model, (str, Path)):
        return None
    path = Path(model)
    try:
        plain = path.suffix != ".pb" and path.is_file() and path.stat().st_size <= MOST_BYTES
        return path.read_bytes() if plain else None
    except (OSError, ValueError):
        return None


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""


def _bytes_of(program: Program) -> bytes | None:
    """Return a program as bytes, ``None`` where its constants are too many."""
    if sum(a.nbytes for a in program.constants.values()) > MOST_BYTES:
        return None
    arrays = [np.ascontiguousarray(a) for a in program.constants.values()]
    head = {
        "plan": plan_to_dict(Plan(program, {}, 0)),
        "arrays": [[a.dtype.name, list(b.shape)] for a, b in zip(arrays, program.constants.values(), strict=True)],
        "kernels": [[k, expr_to_dict(s.expression), list(s.constants)] for k, s in program.kernels.items()],
    }
    text = json.dumps(head, separators=(",", ":")).encode()
    body = [len(text).to_bytes(_LENGTH, "little"), text]
    for array in arrays:
        body.append(array.tobytes())
    whole = b"".join(body)
    return hashlib.sha256(whole).digest() + whole


def _program_of(data: bytes) -> Program:
    """Return the program of a note; any of several errors where it is damaged."""
    whole = memoryview(data)[_SUM:]
    if hashlib.sha256(whole).digest() != data[:_SUM]:
        raise ValueError("checksum")
    start = _LENGTH + int.from_bytes(whole[:_LENGTH], "little")
    head = json.loads(bytes(whole[_LENGTH:start]))
    arrays = {}
    for name, (kind, shape) in zip(head["plan"]["constants"], head["arrays"], strict=True):
        dtype = _dtype(kind)
        count = int(np.prod(shape, dtype=np.int64))
        # Copied: aligned to its elements, and let go one by one as they are packed.
        arrays[name] = np.frombuffer(whole[start : start + count * dtype.itemsize], dtype).reshape(shape).copy()
        start += count * dtype.itemsize
    program = plan_from_dict(head["plan"], arrays, "note").program
    kernels = {k: KernelSource(expr_from_dict(e), tuple(c)) for k, e, c in head["kernels"]}
    return replace(program, kernels=kernels)


def _dtype(name: str) -> np.dtype[Any]:
    try:
        return np.dtype(name)
    except TypeError:
        import ml_dtypes

        found: np.dtype[Any] = np.dtype(getattr(ml_dtypes, name))
        return found


def _same(one: Program, other: Program) -> bool:
    """Whether two programs are equal, their constants bit by bit."""
    if one.constants.keys() != other.constants.keys():
        return False
    for name, array in one.constants.items():
        found = other.constants[name]
        if (array.dtype, array.shape) != (found.dtype, found.shape) or array.tobytes() != found.tobytes():
            return False
    # As text: 1 and 1.0 are equal, 0.0 and -0.0 are, and kernels of them differ.
    return repr(replace(one, constants={})) == repr(replace(other, constants={}))


def _write(path: Path, data: bytes) -> None:
    """Write a note whole or not at all, and let the oldest go."""
    fd, temporary = tempfile.mkstemp(dir=path.parent)
    try:
        with os.fdopen(fd, "wb") as file:
            file.write(data)
        os.replace(temporary, path)
    except OSError:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise
    notes = sorted(path.parent.glob(f"*{_SUFFIX}"), key=_age)
    for old in notes[:-MOST_NOTES]:
        with contextlib.suppress(OSError):
            old.unlink()


def _age(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0
