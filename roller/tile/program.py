"""RProgram: a tiling of an expression, with one rTile per tiled memory layer."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from roller.core.matrix_instruction_fragment import Fragment
from roller.errors import MALFORMED, ArtifactError, TileError
from roller.expr import SPATIAL, Axis, TensorExpr
from roller.expr.serialize import expr_from_dict, expr_to_dict
from roller.tile.program_name import ProgramName, format_program_name
from roller.tile.structures import Structure, structure_named
from roller_runtime.core.display import html_table, one_line_repr

#: Minimum number of register tiles per row for which non-temporal programs align tiles to cache lines; tiles at the
#: ends of a row then overlap.
ALIGNED_TILES = 4


@dataclass(frozen=True)
class RProgram:
    """A complete tiling of an expression for one kind of device.

    On a GPU, the ``register`` tile belongs to one thread and the ``shared`` tile to one block; on a CPU, the
    ``register`` tile is the micro-kernel, the ``l1`` tile the panel step, and the ``l2`` tile one parallel task. Per
    axis, every tile is a multiple of the tile of the next faster layer; the slowest layer holds the whole tensors.
    Extents may exceed the axis: the excess is padding in the faster layers, never a padded copy in DRAM.

    Parameters
    ----------
    expr
        The canonical (fused or grouped) expression that the tiles refer to.
    kind
        Kind of device: ``"gpu"``, ``"cpu"`` or ``"bsp"``.
    structure
        ``"tiled"`` (reduction with reuse), ``"matrix"`` (GPU: the same on a matrix unit; the register tile belongs to
        the threads of one ``fragment``), ``"window"`` (GPU: a reduction over windows only, in which threads move along
        the input rows of a strip of outputs; see :mod:`roller.tile.sliding_windows`), ``"rows"`` (reduction without
        reuse, and
        multi-stage expressions), ``"streaming"`` (no reduction), ``"winograd2"`` and ``"winograd4"`` (a 3x3 window by
        Winograd's algorithm with output tiles of that many elements per side; see :mod:`roller.tile.winograd` for
        CPUs and :mod:`roller.tile.winograd_batched_product` for GPUs, where the tiles belong to a batched product).
    tiles
        ``((layer, extents), ...)`` from fastest to slowest; extents in elements over ``expr.axes``.
    storage_padding
        ``((tensor, elements), ...)``: elements appended to each row of a staged data tile.
    staged
        Inputs copied through the scratchpad (GPU) or into packed panels (CPU); others are read in place. GPU ``rows``:
        inputs whose rows stay in the scratchpad from stage to stage.
    vector_axis
        Axis whose register tile is loaded, computed or stored as vectors; ``None`` for scalars.
    vector_elements
        Number of elements per vector access along ``vector_axis``.
    interleaved
        GPU: a thread's elements along an axis are ``thread + threads * r`` instead of contiguous
        (along ``vector_axis`` in chunks of ``vector_elements``).
    split_k
        Number of parts into which the reduction is split over blocks; each part writes a partial result that a
        second, deterministic pass combines.
    relaxed
        Names of the alignment rules that this program does not fulfil; its price includes the cost.
    constants
        Inputs whose values do not change from call to call; CPU: constants that are also ``staged`` are packed before
        all calls.
    nontemporal
        CPU: whole lines of the results bypass the caches, which then need not read the lines first.
    stages
        GPU: number of copies of every staged tile in the scratchpad; with more than one, ``stages - 1`` reduction steps
        are loaded ahead of the arithmetic.
    raster
        GPU: number of block tiles along the slower of the two fastest output axes that blocks cover before they advance
        along the faster one, so that a wave of blocks covers a squarer piece of the output.
    fragment, matrix_axes
        The matrix instruction of a ``"matrix"`` program, and the axes along its m, n and k.
    open_axes
        Axes whose extents may differ from call to call; the code is the same for all extents where possible.
    """

    expr: TensorExpr
    kind: str
    structure: str
    tiles: tuple[tuple[str, tuple[int, ...]], ...]
    storage_padding: tuple[tuple[str, int], ...] = ()
    staged: tuple[str, ...] = ()
    vector_axis: str | None = None
    vector_elements: int = 1
    interleaved: bool = False
    split_k: int = 1
    relaxed: tuple[str, ...] = ()
    constants: tuple[str, ...] = ()
    nontemporal: bool = False
    stages: int = 1
    raster: int = 1
    fragment: Fragment | None = None
    matrix_axes: tuple[str, ...] = ()
    open_axes: tuple[str, ...] = ()
    # Not an argument: dataclasses.replace must start a new one, or results of the old value would be reused.
    _memo: dict[str, Any] = field(default_factory=dict, init=False, compare=False, repr=False, hash=False)

    def __post_init__(self) -> None:
        """Check that every tile has the anchor's rank and is a multiple of the next faster tile."""
        rank = len(self.expr.axes)
        above: tuple[int, ...] | None = None
        for layer, extents in self.tiles:
            if len(extents) != rank:
                raise TileError(f"tile '{layer}': expected {rank} extents for {self.axis_names}, got {extents}.")
            if any(e < 1 for e in extents):
                raise TileError(f"tile '{layer}': expected extents of at least 1, got {extents}.")
            if above is not None and any(e % a for e, a in zip(extents, above, strict=True)):
                raise TileError(f"tile '{layer}' {extents} is not a per-axis multiple of the tile above it {above}.")
            above = extents
        if self.traits.on_matrix_unit != (self.fragment is not None):
            raise TileError(
                f"structure '{self.structure}': expected a fragment with 'matrix' only, got {self.fragment}."
            )
        if min(self.stages, self.raster) < 1:
            raise TileError(f"expected stages and raster of at least 1, got {self.stages} and {self.raster}.")

    @property
    def axes(self) -> tuple[Axis, ...]:
        """Axes over which the tiles extend."""
        return self.expr.axes

    @cached_property
    def traits(self) -> Structure:
        """Traits of the program's structure."""
        return structure_named(self.structure)

    @property
    def sums_along_vectors(self) -> bool:
        """Whether the vectors run along a reduction axis."""
        return any(a.name == self.vector_axis and a.kind != SPATIAL for a in self.axes)

    @cached_property
    def axis_names(self) -> tuple[str, ...]:
        """Names of the axes."""
        names: tuple[str, ...] = self.expr._memo.get("axis_names") or tuple(a.name for a in self.axes)
        self.expr._memo["axis_names"] = names
        return names

    def reading(self, reads: Mapping[str, Any]) -> RProgram:
        """Store the lanes' reads from staged tiles (storage padding does not change them) and return the program."""
        self._memo["lane_reads"] = reads
        return self

    def tile(self, layer: str) -> dict[str, int]:
        """Return the extents of a layer's tile, keyed by axis name."""
        for name, extents in self.tiles:
            if name == layer:
                return dict(zip(self.axis_names, extents, strict=True))
        raise TileError(f"program has no tile in layer '{layer}'; it has {[n for n, _ in self.tiles]}.")

    @cached_property
    def layers(self) -> tuple[str, ...]:
        """Names of the tiled layers, fastest first."""
        return tuple(n for n, _ in self.tiles)

    @cached_property
    def block_tile(self) -> dict[str, int]:
        """Tile of the slowest tiled layer: one block (GPU) or one task (CPU)."""
        return self.tile(self.layers[-1])

    @cached_property
    def threads(self) -> dict[str, int]:
        """GPU: number of threads per axis (``matrix``: of groups of threads); 1 for reductions except in ``rows``."""
        register, block = self.tile("register"), self.block_tile
        return {
            a.name: block[a.name] // register[a.name] if a.kind == SPATIAL or self.traits.spreads_reductions else 1
            for a in self.axes
        }

    @cached_property
    def threads_per_block(self) -> int:
        """GPU: number of threads per block."""
        total = self.fragment.threads if self.fragment else 1
        for n in self.threads.values():
            total *= n
        return total

    @cached_property
    def grid(self) -> dict[str, int]:
        """Number of blocks (or tasks) per spatial axis: ``ceil(extent / block tile)``."""
        return {a.name: -(-a.extent // self.block_tile[a.name]) for a in self.axes if a.kind == SPATIAL}

    @cached_property
    def blocks(self) -> int:
        """Number of blocks (or tasks) in the whole launch, including split-K parts."""
        total = self.split_k
        for n in self.grid.values():
            total *= n
        return total

    @property
    def emitted(self) -> bool:
        """Whether a template generates code for the program; otherwise it is only constructed and priced."""
        return self.fragment is None or self.fragment.emitted

    @property
    def mechanisms(self) -> tuple[str, ...]:
        """Mechanisms other than tiling, as text: matrix instruction, pipeline stages, raster, and split reduction."""
        numbers = (("stages", self.stages), ("raster", self.raster), ("split_k", self.split_k))
        fragment = (self.fragment.name,) if self.fragment else ()
        return (*fragment, *(f"{name}={n}" for name, n in numbers if n > 1))

    @cached_property
    def reduction_steps(self) -> dict[str, int]:
        """Number of steps per reduction axis: ``ceil(extent / block tile)``."""
        return {a.name: -(-a.extent // self.block_tile[a.name]) for a in self.axes if a.kind != SPATIAL}

    def to_dict(self) -> dict[str, Any]:
        """Return JSON-ready data; :meth:`from_dict` is the inverse."""
        return {
            "expr": expr_to_dict(self.expr),
            "kind": self.kind,
            "structure": self.structure,
            "tiles": [[layer, list(extents)] for layer, extents in self.tiles],
            "storage_padding": [list(p) for p in self.storage_padding],
            "staged": list(self.staged),
            "vector_axis": self.vector_axis,
            "vector_elements": self.vector_elements,
            "interleaved": self.interleaved,
            "split_k": self.split_k,
            "relaxed": list(self.relaxed),
            "constants": list(self.constants),
            "nontemporal": self.nontemporal,
            "stages": self.stages,
            "raster": self.raster,
            "fragment": self.fragment.to_dict() if self.fragment else None,
            "matrix_axes": list(self.matrix_axes),
            **({"open_axes": list(self.open_axes)} if self.open_axes else {}),
        }

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> RProgram:
        """Rebuild a program from :meth:`to_dict` data.

        Raises
        ------
        ArtifactError
            If a field is missing or malformed.
        """
        try:
            return cls(
                expr_from_dict(data["expr"]),
                data["kind"],
                data["structure"],
                tuple((layer, tuple(extents)) for layer, extents in data["tiles"]),
                tuple((t, n) for t, n in data["storage_padding"]),
                tuple(data["staged"]),
                data["vector_axis"],
                data["vector_elements"],
                data["interleaved"],
                data["split_k"],
                tuple(data["relaxed"]),
                tuple(data.get("constants", ())),  # files of older versions have none
                data.get("nontemporal", False),
                data.get("stages", 1),
                data.get("raster", 1),
                Fragment(**data["fragment"]) if data.get("fragment") else None,
                tuple(data.get("matrix_axes", ())),
                tuple(data.get("open_axes", ())),
            )
        except MALFORMED as err:
            raise ArtifactError(f"program: expected a serialised RProgram, got {err!r}. The file is damaged.") from err

    @cached_property
    def digest(self) -> str:
        """SHA-256 hash of all fields of the program."""
        return hashlib.sha256(json.dumps(self.to_dict(), sort_keys=True).encode()).hexdigest()

    def __repr__(self) -> str:
        """Return the operator and tiles; :meth:`__str__` includes all fields."""
        return one_line_repr("RProgram", f"{self.expr.name}: {self}")

    def _repr_html_(self) -> str:
        """Return the tiles of all layers as a table, for a notebook."""
        rows = [(layer, *extents) for layer, extents in self.tiles]
        how = ", ".join([f"{self.kind}/{self.structure}", *self.mechanisms])
        return html_table(f"{self.expr}: {how}", ("layer", *self.axis_names), rows)

    def __str__(self) -> str:
        """Return the name (:mod:`roller.tile.program_name`): all fields on one line, unique within an expression."""
        tiles = ((layer, tuple(zip(self.axis_names, extents, strict=True))) for layer, extents in self.tiles)
        vector = None if self.vector_axis is None else (self.vector_axis, self.vector_elements)
        fragment = None if self.fragment is None else self.fragment.name
        return format_program_name(ProgramName(
            self.kind, self.structure, tuple(tiles), vector, self.staged, self.storage_padding, self.interleaved,
            self.split_k, self.constants, self.nontemporal, self.stages, self.raster, fragment, self.matrix_axes,
            self.relaxed,
        ))  # fmt: skip
