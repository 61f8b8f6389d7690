"""Export and import of a cache as one tar file: artifacts and a JSON manifest with checksums.

Kernels are code that the importing machine runs, so import only trusted files. A file is verified completely before any
part of it is stored.
"""

from __future__ import annotations

import io
import json
import lzma
import math
import re
import sqlite3
import tarfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any, TypeVar, get_type_hints

from roller.errors import MALFORMED, ArtifactError, shown
from roller.runtime.cache import KernelCache
from roller.runtime.cache_database import Row
from roller.runtime.cache_entry import Measurement, parse_artifact, parse_candidates
from roller.runtime.cache_key import CacheKey
from roller_runtime.core.files import open_regular_file, write_atomically
from roller_runtime.storage.verified_container import checksum, content_sha256

FORMAT_VERSION = 1
_MANIFEST = "manifest.json"
_MEMBER = re.compile(r"artifacts/([0-9a-f]{64})\.json")
#: Largest manifest in bytes; one has some kilobytes per kernel.
_MANIFEST_LIMIT = 1 << 28
#: Largest tar header, in bytes: that of a long name.
_HEADER_LIMIT = 1 << 16
#: Types accepted for each annotated type of a field of rows and measurements.
_TYPES: dict[Any, Any] = {str: str, int: int, float: (int, float)}
Made = TypeVar("Made")


def export_cache(cache: KernelCache, path: Path) -> dict[str, int]:
    """Write all intact kernels and measurements to a tar file, atomically; compress it if the name ends in ``gz``."""
    try:
        rows = [r for r in cache.rows() if r.sum() == r.checksum and cache.files.whole(r.artifact)]
    except OSError as err:
        raise cache.unusable_folder_error(err) from err
    skipped = len(cache.rows()) - len(rows)
    measurements = cache.measurements()
    body = {
        "format_version": FORMAT_VERSION,
        "entries": [asdict(r) for r in rows],
        "measurements": [asdict(m) for m in measurements],
    }
    manifest = json.dumps({**body, "checksum": checksum(body)}).encode()
    digests = sorted({r.artifact for r in rows})
    try:
        with (
            write_atomically(path, durable=True) as file,
            tarfile.open(fileobj=file, mode="w:gz" if path.name.endswith("gz") else "w") as tar,
        ):
            _add_member(tar, _MANIFEST, manifest)
            for digest in digests:
                _add_member(tar, f"artifacts/{digest}.json", cache.files.read(digest))
    except (OSError, ValueError) as err:
        raise ArtifactError(f"{path}: cannot export the cache ({err}). Choose a writable path and try again.") from err
    return {"entries": len(rows), "artifacts": len(digests), "measurements": len(measurements), "skipped": skipped,
            "bytes": path.stat().st_size}  # fmt: skip


def import_cache(cache: KernelCache, path: Path) -> dict[str, int]:
    """Add the kernels and measurements from an exported file; measured choices are not replaced by predicted ones."""
    where = str(path)
    try:
        rows, measurements = _read_and_verify(path)
        with cache.lock_for_writing():
            for name, data in _read_artifacts(path, rows):
                if cache.files.write(data) != name:
                    raise _import_error(where, f"{name} changed while it was read")
            written = cache.put(rows, measurements)
    except ArtifactError:
        raise
    except (OSError, ValueError, EOFError, MemoryError, tarfile.TarError, zlib.error, lzma.LZMAError, sqlite3.Error,
            *MALFORMED) as err:  # fmt: skip
        why = (str(err).splitlines() or [type(err).__name__])[0]  # tarfile lists one error per compression
        raise ArtifactError(f"{where}: cannot import ({why}). Check the file and that the cache is writable.") from err
    return {"entries": len(rows), "written": written, "measurements": len(measurements)}


def _read_and_verify(path: Path) -> tuple[list[Row], list[Measurement]]:
    """Read and verify the whole file; return its rows and measurements."""
    where = str(path)
    rows, measurements = _read_manifest(path)
    missing = {r.artifact: r for r in rows}
    for name, data in _read_artifacts(path, rows):
        row = missing.pop(name, None)
        if row is None:
            raise _import_error(where, f"artifact {name[:12]} is not in the manifest, or twice in the file")
        if content_sha256(data) != name or len(data) != row.artifact_bytes:
            raise _import_error(where, f"checksum of artifact {name[:12]} does not match")
        expression = parse_artifact(data, where).expression
        for r in (r for r in rows if r.artifact == name):
            if not CacheKey(r.parts).fits(expression):
                raise _import_error(where, f"artifact {name[:12]} computes another expression than its key says")
    if missing:
        raise _import_error(where, f"{len(missing)} artifacts of the manifest are missing")
    return rows, measurements


