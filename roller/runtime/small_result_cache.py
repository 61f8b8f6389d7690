"""Small JSON notes next to the cached kernels: results that are cheaper to read than to compute but are not trusted.

A note is found by a digest of its inputs and written atomically; a damaged or unwritable note counts as missing.
"""

from __future__ import annotations

import contextlib
import json
import shutil
from pathlib import Path
from typing import Any

from roller.core.trusted_library_cache import check_folder_trusted, make_trusted_folder
from roller_runtime.core.files import make_private_folder, read_file, write_atomically

#: Subfolder of the cache with models with dynamic sizes (:mod:`roller.models.range_cache`).
RANGES_FOLDER = "ranges"


def read_small_result(folder: Path, name: str) -> dict[str, Any]:
    """Return a note; empty if there is none."""
    try:
        check_folder_trusted(folder)
        found = json.loads(read_file(_result_path(folder, name)))
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def write_small_result(folder: Path, name: str, note: dict[str, Any]) -> bool:
    """Store a note; return whether that succeeded."""
    path, text = _result_path(folder, name), json.dumps(note, separators=(",", ":"))
    try:
        make_trusted_folder(folder)
        make_private_folder(path.parent)
        with write_atomically(path) as file:
            file.write(text.encode())
    except OSError:
        return False
    return True


def clear_small_results(folder: Path) -> None:
    """Remove all notes and cached models with dynamic sizes, including leftovers from killed writers."""
    for path in (folder / "notes").glob("*"):
        with contextlib.suppress(OSError):
            path.unlink()
    shutil.rmtree(folder / RANGES_FOLDER, ignore_errors=True)


def _result_path(folder: Path, name: str) -> Path:
    return folder / "notes" / f"{name}.json"
