"""The matrix program for an explicitly given fragment and tiles, which ``predict(fragment=...)`` prices."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from roller.core.matrix_instruction_fragment import Fragment
from roller.errors import TileError
from roller.hardware import DeviceSpec
from roller.perf.tile_batch import TileBatch
from roller.templates.gpu.matrix.candidates import MatrixForm, matrix_forms
from roller.tile.geometry import Geometry


def batch_of_named_matrix_tiles(
    geometry: Geometry,
    rows: tuple[tuple[int, ...], ...],
    spec: DeviceSpec,
    fragment: Fragment,
    along: tuple[str, ...] | None,
) -> TileBatch:
    """Return the program with the given tiles of a group and a block, with one stage, as a batch."""
    known = matrix_forms(geometry, replace(spec, fragments=(fragment,)))
    forms = [f for f in known if along in (None, tuple(geometry.names[a] for a in f.axes))]
    if not forms:
        where = f" along {along}" if along is not None else ""
        raise TileError(
            f"fragment: expected one that computes {geometry.expr.name} over {geometry.names}, got "
            f"'{fragment.name}'{where}. Check the dtypes of operands and accumulator ({fragment.operand}, "
            f"{fragment.accumulator}), or name tiles over the grouped axes."
        )
    for form in forms:
        batch = _batch_if_whole_fragments(geometry, rows, form)
        if batch is not None:
            return batch
    f, axes = forms[0].fragment, [geometry.names[a] for a in forms[0].axes]
    raise TileError(
        f"tiles: expected whole fragments of {f.m} x {f.n} x {f.k} along {axes}, {f.k} of the last one in 'register', "
        f"in 'shared' multiples of 'register' and 1 along other axes, got {rows} over {geometry.names}. Round them."
    )


def _batch_if_whole_fragments(
    geometry: Geometry, rows: tuple[tuple[int, ...], ...], form: MatrixForm
) -> TileBatch | None:
    """Return the program, or ``None`` unless tiles are whole fragments along the form's axes and 1 along the others."""
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
