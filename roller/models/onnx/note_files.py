"""Large weights of a noted program stay in the files they came in; the note says where, and which files it goes by.

A file is the same where nothing that :func:`identity` looks at changed. Whoever writes a file, or puts another one in
its place, changes the time of its last change, which nobody can set. A clock has ticks, so a file that was written
shortly before it was looked at is not settled and leaves no note.
"""

from __future__ import annotations

import mmap
import os
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

#: Constants from this size on stay in their file; of smaller ones the note has the bytes.
LEAST_BYTES = 1 << 20
#: A file that was changed in the last so many seconds may change again without a trace: the clock of a file system may
#: tick every two seconds.
SETTLED_S = 2.5


def identity(path: Path) -> list[int] | None:
    """Return what another content of a file would change; ``None`` where it is no plain file.

    Device and number of the file, its bytes, and the times (nanoseconds) of its last writing and its last change.
    """
    try:
        found = path.stat()
    except (OSError, ValueError):
        return None
    if not stat.S_ISREG(found.st_mode):
        return None
    return [found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns]


def settled(found: list[int], at_s: float) -> bool:
    """Whether a file of this identity had been left alone for a while at a time (seconds since the epoch)."""
    return max(found[3:]) < (at_s - SETTLED_S) * 1e9


def inside(folder: Path, location: str) -> Path | None:
    """Return the path of a file below a folder, links followed; ``None`` where it lies elsewhere."""
    root = os.path.realpath(folder)
    path = Path(os.path.realpath(Path(root, location)))
    return path if path.is_relative_to(root) else None


def place_of(array: np.ndarray, folder: Path) -> tuple[str, int] | None:
    """Return which file below ``folder`` holds a large array, and its first byte there; ``None`` where none does."""
    held: Any = array
    while isinstance(held, np.ndarray) and not isinstance(held.base, mmap.mmap):
        held = held.base
    if array.nbytes < LEAST_BYTES or not isinstance(held, np.memmap) or not array.flags.c_contiguous:
        return None
    if held.filename is None or held.mode != "r":
        return None
    path, root = Path(os.path.realpath(held.filename)), Path(os.path.realpath(folder))
    if not path.is_relative_to(root):
        return None
    return path.relative_to(root).as_posix(), int(held.offset) + array.ctypes.data - held.ctypes.data


def mapped(folder: Path, location: str, offset: int, dtype: np.dtype[Any], shape: tuple[int, ...]) -> np.ndarray:
    """Return an array that lies in a file; ``ValueError`` or ``OSError`` where the file has none there."""
    path = inside(folder, location)
    if path is None:
        raise ValueError(location)
    return np.memmap(path, dtype, "r", offset, shape)


def locations(model: Any) -> set[str]:
    """Return the files beside a model (``ModelProto``) that tensors of it lie in, those of bodies and functions too."""
    found = {e.value for t in _tensors(model.graph) for e in t.external_data if e.key == "location"}
    for function in model.functions:
        found |= {e.value for t in _of_nodes(function.node) for e in t.external_data if e.key == "location"}
    return found


def _tensors(graph: Any) -> Iterator[Any]:
    yield from graph.initializer
    for sparse in graph.sparse_initializer:
        yield from (sparse.values, sparse.indices)
    yield from _of_nodes(graph.node)


def _of_nodes(nodes: Iterable[Any]) -> Iterator[Any]:
    for node in nodes:
        for attribute in node.attribute:
            yield from (attribute.t, *attribute.tensors)
            for sparse in (attribute.sparse_tensor, *attribute.sparse_tensors):
                yield from (sparse.values, sparse.indices)
            for graph in (attribute.g, *attribute.graphs):
                yield from _tensors(graph)
