"""Tile instructions: a program as a stream of Load, Compute and Store over its block layer.

Every block loads, per reduction step, one data tile for each distinct load of the anchor, computes on
them, and stores its output tile once. A split reduction stores partial results first; a second pass loads
and combines them in a fixed order. The stream is what the interpreter executes, and what counts the
footprint and the traffic of the model (design.md section 3).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from roller.errors import ArtifactError
from roller.expr import Axis, Index, Stage, Term
from roller.tile.geometry import Access, Geometry
from roller.tile.program import RProgram
from roller.tile.staged_tile_layout import tile_layout


@dataclass(frozen=True)
class Box:
    """``((start, stop, step), ...)`` per dimension of a tensor, in elements; a border lies outside the tensor."""

    ranges: tuple[tuple[int, int, int], ...]

    @property
    def shape(self) -> tuple[int, ...]:
        """Positions per dimension."""
        return tuple(len(range(*r)) for r in self.ranges)

    def __str__(self) -> str:
        """Slices, as a person writes them."""
        return "[" + ", ".join(f"{a}:{b}" + (f":{s}" if s != 1 else "") for a, b, s in self.ranges) + "]"


@dataclass(frozen=True)
class Points:
    """``((axis, start, stop), ...)``: the elements ``index`` selects over ranges of axes (a gathered tile)."""

    axes: tuple[tuple[str, int, int], ...]
    index: tuple[Index, ...] = ()

    @property
    def shape(self) -> tuple[int, ...]:
        """Positions per axis."""
        return tuple(stop - start for _, start, stop in self.axes)

    def __str__(self) -> str:
        """Ranges by axis name."""
        return "{" + ", ".join(f"{name}={start}:{stop}" for name, start, stop in self.axes) + "}"


Region: TypeAlias = Box | Points


@dataclass(frozen=True)
class Load:
    """Copy ``region`` of ``tensor`` from the slowest layer into ``layer``."""

    layer: str
    tensor: str
    region: Region

    def __str__(self) -> str:
        """One line."""
        return f"Load {self.layer} {self.tensor}{self.region}"


@dataclass(frozen=True)
class Compute:
    """Combine the body over ranges of all axes into the output tile.

    Ranges may reach beyond an axis: those points are padding and contribute the combiner's neutral value. Ranges
    of spatial axes alone combine the partial results that were loaded.
    """

    layer: str
    region: Points

    def __str__(self) -> str:
        """One line."""
        return f"Compute {self.layer} {self.region}"


@dataclass(frozen=True)
class Store:
    """Write the output tile, or a partial result, to ``region`` of ``tensor``; the epilogue is applied on the way."""

    layer: str
    tensor: str
    region: Region

    def __str__(self) -> str:
        """One line."""
        return f"Store {self.layer} {self.tensor}{self.region}"


Instruction: TypeAlias = Load | Compute | Store


def partial_name(stage: Stage, part: int) -> str:
    """Return the name under which part ``part`` of a split reduction is stored."""
    return f"{stage.name}#{part}"


def instructions(program: RProgram) -> Iterator[Instruction]:
    """Yield the stream of a program's block layer: blocks in grid order, the contiguous axis of the output last.

    Parameters
    ----------
    program
        Any program; stages other than the anchor and its epilogue in place have no instructions.

    Examples
    --------
    >>> import roller
    >>> from roller.tile import RProgram
    >>> e = roller.ops.matmul(4, 4, 2)
    >>> for step in instructions(RProgram(e, "gpu", "tiled", (("register", (1, 1, 1)), ("shared", (4, 4, 2))))):
    ...     print(step)
    Load shared A[0:4, 0:2]
    Load shared B[0:2, 0:4]
    Compute shared {i=0:4, j=0:4, k=0:2}
    Store shared C[0:4, 0:4]
    """
    geometry, block = Geometry.of(program.expr), program.block_tile
    layer, anchor = program.layers[-1], program.expr.anchor
    steps = list(_positions(anchor.reduction_axes, block))
    share = -(-len(steps) // program.split_k)
    parts = -(-len(steps) // share)  # parts left without a step would add nothing
    grid = [program.axes[a] for a in geometry.order]
    for part in range(parts):
        for output in _positions(grid, block):
            for step in steps[part * share : (part + 1) * share]:
                at = {**output, **step}
                for access in geometry.loads:
                    yield Load(layer, access.tensor.name, _region(program, access, at))
                yield Compute(layer, _axis_ranges(program.axes, block, at))
            if parts > 1:
                yield Store(layer, partial_name(anchor, part), _region(program, geometry.store, output, whole=True))
            else:
                yield from _finish(program, geometry, output)
    if parts > 1:
        for output in _positions(grid, block):
            region = _region(program, geometry.store, output, whole=True)
            for part in range(parts):
                yield Load(layer, partial_name(anchor, part), region)
            yield Compute(layer, _axis_ranges(anchor.spatial_axes, block, output))
            yield from _finish(program, geometry, output)


def _finish(program: RProgram, geometry: Geometry, output: Mapping[str, int]) -> Iterator[Instruction]:
    """Yield the loads of the epilogue's own operands, and the store of the output tile."""
    expr, layer = program.expr, program.layers[-1]
    at = {a.name: 0 for a in expr.axes} | dict(output)
    if expr.epilogue is not None:
        for access in geometry.extras:
            yield Load(layer, access.tensor.name, _region(program, access, at))
    result = expr.epilogue or expr.anchor
    yield Store(layer, result.name, _region(program, geometry.store, at, whole=True))


