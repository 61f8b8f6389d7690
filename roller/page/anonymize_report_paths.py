"""Replaces file names and paths in a report's texts."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

_SUFFIXES = (
    "py|pyx|pyi|pyc|ipynb|cpp|cc|cxx|cu|cuh|c|h|hpp|rs|ts|js|so|onnx|pb|pt|pth|ckpt|bin|safetensors|npy|npz|pkl|csv|json|"
    "jsonl|gz|zip|tar|yaml|yml|toml|ini|cfg|txt|log|md|html|sh|parquet|arrow|h5|db"
)
#: A path of two or more parts with an optional drive, a path that begins with dots, or a file name.
_PATH = (
    r"(?<![\w.])(?:[A-Za-z]:)?[\\/](?:[^\s\\/:*?\"'<>|,()]+[\\/])+(?:[^\s\\/:*?\"'<>|,()]*[^\s\\/:*?\"'<>|,().])?"
    r"|(?<![\w.~])(?:\.{1,2}|~\w*)(?:[\\/][\w.~+@-]*[\w~+@-])+"
    rf"|[\w.~+@-]*(?:[\\/][\w.~+@-]*)*[\w~+@-]\.(?:{_SUFFIXES})\b"
)


def without_paths(value: Any, files: Iterable[str] = ()) -> Any:
    """Replace paths, and the names in ``files``, in a report's texts with ``file-1``, ``file-2``, ...

    Examples
    --------
    >>> without_paths({"name": "/home/me/net/a.py:12", "notes": ["See net/b.py, /home/me/net/a.py."]})
    {'name': 'file-1:12', 'notes': ['See file-2, file-1.']}
    >>> without_paths(["My Net/train:7"], ["My Net/train"])
    ['file-1:7']
    """
    known: dict[str, str] = {}
    exact = [rf"(?<!\w){re.escape(name)}(?!\w)" for name in sorted(set(files) - {""}, key=len, reverse=True)]
    path = re.compile("|".join([*exact, _PATH]))

    def number_path(found: re.Match[str]) -> str:
        return known.setdefault(found[0], f"file-{len(known) + 1}")

    def plain(part: Any) -> Any:
        if isinstance(part, str):
            return path.sub(number_path, part)
        if isinstance(part, Mapping):
            return {path.sub(number_path, str(name)): plain(inner) for name, inner in part.items()}
        if isinstance(part, (list, tuple)):
            return [plain(inner) for inner in part]
        return part

    return plain(value)
