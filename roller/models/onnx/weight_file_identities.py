"""Files of large weights that a cached program refers to, and their identities, which reveal changes.

A file whose :func:`file_identity` is unchanged is itself unchanged, because programs cannot set the change time.
File clocks are coarse, so a recently written file is not settled, and no cached program refers to it.
"""

from __future__ import annotations

import mmap
import os
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

#: Minimum size, in bytes, of a constant that stays in its file; a cached program contains smaller ones.
LEAST_BYTES = 1 << 20
#: Time, in seconds, within which a file could change again unnoticed: a file system's clock may tick only every two
#: seconds.
SETTLED_S = 2.5


def file_identity(path: Path) -> list[int] | None:
    """Return a regular file's device, inode, size, modification time and change time (ns); ``None`` for other files."""
    try:
        found = path.stat()
    except (OSError, ValueError):
        return None
    if not stat.S_ISREG(found.st_mode):
        return None
    return [found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns]


def is_settled(found: list[int], at_s: float) -> bool:
    """Return whether the file with identity ``found`` was settled at ``at_s`` (seconds since the epoch)."""
    return max(found[3:]) < (at_s - SETTLED_S) * 1e9


def resolve_path_below(folder: Path, location: str) -> Path | None:
    """Return the path of a file below a folder, with links resolved; ``None`` if it is outside."""
    root = os.path.realpath(folder)
    path = Path(os.path.realpath(Path(root, location)))
    return path if path.is_relative_to(root) else None


def weight_file_and_offset(array: np.ndarray, folder: Path) -> tuple[str, int] | None:
    """Return the file below ``folder`` that holds a large array, and the array's byte offset; ``None`` if none does."""
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


def map_array(folder: Path, location: str, offset: int, dtype: np.dtype[Any], shape: tuple[int, ...]) -> np.ndarray:
    """Return an array as a memory map of a file; raise ``ValueError`` or ``OSError`` if that fails."""
    path = resolve_path_below(folder, location)
    if path is None:
        raise ValueError(location)
    return np.memmap(path, dtype, "r", offset, shape)


def external_file_names(model: Any) -> set[str]:
    """Return the names of a model's external files, including those that bodies and functions of the model use."""
    found = {e.value for t in _tensors_of_graph(model.graph) for e in t.external_data if e.key == "location"}
    for function in model.functions:
        found |= {e.value for t in _tensors_of_nodes(function.node) for e in t.external_data if e.key == "location"}
    return found


def _tensors_of_graph(graph: Any) -> Iterator[Any]:
    yield from graph.initializer
    for sparse in graph.sparse_initializer:
        yield from (sparse.values, sparse.indices)
    yield from _tensors_of_nodes(graph.node)


def _tensors_of_nodes(nodes: Iterable[Any]) -> Iterator[Any]:
    for node in nodes:
        for attribute in node.attribute:
            yield from (attribute.t, *attribute.tensors)
            for sparse in (attribute.sparse_tensor, *attribute.sparse_tensors):
                yield from (sparse.values, sparse.indices)
            for graph in (attribute.g, *attribute.graphs):
                yield from _tensors_of_graph(graph)