def _positions(axes: Sequence[Axis], block: Mapping[str, int]) -> Iterator[dict[str, int]]:
    """Yield the starts of all tiles over ``axes``, the last one fastest."""
    for starts in itertools.product(*(range(0, a.extent, block[a.name]) for a in axes)):
        yield {a.name: s for a, s in zip(axes, starts, strict=True)}


def _axis_ranges(axes: Sequence[Axis], block: Mapping[str, int], at: Mapping[str, int]) -> Points:
    """Return the (padded) ranges of one tile."""
    return Points(tuple((a.name, at[a.name], at[a.name] + block[a.name]) for a in axes))


def _region(program: RProgram, access: Access, at: Mapping[str, int], *, whole: bool = False) -> Region:
    """Return what one tile touches of a tensor, clipped to what the whole axes touch.

    ``whole`` regions (of the output) hold no border and no strides that a layout could stage by axes.
    """
    stage, block = program.expr.anchor, program.block_tile
    extents = dict(zip(access.axis_names, (int(e) for e in access.axis_extents), strict=True))
    axes: tuple[str, ...] = ()
    if access.gather:
        used = [n for n, u in zip(access.axis_names, access.uses, strict=True) if u]
        axes = tuple(used)
    if not whole:
        source = next((ld for ld in stage.loads if (ld.tensor, ld.index) == (access.tensor.name, access.index)), None)
        if source is not None and (access.gather or (access.lattice > 1).any()):
            axes = tile_layout(stage, source, access.tensor, block).axes
    if axes:
        ranges = tuple((n, at.get(n, 0), min(at.get(n, 0) + block[n], extents[n])) for n in axes)
        return Points(ranges, access.index)
    return Box(tuple(_dimension(access, d, at, block, extents) for d in range(len(access.index))))


def _dimension(
    access: Access, d: int, at: Mapping[str, int], block: Mapping[str, int], extents: Mapping[str, int]
) -> tuple[int, int, int]:
    """Return ``(start, stop, step)`` of a box along dimension ``d``."""
    low = high = first = last = int(access.constants[d])
    for name, c in zip(access.axis_names, (int(c) for c in access.coefficients[d]), strict=True):
        ends = (c * at.get(name, 0), c * (at.get(name, 0) + block[name] - 1))
        bounds = (0, c * (extents[name] - 1))
        low, high = low + min(ends), high + max(ends)
        first, last = first + min(bounds), last + max(bounds)
    step = int(access.lattice[d])
    low += max(0, -(-(first - low) // step)) * step
    return low, low + (min(high, last) - low) // step * step + 1, step


def to_lists(stream: Iterator[Instruction] | Sequence[Instruction]) -> list[list[Any]]:
    """Return JSON-ready data of a stream; :func:`from_lists` is the inverse."""
    tensors = ((x, "" if isinstance(x, Compute) else x.tensor) for x in stream)
    return [[type(x).__name__, x.layer, tensor, _region_list(x.region)] for x, tensor in tensors]


def from_lists(data: Sequence[Sequence[Any]]) -> list[Instruction]:
    """Rebuild a stream from :func:`to_lists` data.

    Raises
    ------
    ArtifactError
        Where an instruction is unknown or malformed.
    """
    out: list[Instruction] = []
    for n, item in enumerate(data):
        try:
            kind, layer, tensor, region = item
            if kind == "Compute":
                points = _region_from(region)
                if not isinstance(points, Points):
                    raise TypeError("a Compute needs axis ranges")
                out.append(Compute(layer, points))
            else:
                copies: dict[str, type[Load] | type[Store]] = {"Load": Load, "Store": Store}
                out.append(copies[kind](layer, tensor, _region_from(region)))
        except (KeyError, TypeError, ValueError) as err:
            raise ArtifactError(
                f"tile instruction {n}: expected [kind, layer, tensor, region], got {item!r} ({err}). "
                "The file is damaged."
            ) from err
    return out


def _region_list(region: Region) -> list[Any]:
    if isinstance(region, Box):
        return ["box", [list(r) for r in region.ranges]]
    index = [[i.const, [[t.axis, t.coef, t.div, t.mod] for t in i.terms]] for i in region.index]
    return ["points", [list(r) for r in region.axes], index]


def _region_from(data: Sequence[Any]) -> Region:
    if data[0] == "box":
        return Box(tuple((a, b, s) for a, b, s in data[1]))
    if data[0] != "points":
        raise ValueError(f"unknown region '{data[0]}'")
    index = tuple(Index(tuple(Term(a, c, v, m) for a, c, v, m in terms), const) for const, terms in data[2])
    return Points(tuple((n, a, b) for n, a, b in data[1]), index)
