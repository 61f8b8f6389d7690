"""NumPy interpreter of tile instructions: the oracle of construction.

A Compute sees nothing but the data tiles loaded before it; a read outside them raises, so a stream that
gives the right result proves its tile inference. What it allocates and moves is counted on the way and must
equal F(T) and Q(T) of the model. For small shapes only. Stages other than the anchor and an epilogue in
place are evaluated on whole arrays.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from roller.errors import TileError, counted
from roller.expr import COMBINERS, FUNCTIONS, Cast, Const, IndexValue, Scalar, Stage, Tensor, TensorExpr
from roller.expr import Load as Read
from roller.expr.evaluate import convert_values
from roller.tile.program import RProgram
from tests.tile.instructions import Box, Compute, Instruction, Load, Points, Region, Store, instructions, partial_name

_COMBINE: dict[str, np.ufunc] = {"sum": np.add, "max": np.maximum, "min": np.minimum, "prod": np.multiply}


@dataclass(frozen=True)
class Counts:
    """What a stream allocates and moves, in bytes.

    Parameters
    ----------
    footprint_bytes
        Largest sum of data tiles (borders included) and output tile of one block: F(T).
    traffic_bytes
        Anchor operands loaded, borders excluded, plus the result stored: Q(T).
    epilogue_bytes
        Operands that only the epilogue reads.
    partial_bytes
        Partial results of a split reduction, stored and loaded (in the dtype of the result).
    """

    footprint_bytes: int = 0
    traffic_bytes: int = 0
    epilogue_bytes: int = 0
    partial_bytes: int = 0


def interpret(
    program: RProgram, arrays: Sequence[np.ndarray], stream: Iterable[Instruction] | None = None
) -> tuple[tuple[np.ndarray, ...], Counts]:
    """Execute a program's tile instructions.

    Parameters
    ----------
    program
        The program; its expression names the arrays.
    arrays
        One per input of ``program.expr``, in call order; viewed in the (possibly fused) shapes of the expression.
    stream
        Instructions; those of the program where left out.

    Returns
    -------
    tuple of (tuple of numpy.ndarray, Counts)
        Outputs in float64 (or int64), and what was counted.

    Raises
    ------
    TileError
        Where a Compute or an epilogue reads what was not loaded, or a stream leaves outputs unwritten.

    Examples
    --------
    >>> import numpy as np, roller
    >>> e = roller.ops.matmul(5, 4, 3)
    >>> program = RProgram(e, "gpu", "tiled", (("register", (1, 1, 1)), ("shared", (2, 4, 2))))
    >>> (c,), counts = interpret(program, [np.ones((5, 3)), np.ones((3, 4))])
    >>> float(c.sum()), counts.footprint_bytes, counts.traffic_bytes
    (60.0, 80, 284)
    """
    expr = program.expr
    if len(arrays) != len(expr.inputs):
        raise TileError(f"{expr.name}: expected {counted(len(expr.inputs), 'array')}, got {len(arrays)}.")
    values = {t.name: _wide(np.asarray(a).reshape(t.shape)) for t, a in zip(expr.inputs, arrays, strict=True)}
    counts = Counts()
    for stage in expr.stages:
        if stage is expr.anchor:
            machine = _Machine(program, values)
            for step in stream if stream is not None else instructions(program):
                machine.execute(step)
            values |= machine.results()
            counts = machine.counts()
        elif stage is not expr.epilogue:
            values[stage.name] = _whole(expr, stage, values)
    return tuple(values[name] for name in expr.outputs), counts


def _whole(expr: TensorExpr, stage: Stage, values: Mapping[str, np.ndarray]) -> np.ndarray:
    """Evaluate one stage on whole arrays."""
    reads = tuple(dict.fromkeys(expr.tensors[ld.tensor] for ld in stage.loads))
    alone = TensorExpr(expr.name, reads, (stage,), (stage.name,))
    return alone.evaluate([values[t.name] for t in reads])[0]


def _wide(array: np.ndarray) -> np.ndarray:
    """Return float64, or int64 where the data are integers or booleans."""
    return array.astype(np.int64 if array.dtype.kind in "iub" else np.float64)


@dataclass(frozen=True)
class _Tile:
    """A data tile: values of a region (border positions hold NaN or 0 and are never used), and which are inside."""

    tensor: Tensor
    region: Region
    values: np.ndarray
    inside: np.ndarray

    def find(self, read: Read, env: Mapping[str, np.ndarray]) -> tuple[Any, Any] | None:
        """Return values and inside mask at the points ``env``, or ``None`` where a point is not in this tile."""
        where: list[np.ndarray] = []
        if isinstance(self.region, Points):
            if self.region.index != read.index:
                return None
            for name, start, stop in self.region.axes:
                if env[name].min() < start or env[name].max() >= stop:
                    return None
                where.append(env[name] - start)
        else:
            for index, (start, stop, step) in zip(read.index, self.region.ranges, strict=True):
                at = np.asarray(index(env))
                if at.min() < start or at.max() >= stop or ((at - start) % step).any():
                    return None
                where.append((at - start) // step)
        return self.values[tuple(where)], self.inside[tuple(where)]


def _coordinates(region: Region) -> list[np.ndarray]:
    """Tensor coordinates of a region, one broadcastable array per dimension."""
    if isinstance(region, Box):
        return list(np.ix_(*(np.arange(*r) for r in region.ranges))) if region.ranges else []
    grid = np.ix_(*(np.arange(a, b) for _, a, b in region.axes))
    env = {name: g for (name, _, _), g in zip(region.axes, grid, strict=True)}
    return [np.asarray(i(env)) for i in region.index]


@dataclass
class _Machine:
    """One run: global arrays, the live data tiles of a block, its accumulators, and the counters."""

    program: RProgram
    values: Mapping[str, np.ndarray]
    tiles: list[_Tile] = field(default_factory=list)
    acc: np.ndarray | None = None
    acc_ranges: dict[str, tuple[int, int]] = field(default_factory=dict)
    stored: dict[str, np.ndarray] = field(default_factory=dict)
    written: dict[str, np.ndarray] = field(default_factory=dict)
    footprint: int = 0
    traffic: int = 0
    epilogue: int = 0
    partial: int = 0

    def __post_init__(self) -> None:
        expr = self.program.expr
        self.anchor = expr.anchor
        self.parts = {partial_name(self.anchor, p): self.anchor.output for p in range(self.program.split_k)}
        self.operands = {ld.tensor for ld in self.anchor.loads}

    def execute(self, step: Instruction) -> None:
        """Run one instruction."""
        if isinstance(step, Load):
            self._load(step)
        elif isinstance(step, Compute):
            self._compute(step)
        elif step.tensor in self.parts:
            self._write(step.tensor, step.region, self._result(step))
            self.partial += self.acc_bytes
            self.acc = None
        else:
            self._store(step)

    def _load(self, step: Load) -> None:
        tensor = self.parts.get(step.tensor) or self.program.expr.tensors[step.tensor]
        source = self.stored[step.tensor] if step.tensor in self.parts else self.values[step.tensor]
        at = _coordinates(step.region)
        inside = np.ones(step.region.shape, bool)
        for x, n in zip(at, tensor.shape, strict=True):
            inside = inside & (x >= 0) & (x < n)
        clipped = tuple(np.clip(x, 0, n - 1) for x, n in zip(at, tensor.shape, strict=True))
        found = np.broadcast_to(source[clipped], step.region.shape)
        border = np.nan if found.dtype.kind == "f" else 0
        self.tiles.append(_Tile(tensor, step.region, np.where(inside, found, border), inside))
        moved = int(inside.sum()) * tensor.itemsize_bytes
        if step.tensor in self.parts:
            self.partial += moved
        elif step.tensor in self.operands:
            self.traffic += moved
        else:
            self.epilogue += moved

    @property
    def acc_bytes(self) -> int:
        """Bytes of the present output tile, in the dtype of the anchor's result."""
        return 0 if self.acc is None else self.acc.size * self.anchor.output.itemsize_bytes

    def _ranges(self, region: Points) -> dict[str, tuple[int, int]]:
        """Ranges of a Compute without its padding."""
        extents = self.anchor.extents
        return {name: (start, min(stop, extents[name])) for name, start, stop in region.axes}

    def _compute(self, step: Compute) -> None:
        ranges = self._ranges(step.region)
        own = {a.name: ranges[a.name] for a in self.anchor.spatial_axes}
        if self.acc is None:
            self.acc_ranges = own
        elif own != self.acc_ranges:
            raise TileError(f"{step}: the output tile {self.acc_ranges} has not been stored yet.")
        if any(a.name not in ranges for a in self.anchor.reduction_axes):
            self._combine_parts()
        else:
            grid = np.ix_(*(np.arange(*ranges[a.name]) for a in self.anchor.axes))
            env = {a.name: g for a, g in zip(self.anchor.axes, grid, strict=True)}
            shape = tuple(b - a for a, b in (ranges[x.name] for x in self.anchor.axes))
            body = np.broadcast_to(_wide(np.asarray(self._scalar(self.anchor.body, env, str(step)))), shape)
            self._accumulate(body)
            live = sum(t.values.size * t.tensor.itemsize_bytes for t in self.tiles)
            self.footprint = max(self.footprint, live + self.acc_bytes)
        self.tiles = []

    def _accumulate(self, body: np.ndarray) -> None:
        """Combine the points of one step with what is there; nothing there is the neutral value."""
        combiner = self.anchor.combiner
        if combiner is None:
            self.acc = body
            return
        axes = tuple(i for i, a in enumerate(self.anchor.axes) if a in self.anchor.reduction_axes)
        part = np.asarray(_COMBINE[combiner].reduce(body, axis=axes))
        start = self.acc if self.acc is not None else np.full(part.shape, _neutral(combiner, body.dtype))
        self.acc = np.asarray(_COMBINE[combiner](start, part))

    def _combine_parts(self) -> None:
        """Combine loaded partial results in the order they were loaded."""
        combiner = self.anchor.combiner or "sum"
        env = self._spatial_grid()
        whole = Read(self.anchor.name, self.anchor.store)
        for tile in self.tiles:
            found = tile.find(whole, env)
            if found is None:
                raise TileError(f"the partial result {tile.region} does not hold the output tile {self.acc_ranges}.")
            start = self.acc if self.acc is not None else np.full(found[0].shape, _neutral(combiner, found[0].dtype))
            self.acc = np.asarray(_COMBINE[combiner](start, found[0]))

    def _spatial_grid(self) -> dict[str, np.ndarray]:
        grid = np.ix_(*(np.arange(*self.acc_ranges[a.name]) for a in self.anchor.spatial_axes))
        return {a.name: g for a, g in zip(self.anchor.spatial_axes, grid, strict=True)}

    def _result(self, step: Store) -> np.ndarray:
        if self.acc is None:
            raise TileError(f"{step}: nothing has been computed since the last Store.")
        return self.acc

    def _store(self, step: Store) -> None:
        expr = self.program.expr
        result = self._result(step)
        if expr.epilogue is not None and step.tensor == expr.epilogue.name:
            value = _wide(np.asarray(self._scalar(expr.epilogue.body, self._spatial_grid(), str(step))))
            result = np.broadcast_to(value, result.shape)
        self._write(step.tensor, step.region, result)
        self.traffic += self.acc_bytes
        self.acc, self.tiles = None, []

    def _write(self, tensor: str, region: Region, result: np.ndarray) -> None:
        """Write the output tile at the positions its axes map to, which must be exactly the region."""
        target = self.parts.get(tensor) or self.program.expr.tensors[tensor]
        out = self.stored.setdefault(tensor, np.zeros(target.shape, result.dtype))
        seen = self.written.setdefault(tensor, np.zeros(target.shape, np.int64))
        env = self._spatial_grid()
        at = tuple(np.broadcast_to(np.asarray(i(env)), result.shape) for i in self.anchor.store)
        named = np.zeros(target.shape, bool)
        named[tuple(_coordinates(region))] = True
        mine = np.zeros(target.shape, bool)
        mine[at] = True
        if (named != mine).any():
            raise TileError(f"Store {tensor}{region}: the region is not what the output tile {self.acc_ranges} holds.")
        out[at] = result if at else result.reshape(())  # a scalar has one spatial axis of extent 1
        seen[at] += 1

    def _scalar(self, node: Scalar, env: Mapping[str, np.ndarray], where: str) -> Any:
        if isinstance(node, Const):
            return np.float64(node.value) if "float" in node.dtype else np.int64(node.value)
        if isinstance(node, IndexValue):
            return convert_values(np.asarray(node.index(env)), node.dtype)
        if isinstance(node, Cast):
            return convert_values(np.asarray(self._scalar(node.arg, env, where)), node.dtype)
        if isinstance(node, Read):
            return self._read(node, env, where)
        return FUNCTIONS[node.fn].numpy(*(self._scalar(a, env, where) for a in node.args))

    def _read(self, node: Read, env: Mapping[str, np.ndarray], where: str) -> Any:
        if node.tensor == self.anchor.name:  # the epilogue reads the output tile itself
            return self.acc
        found = None
        for tile in self.tiles:
            if tile.tensor.name == node.tensor:
                found = tile.find(node, env)
            if found is not None:
                break
        if found is None:
            loaded = [f"{t.tensor.name}{t.region}" for t in self.tiles]
            raise TileError(f"{where}: reads '{node.tensor}' outside the loaded regions {loaded}. Load it first.")
        values, inside = found
        valid: Any = np.True_
        for b in node.guard:
            at = b.index(env)
            valid = valid & (at >= b.low) & (at < b.high)
        if (valid & ~inside).any():
            shape = self.program.expr.tensors[node.tensor].shape
            raise TileError(f"{where}: reads '{node.tensor}' outside its shape {shape}. Guard the access.")
        return np.where(valid, values, node.outside) if node.guard else values

    def results(self) -> dict[str, np.ndarray]:
        """Return what was stored, every element exactly once."""
        expr = self.program.expr
        name = (expr.epilogue or self.anchor).name
        writes = self.written.get(name)
        if writes is None or (writes != 1).any():
            raise TileError(f"{expr.name}: expected every element of '{name}' to be stored exactly once.")
        return {name: self.stored[name]}

    def counts(self) -> Counts:
        """Return the counters."""
        return Counts(self.footprint, self.traffic, self.epilogue, self.partial)


def _neutral(combiner: str, dtype: np.dtype[Any]) -> Any:
    """Return the combiner's neutral value, representable in ``dtype``."""
    value = COMBINERS[combiner].neutral
    if dtype.kind == "f" or np.isfinite(value):
        return dtype.type(value)
    return np.iinfo(dtype).min if value < 0 else np.iinfo(dtype).max
