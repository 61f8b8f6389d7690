"""The matrix program of tiles a person names, for a fragment they name: what ``predict(fragment=...)`` prices."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from roller.errors import TileError, did_you_mean, shown
from roller.hardware import DeviceSpec
from roller.perf.batch import TileBatch
from roller.templates.gpu.matrix.pool import MatrixForm, matrix_forms
from roller.tile.geometry import Geometry


def matrix_batch(geometry: Geometry, rows: tuple[tuple[int, ...], ...], spec: DeviceSpec, name: str) -> TileBatch:
    """Return the one program of a group's tile and a block's tile, one stage, its m, n and k axes found.

    Parameters
    ----------
    geometry
        Of the form of the expression that the tiles are named over.
    rows
        Extents (elements) per layer: of a group of threads, and of a block. An extent of 1 along k in the former
        means the fragment's.
    spec
        The device.
    name
        Of one of its fragments.

    Raises
    ------
    TileError
        Where the device has no such fragment, it does not compute the expression, or tiles are no whole fragments.
    """
    names = [f.name for f in spec.fragments]
    if not isinstance(name, str) or name not in names:
        hint = did_you_mean(name, names) or "."
        raise TileError(f"fragment: {shown(name)} is no fragment of {spec.name}{hint} Use one of {names}.")
    own = replace(spec, fragments=tuple(f for f in spec.fragments if f.name == name))
    forms = matrix_forms(geometry, own)
    if not forms:
        raise TileError(
            f"fragment: expected one that computes {geometry.expr.name} over {geometry.names}, got '{name}'. "
            f"Check the dtypes of operands and accumulator ({own.fragments[0].operand}, "
            f"{own.fragments[0].accumulator}), or name tiles over the grouped axes."
        )
    for form in forms:
        batch = _batch(geometry, rows, form)
        if batch is not None:
            return batch
    f, axes = forms[0].fragment, [geometry.names[a] for a in forms[0].axes]
    raise TileError(
        f"tiles: expected whole fragments of {f.m} x {f.n} x {f.k} along {axes}, {f.k} of the last one in 'register', "
        f"in 'shared' multiples of 'register' and 1 along other axes, got {rows} over {geometry.names}. Round them."
    )


def _batch(geometry: Geometry, rows: tuple[tuple[int, ...], ...], form: MatrixForm) -> TileBatch | None:
    """Return the program where the tiles are whole fragments along the form's axes, and 1 along all others."""
    register, block = (np.array([row], np.int64) for row in (rows[0], rows[-1]))
    k, sizes = form.axes[2], np.ones(len(geometry.names), np.int64)
    sizes[list(form.axes)] = form.sizes
    register[0, k] = form.fragment.k if register[0, k] == 1 else register[0, k]
    whole = not (register % sizes).any() and not (block % register).any() and register[0, k] == form.fragment.k
    others = np.setdiff1d(np.arange(len(geometry.names)), form.axes)
    if not whole or (block[0, others] != 1).any():
        return None
    axes = tuple(geometry.names[a] for a in form.axes)
    ones = np.ones(1, np.int64)
    return TileBatch(
        geometry, "matrix", register, block, ones, geometry.load_names, fragment=form.fragment, matrix_axes=axes
    )
