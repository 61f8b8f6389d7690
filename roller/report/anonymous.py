"""Leaves names of files and paths out of a report's texts."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

#: A path of two parts or more, with its drive where it has one, or the name of a source file.
_PATH = re.compile(
    r"(?<![\w.])(?:[A-Za-z]:)?[\\/](?:[^\s\\/:*?\"'<>|,()]+[\\/])+(?:[^\s\\/:*?\"'<>|,()]*[^\s\\/:*?\"'<>|,().])?"
    r"|[\w.~+@-]*(?:[\\/][\w.~+@-]*)*[\w~+@-]\.(?:py|pyx|pyi|ipynb|cpp|cc|cxx|cu|cuh|c|h|hpp|onnx|json|gz|yaml|yml)\b"
)


def without_paths(value: Any) -> Any:
    """Return a report's data with the paths in its texts replaced: each becomes ``file-1``, ``file-2``, ...

    Examples
    --------
    >>> without_paths({"name": "/home/me/net/a.py:12", "notes": ["See net/b.py, /home/me/net/a.py."]})
    {'name': 'file-1:12', 'notes': ['See file-2, file-1.']}
    """
    known: dict[str, str] = {}

    def named(found: re.Match[str]) -> str:
        return known.setdefault(found[0], f"file-{len(known) + 1}")

    def plain(part: Any) -> Any:
        if isinstance(part, str):
            return _PATH.sub(named, part)
        if isinstance(part, Mapping):
            return {_PATH.sub(named, str(name)): plain(inner) for name, inner in part.items()}
        if isinstance(part, (list, tuple)):
            return [plain(inner) for inner in part]
        return part

    return plain(value)
