"""Which operators are compared, and what MetaSchedule is asked to tune."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.cpu.cases import Case, suite
from roller.expr import Axis, Bound, Load, Scalar, Stage, Tensor, TensorExpr, axis_index, transform_scalar

BATCH = 1
#: The representatives, in order of the report.
KINDS = ("matmul", "conv 3x3", "conv 1x1", "depthwise", "pooling", "reduction")
#: Added to the name of a tensor that is padded.
_PADDED = "_pad"


def kind_of(case: Case) -> str:
    """Return the class of a case, convolutions told apart by the size of their windows."""
    return f"conv {case.row['KH']}x{case.row['KW']}" if case.kind == "conv" else case.kind


def representatives(cases: Sequence[Case]) -> list[Case]:
    """Return the operator of median work of every kind among the 119, at batch 1 (ties by id, the upper middle)."""
    out = []
    for kind in KINDS:
        rows = [c for c in cases if c.set == "roller119" and kind_of(c) == kind]
        rows.sort(key=lambda c: (c.row["flops"], c.id))
        chosen = rows[len(rows) // 2]
        out.append(replace(chosen, batches=(BATCH,)))
    return out


def subject(name: str) -> Case:
    """Return the representative of an id."""
    return next(c for c in representatives(suite()) if c.id == name)


def with_padding(expr: TensorExpr) -> TensorExpr:
    """Return the expression with a stage of its own for every tensor that a reduction reads beyond its borders.

    TVM's operator library writes windows over padding so, and MetaSchedule's rules are made for it: they place the
    padded copy. A condition inside the reduction, as Roller's expressions have it, they can only leave where it is.

    Examples
    --------
    >>> import roller
    >>> row = {"op": "pooling", "pool": "max", "N": 1, "C": 2, "H": 4, "W": 4, "KH": 3, "KW": 3, "stride": 1,
    ...        "pad_top": 1, "pad_bottom": 1, "pad_left": 1, "pad_right": 1}
    >>> padded = with_padding(roller.ops.from_spec(row))
    >>> padded.stages[0].name, padded.stages[0].output.shape
    ('X_pad', (1, 2, 6, 6))
    """
    stages: list[Stage] = []
    for s in expr.stages:
        stages += _split(s, expr.tensors) if s.combiner is not None else [s]
    return replace(expr, stages=tuple(stages))


def _split(stage: Stage, tensors: dict[str, Tensor]) -> list[Stage]:
    """Return the stages that pad what ``stage`` reads, and the stage that reads them."""
    made: dict[str, Stage] = {}

    def leaf(node: Scalar) -> Scalar:
        if not isinstance(node, Load) or not node.guard or node.tensor in made:
            return node
        pad, lows = _padding(node, stage, tensors[node.tensor])
        made[node.tensor] = pad
        index = tuple(replace(i, const=i.const - low) for i, low in zip(node.index, lows, strict=True))
        return Load(pad.name, index)

    body = transform_scalar(stage.body, leaf)
    return [*made.values(), replace(stage, body=body)]


def _padding(load: Load, stage: Stage, tensor: Tensor) -> tuple[Stage, list[int]]:
    """Return the stage that copies what a guarded load reaches, and where that begins in every dimension."""
    guarded = {b.index for b in load.guard}
    reach = [i.range(stage.extents) if i in guarded else (0, extent - 1)
             for i, extent in zip(load.index, tensor.shape, strict=True)]  # fmt: skip
    axes = tuple(Axis(f"p{d}", high - low + 1) for d, (low, high) in enumerate(reach))
    index = tuple(axis_index(a.name, const=low) for a, (low, _) in zip(axes, reach, strict=True))
    moved = dict(zip(load.index, index, strict=True))
    guard = tuple(Bound(moved[b.index], b.low, b.high) for b in load.guard)
    output = Tensor(tensor.name + _PADDED, tuple(a.extent for a in axes), tensor.dtype)
    body = Load(tensor.name, index, guard, load.outside)
    return Stage(output, axes, tuple(axis_index(a.name) for a in axes), body), [low for low, _ in reach]


@dataclass(frozen=True)
class Task:
    """What a database of tuning records depends on."""

    id: str
    threads: int
    cost_model: str
    mcpu: str
    tvm: str

    def folder(self, root: Path) -> Path:
        """Return the folder of its database and journal; another one where anything of it differs."""
        return root / f"{self.id}-{hashlib.sha256(json.dumps(self.settings()).encode()).hexdigest()[:8]}"

    def settings(self) -> dict[str, Any]:
        """Return everything the folder is named by."""
        return {**vars(self), "expression": str(self.expression()), "batch": BATCH}

    def expression(self) -> TensorExpr:
        """Return what is tuned."""
        return with_padding(subject(self.id).expression(BATCH))
