"""The SHA-256 of the model that a session was compiled from, for saved models."""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

#: Function that returns a digest, or ``None`` if it is unknown.
ModelDigest = Callable[[], "str | None"]
#: Maximum size, in bytes, of a message that is serialized for its digest.
_MOST_BYTES = 1 << 26
_PART_BYTES = 1 << 20


def unknown_digest() -> None:
    """Return ``None``: the model is unknown."""


def digest_of_model(model: Any) -> ModelDigest:
    """Return a function that returns the SHA-256 of a model's file or bytes, without external weights.

    A file is read when the function is called; its digest is ``None`` if the file has changed since this call. Large
    messages have no digest.
    """
    if isinstance(model, (str, os.PathLike)):
        path = Path(model)
        identity = _identity(path)
        return lambda: _digest_of_file(path) if identity is not None and identity == _identity(path) else None
    if isinstance(model, (bytes, bytearray)):
        found: str | None = hashlib.sha256(model).hexdigest()
    elif hasattr(model, "SerializeToString") and model.ByteSize() <= _MOST_BYTES:
        found = hashlib.sha256(model.SerializeToString(deterministic=True)).hexdigest()
    else:
        found = None
    return lambda: found


def _identity(path: Path) -> tuple[int, ...] | None:
    try:
        found = path.stat()
    except (OSError, ValueError):  # ValueError: a name with a null byte
        return None
    return (found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns) if stat.S_ISREG(found.st_mode) else None


def _digest_of_file(path: Path) -> str | None:
    try:
        found = hashlib.sha256()
        with path.open("rb") as file:
            while part := file.read(_PART_BYTES):
                found.update(part)
        return found.hexdigest()
    except OSError:
        return None
