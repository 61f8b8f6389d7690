"""Small JSON notes beside the kernels of a cache: what is cheaper to read than to work out again, and never trusted.

A note is found by a digest of everything it was made of. It is written whole or not at all; one that is damaged, or
cannot be written, is as if it were not there.
"""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

from roller.core.files import private_folder, read_file, whole_file
from roller.core.kept_code import check_folder, own_folder


def read_note(folder: Path, name: str) -> dict[str, Any]:
    """Return the note of a name, empty where there is none."""
    try:
        check_folder(folder)
        found = json.loads(read_file(_path(folder, name)))
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def write_note(folder: Path, name: str, note: dict[str, Any]) -> bool:
    """Keep a note; say whether it was."""
    path, text = _path(folder, name), json.dumps(note, separators=(",", ":"))
    try:
        own_folder(folder)
        private_folder(path.parent)
        with whole_file(path) as file:
            file.write(text.encode())
    except OSError:
        return False
    return True


def clear_notes(folder: Path) -> None:
    """Remove all notes, those included whose writer was killed."""
    for path in (folder / "notes").glob("*"):
        with contextlib.suppress(OSError):
            path.unlink()


def _path(folder: Path, name: str) -> Path:
    return folder / "notes" / f"{name}.json"
