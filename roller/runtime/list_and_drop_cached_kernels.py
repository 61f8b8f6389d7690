"""Lists the kernels in the cache, drops a kernel, and removes kernels that turned out to be wrong."""

from __future__ import annotations

import contextlib
import json
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from roller.artifact import KernelArtifact
from roller.errors import ArtifactError, NoCandidateError, shown
from roller.runtime.cache_database import Row
from roller.runtime.cache_entry import parse_artifact
from roller.runtime.cache_key import CacheKey
from roller.runtime.content_addressed_files import ObjectFiles

if TYPE_CHECKING:
    from roller.runtime.cache import KernelCache

#: Number of key characters printed to identify a kernel.
KEY_CHARACTERS = 12


@dataclass(frozen=True)
class CachedKernelInfo:
    """A kernel in the cache.

    Parameters
    ----------
    key
        Digest of the kernel's key.
    operator, arguments, device
        Name of the expression, shapes and dtypes of its inputs, and target device.
    status
        ``measured``, ``checked`` (correct, not timed), ``doubtful`` (timed on a busy machine, measured again on the
        next request), ``predicted`` (for an absent device), or ``damaged``.
    measured_s
        Measured time of the chosen candidate, in seconds; ``None`` if it was not timed.
    stored_at, used_at
        Times of storage and of last use, in seconds since the epoch; ``used_at`` is ``None`` if the file is missing.
    size_bytes
        Size of the artifact file.
    """

    key: str
    operator: str
    arguments: str
    device: str
    status: str
    measured_s: float | None
    stored_at: float
    used_at: float | None
    size_bytes: int

    def to_dict(self) -> dict[str, Any]:
        """Return JSON-ready data."""
        return dict(vars(self))


def describe_row(row: Row, files: ObjectFiles) -> CachedKernelInfo:
    """Describe the kernel of a row; the status of a damaged row is ``damaged``."""
    status, measured_s, arguments = "damaged", None, ""
    with contextlib.suppress(ValueError, KeyError, TypeError, IndexError):
        status, measured_s = _status_and_seconds(row)
        arguments = _inputs_text(json.loads(row.parts))
    used_at = files.used_at(row.artifact)
    return CachedKernelInfo(
        row.key, row.expression, arguments, row.device, status, measured_s, row.created_at, used_at, row.artifact_bytes
    )


def _status_and_seconds(row: Row) -> tuple[str, float | None]:
    """Return the status and the measured time, in seconds, of a row's kernel, that is, of its fastest candidate."""
    times: dict[str, list[float]] = {"measured": [], "doubtful": []}
    checked = False
    for _, _, _, status, measured_s, *_ in json.loads(row.candidates)["candidates"]:
        checked = checked or status == "checked"
        if status in times and measured_s is not None:
            times[status].append(measured_s)
    if not row.measured:
        return ("doubtful", min(times["doubtful"])) if times["doubtful"] else ("predicted", None)
    return ("checked", None) if checked else ("measured", min(times["measured"], default=None))


def _inputs_text(parts: dict[str, Any]) -> str:
    """Format the shapes and dtypes of the inputs.

    Examples
    --------
    >>> _inputs_text({"arguments": [[[[4, 8], "float32"], [[8], "float32"]], []]})
    '4x8, 8 float32'
    """
    inputs = parts["arguments"][0]
    dtypes = list(dict.fromkeys(d for _, d in inputs))
    shapes = [("x".join(map(str, s)) or "scalar", d) for s, d in inputs]
    if len(dtypes) == 1:
        return f"{', '.join(s for s, _ in shapes)} {dtypes[0]}"
    return ", ".join(f"{s} {d}" for s, d in shapes)


def find_row_by_key_prefix(rows: Sequence[Row], name: str) -> Row:
    """Return the only row whose key begins with ``name``; raise an error if there is no such row or several."""
    found = [r for r in rows if name and r.key.startswith(name.lower())]
    if len(found) == 1:
        return found[0]
    remedy = "`roller cache list` shows the keys."
    if not found:
        raise ArtifactError(f"cache: expected the beginning of a kernel's key, got {shown(name)}. {remedy}")
    several = ", ".join(r.key[:KEY_CHARACTERS] for r in found[:3])
    raise ArtifactError(f"cache: expected one kernel, {len(found)} begin with '{name}' ({several}). {remedy}")


def list_cached_kernels(cache: KernelCache) -> list[CachedKernelInfo]:
    """Return the kernels of a cache, most recently used first."""
    try:
        found = [describe_row(r, cache.files) for r in cache.rows()]
    except (OSError, sqlite3.Error) as err:
        raise cache.unusable_folder_error(err) from err
    return sorted(found, key=lambda h: (-(h.used_at or 0.0), h.key))


def drop_kernel(cache: KernelCache, name: str) -> CachedKernelInfo:
    """Remove the only kernel whose key begins with ``name``; return its description."""
    try:
        row = find_row_by_key_prefix(cache.rows(), name)
        found = describe_row(row, cache.files)
        _remove(cache, row)
    except (OSError, sqlite3.Error) as err:
        raise cache.unusable_folder_error(err) from err
    return found


def remove_if_wrong(cache: KernelCache, key: CacheKey, wrong: Callable[[KernelArtifact], bool]) -> bool:
    """Remove the kernel for a key if ``wrong`` is true for it; return whether it was removed."""
    # A kernel that another process has stored instead stays. If removal fails, the next process that finds the kernel
    # wrong tries again.
    try:
        row = cache.database.row(key.digest)
        if row is None or not wrong(parse_artifact(cache.files.read(row.artifact), str(cache.folder))):
            return False
        return _remove(cache, row)
    except (OSError, ValueError, sqlite3.Error):
        return False


@contextlib.contextmanager
def remove_wrong_kernel_on_failure(cache: KernelCache, key: CacheKey) -> Iterator[None]:
    """Run a block that checks a key's kernels; if all fail and the cached kernel is among the wrong ones, remove it."""
    try:
        yield
    except NoCandidateError as err:
        wrong = err.wrong
        remove_if_wrong(cache, key, lambda kernel: kernel.program.digest in wrong)
        raise


def _remove(cache: KernelCache, row: Row) -> bool:
    """Remove a row if it is unchanged, and its file unless another row uses it; return whether the row was removed."""
    with cache.lock_for_writing(alone=True):
        removed = cache.database.remove(row.key, row.checksum)
        if row.artifact not in {r.artifact for r in cache.rows()}:
            cache.files.remove(row.artifact)
    return removed
