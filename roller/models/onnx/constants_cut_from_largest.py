"""Constants that depend on sizes and are corners of those at the largest sizes, such as causal masks."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from roller.models.onnx.read_at_sample_sizes import SampledModel, is_corner, is_prefix
from roller_runtime.plan.program_steps import Copy, Program, Value


def copy_corners_of_constants(found: SampledModel) -> SampledModel:
    """Return the programs with copies of corners in place of such constants.

    Constants that begin with the bytes of the largest one are left as they are, because they share its memory.
    """
    cuts: dict[str, int] = {}
    for name, whole in found.largest.constants.items():
        parts = [p.constants[name] for p in found.programs if name in p.constants]
        if len(parts) == len(found.programs) and not all(is_prefix(whole, part) for part in parts):
            cut = _axis_of_rows([part.shape for part in parts], whole.shape)
            if cut is not None and all(is_corner(whole, part) for part in parts):
                cuts[name] = cut
    if not cuts:
        return found
    wholes = {name: found.largest.constants[name] for name in cuts}
    programs = tuple(_with_copies(p, wholes, cuts) for p in found.programs)
    return replace(found, programs=programs, largest=_with_copies(found.largest, wholes, cuts))


def _axis_of_rows(parts: Sequence[Sequence[int]], whole: Sequence[int]) -> int | None:
    """Return the last axis that is cut, on which rows begin; ``None`` if rows are not evenly spaced.

    >>> _axis_of_rows([(1, 3, 3), (1, 8, 8)], (1, 8, 8)), _axis_of_rows([(2, 3, 3)], (4, 8, 8))
    (2, None)
    """
    if any(len(part) != len(whole) or any(n > most for n, most in zip(part, whole, strict=True)) for part in parts):
        return None
    cut = [k for k, most in enumerate(whole) if any(part[k] < most for part in parts)]
    last = max(cut, default=0)
    inner = [k for k in range(last) if whole[k] > 1][1:]
    return None if set(inner) & set(cut) else last


def _with_copies(program: Program, wholes: Mapping[str, np.ndarray], cuts: Mapping[str, int]) -> Program:
    """Return a program that copies the corners at its start."""
    values, constants, copies = dict(program.values), dict(program.constants), []
    for name, whole in wholes.items():
        value, source, cut = values[name], f"{name}/largest", cuts[name]
        size = value.nbytes // max(1, value.elements)
        row_bytes, pitch = math.prod(value.shape[cut:]) * size, math.prod(whole.shape[cut:]) * size
        values[source], constants[source] = Value(source, whole.shape, value.dtype), whole
        del constants[name]
        rows = math.prod(value.shape[:cut])
        copies.append(Copy(source, name, rows, row_bytes, source_pitch_bytes=pitch, target_pitch_bytes=row_bytes))
    return replace(program, values=values, constants=constants, steps=(*copies, *program.steps))