def _read_manifest(path: Path) -> tuple[list[Row], list[Measurement]]:
    where = str(path)
    for name, member, tar in _read_members(path):
        if name != _MANIFEST or member.size > _MANIFEST_LIMIT:
            raise _import_error(where, f"expected {_MANIFEST} first, got '{name}'")
        try:
            data = json.loads(_read_member(tar, member))
            version = data["format_version"]
            if type(version) is not int or version < 1:
                raise _import_error(where, f"its format is {shown(version)}")
            if version > FORMAT_VERSION:
                raise ArtifactError(
                    f"{where}: expected format {FORMAT_VERSION} or older, got {shown(version)}. Upgrade roller to "
                    "import it."
                )
            if data.pop("checksum") != checksum(data):
                raise _import_error(where, "checksum of the manifest does not match")
            names = {f.name for f in fields(Row)}
            rows = [_parse_row(Row, {k: v for k, v in r.items() if k in names}) for r in data["entries"]]
            measurements = [
                _parse_row(Measurement, {**m, "detail": tuple((str(k), v) for k, v in m["detail"])})
                for m in data["measurements"]
            ]
            for row in rows:
                if row.sum() != row.checksum or CacheKey(row.parts).digest != row.key:
                    raise _import_error(where, f"checksum of entry {row.key[:12]} does not match")
                parse_candidates(row.candidates, where)
        except ArtifactError:
            raise
        except (ValueError, *MALFORMED) as err:
            raise _import_error(where, f"the manifest is malformed ({_first_line(err)})") from err
        return [replace(r, measured=int(bool(r.measured))) for r in rows], measurements
    raise _import_error(where, "it is empty")


def _parse_row(kind: type[Made], row: Mapping[str, Any]) -> Made:
    """Build a dataclass from a manifest row after checking the types of its fields."""
    hints = get_type_hints(kind)
    for name, value in row.items():
        wanted = _TYPES.get(hints.get(name))
        if wanted is not None and not isinstance(value, wanted):
            raise TypeError(f"{name}: {shown(value)}")
        if isinstance(value, float) and not math.isfinite(value):
            raise ValueError(f"{name}: {value}")
    return kind(**row)


def _first_line(err: BaseException) -> str:
    return (repr(err).splitlines() or [""])[0]


def _read_artifacts(path: Path, rows: Sequence[Row]) -> Iterator[tuple[str, bytes]]:
    """Yield each artifact's digest and bytes; raise an error for any other member except the manifest."""
    sizes = {r.artifact: r.artifact_bytes for r in rows}
    for name, member, tar in _read_members(path):
        match = _MEMBER.fullmatch(name)
        if match:
            if member.size != sizes.get(match[1], member.size):
                raise _import_error(str(path), f"artifact {match[1][:12]} is not as large as the manifest says")
            if match[1] not in sizes:
                raise _import_error(str(path), f"artifact {match[1][:12]} is not in the manifest")
            yield match[1], _read_member(tar, member)
        elif name != _MANIFEST or member.offset:
            raise _import_error(str(path), f"member '{name}' is neither the manifest nor artifacts/CHECKSUM.json")


def _read_members(path: Path) -> Iterator[tuple[str, tarfile.TarInfo, tarfile.TarFile]]:
    with open_regular_file(path) as file, tarfile.open(fileobj=file, mode="r:*", tarinfo=_SizeCheckedMember) as tar:
        for member in tar:
            if not member.isreg():
                raise _import_error(str(path), f"member '{member.name}' is no regular file")
            yield member.name, member, tar


class _SizeCheckedMember(tarfile.TarInfo):
    """A tar member whose size is checked first, because Python reads long-name headers whole, whatever their size."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> _SizeCheckedMember:
        """Return the member described by a header."""
        found = super().frombuf(buf, encoding, errors)
        if found.type not in (tarfile.REGTYPE, tarfile.AREGTYPE) and found.size > _HEADER_LIMIT:
            raise ValueError(f"a header of {found.size} bytes")
        return found


def _read_member(tar: tarfile.TarFile, member: tarfile.TarInfo) -> bytes:
    file = tar.extractfile(member)
    return file.read() if file is not None else b""


def _add_member(tar: tarfile.TarFile, name: str, data: bytes) -> None:
    member = tarfile.TarInfo(name)
    member.size = len(data)
    tar.addfile(member, io.BytesIO(data))


def _import_error(where: str, what: str) -> ArtifactError:
    return ArtifactError(f"{where}: expected a file of 'roller cache export', but {what}. Nothing was imported.")
