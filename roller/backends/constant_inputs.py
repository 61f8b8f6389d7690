"""Constant inputs for launchers: their values as arrays, and their positions among the inputs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from roller.artifact import KernelArtifact
from roller.errors import LaunchError
from roller_runtime.core.dtypes import storage_dtype


def constant_arrays(artifact: KernelArtifact) -> dict[int, np.ndarray]:
    """Return the constant inputs as read-only arrays in their storage dtype, keyed by position."""
    found = {}
    for c in artifact.constants:
        t = artifact.expression.inputs[c.position]
        where = f"{artifact.expression.name}: constant '{t.name}'"
        if c.values is None:
            raise LaunchError(
                f"{where}: expected its values in the artifact, it has none. Compile with constants={{...}} and save "
                "the kernel that compile returns."
            )
        dtype = storage_dtype(t.dtype)
        wanted = math.prod(t.shape) * dtype.itemsize
        if len(c.values) != wanted:
            raise LaunchError(
                f"{where}: expected {wanted} bytes for {t.dtype} of shape {t.shape}, got {len(c.values)}. "
                "Compile the kernel again."
            )
        found[c.position] = np.frombuffer(c.values, dtype).reshape(t.shape)
    return found


def merge_constants(arrays: Sequence[Any], constants: Mapping[int, Any]) -> list[Any]:
    """Return all arguments: ``constants`` at their positions, and the caller's ``arrays`` in order at the others.

    Examples
    --------
    >>> merge_constants(["A", "C"], {1: "B"})
    ['A', 'B', 'C']
    """
    given = iter(arrays)
    return [constants[n] if n in constants else next(given) for n in range(len(arrays) + len(constants))]
