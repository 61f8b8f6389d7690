"""Size limit of the cache: the least recently used kernels are removed first.

The modification time of an artifact file is the time of its last read, so that reading an artifact does not write to
the index. Rows are removed before their files; if a process is killed in between, a file without a row remains
until the next removal.
"""

from __future__ import annotations

import contextlib
import math
import os
import re
from collections.abc import Iterable
from pathlib import Path

from roller.errors import ArtifactError, RollerError, shown
from roller.runtime.cache_database import Database
from roller.runtime.content_addressed_files import ObjectFiles
from roller_runtime.core.files import make_private_folder, write_atomically

#: Environment variable for the size limit, file with the limit in a cache folder, and default limit in bytes.
VARIABLE, _FILE = "ROLLER_CACHE_SIZE", "limit"
DEFAULT_BYTES = 4 << 30
#: Fraction of the limit that a trim keeps, so that one trim makes room for many kernels.
_LEFT = 0.9
#: Fraction of the limit that a process may store before it measures all files again.
_UNSEEN = 1 / 64
_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([KMGT]?)(?:I?B)?", re.IGNORECASE)
#: Words for no limit.
_UNLIMITED = ("none", "unlimited")
#: Number of bytes that this process has stored since the last measurement, by folder.
_stored: dict[Path, float] = {}


def is_trim_due(folder: Path, files: ObjectFiles, limit_bytes: float, stored_bytes: int) -> bool:
    """Return whether the cache may exceed its limit after this process stored more bytes."""
    # Measuring thousands of files takes some ten milliseconds, so it is done the first time and after enough stores.
    unseen = _stored.get(folder, math.inf) + stored_bytes
    _stored[folder] = unseen
    if math.isinf(limit_bytes) or unseen < _UNSEEN * limit_bytes:
        return False
    _stored[folder] = 0.0
    return sum(size for _, size in files.digests_and_sizes()) > limit_bytes


def trim(database: Database, files: ObjectFiles, limit_bytes: float, keep: Iterable[str] = ()) -> tuple[int, int]:
    """Remove the least recently used files and rows until the rest fits; return how many files and bytes are gone."""
    held = [(files.used_at(digest) or 0.0, digest, size) for digest, size in files.digests_and_sizes()]
    total = sum(size for _, _, size in held)
    if total <= limit_bytes:
        return 0, 0
    kept, victims, freed = set(keep), list[str](), 0
    for _, digest, size in sorted(held):
        if total - freed <= _LEFT * limit_bytes:
            break
        if digest not in kept:
            victims.append(digest)
            freed += size
    database.forget(victims)
    for digest in victims:
        files.remove(digest)
    return len(victims), freed


def read_limit_and_origin(folder: Path) -> tuple[float, str]:
    """Return a cache folder's size limit in bytes (infinite if there is none), and the limit's origin."""
    # In this order: ROLLER_CACHE_SIZE, the limit set by `roller cache limit`, 4 GiB.
    text = os.environ.get(VARIABLE, "").strip()
    if text:
        return parse_size(text, VARIABLE), VARIABLE
    with contextlib.suppress(OSError, UnicodeDecodeError, RollerError):
        return parse_size((folder / _FILE).read_text(encoding="ascii").strip(), _FILE), "roller cache limit"
    return float(DEFAULT_BYTES), "the default"


def set_limit(folder: Path, limit_bytes: float) -> None:
    """Store a limit in a cache folder."""
    try:
        make_private_folder(folder)
        with write_atomically(folder / _FILE) as file:
            file.write(("none" if math.isinf(limit_bytes) else str(int(limit_bytes))).encode())
    except OSError as err:
        raise ArtifactError(f"{folder}: cannot write the limit ({err.strerror}). Set {VARIABLE} instead.") from err


def parse_size(text: str, where: str) -> float:
    """Parse a size in bytes; infinite for ``none``.

    Examples
    --------
    >>> parse_size("500 MiB", "limit"), parse_size("2G", "limit"), parse_size("none", "limit")
    (524288000.0, 2147483648.0, inf)
    """
    if text.lower() in _UNLIMITED:
        return math.inf
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise RollerError(f"{where}: expected a size like 500M or 4GiB, or none, got {shown(text)}.")
    return float(match[1]) * _UNITS[match[2].upper()]
