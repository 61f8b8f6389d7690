"""The rows of the benchmark: the 119 operators and the further sets, batch reduced where a device asks for it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from fnmatch import fnmatchcase
from functools import lru_cache
from typing import Any

import roller
from benchmarks.gpu.plan import Planned
from benchmarks.tables import read_table
from roller.errors import ExprError, RollerError
from roller.hardware import DeviceSpec

#: A kernel predicted to run longer has its batch halved: ten candidates take at least ten runs each (seconds).
LONGEST_S = 0.05
#: Inputs and outputs take at most this part of the device's memory: the peer has outputs and workspaces of its own.
MEMORY_SHARE = 0.25
#: Published rows whose size is the batch's, by operator: the column that is halved.
_BATCH_COLUMN = {"matmul": "M", "conv2d": "N", "depthwise_conv2d": "N", "pooling": "N"}


def rows(pattern: str = "*") -> list[Planned]:
    """Return all operators whose id matches, with their sets.

    Raises
    ------
    ExprError
        Where none matches.
    """
    main, extra = _data("operators")["operators"], _data("extra_operators")
    named: Mapping[str, list[str]] = extra["sets"]
    planned = [Planned(r, (r["op"], "all 119", *(s for s, ids in named.items() if r["id"] in ids))) for r in main]
    planned += [
        Planned(r, (r["set"],), (r["note"],) if "note" in r else ()) for r in (*extra["operators"], *extra["gpu"])
    ]
    patterns = [p.strip() for p in pattern.split(",")]
    found = [p for p in planned if any(fnmatchcase(p.id, x) for x in patterns)]
    if not found:
        raise ExprError(
            f"--filter: '{pattern}' matches none of {len(planned)} operators. Use ids such as 'M0' or 'C*'."
        )
    return found


@lru_cache(maxsize=2)
def _data(name: str) -> Mapping[str, Any]:
    return read_table(f"{name}.yaml")


def halved(row: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the row at half the batch, or ``None`` where that is odd.

    Examples
    --------
    >>> halved({"op": "matmul", "M": 8, "N": 3, "K": 2, "flops": 96})["M"]
    4
    """
    out = dict(row)
    if "shape" in row:
        size, *rest = row["shape"]
        out["shape"] = [size // 2, *rest]
    else:
        column = _BATCH_COLUMN[row["op"]]
        size = row[column]
        out[column] = size // 2
    if "flops" in row:
        out["flops"] = row["flops"] // 2
    return None if size % 2 else out


def fitted(planned: Planned, spec: DeviceSpec) -> Planned:
    """Reduce the batch until the operator fits the device's memory, the time, and construction; say so in the notes."""
    row, why, divisor = dict(planned.row), "", 1
    while True:
        reason = _too_large(row, spec)
        if not reason:
            break
        why, smaller = why or reason, halved(row)
        if smaller is None:
            return replace(planned, left_out=reason)
        row, divisor = smaller, divisor * 2
    notes = (*planned.notes, f"batch divided by {divisor}: {why}") if divisor > 1 else planned.notes
    return replace(planned, row=row, notes=notes)


def _too_large(row: Mapping[str, Any], spec: DeviceSpec) -> str:
    """Return why the row is too large, or an empty string."""
    expr = roller.ops.from_spec(row)
    nbytes = sum(t.nbytes for t in (*expr.inputs, *expr.output_tensors))
    memory = spec.memory_layers[-1].capacity_bytes
    if nbytes > MEMORY_SHARE * memory:
        return f"{nbytes / 1e9:.1f} GB of inputs and outputs in {memory / 1e9:.0f} GB"
    try:
        seconds = roller.construct(expr, spec, top_k=1)[0].estimate.seconds
    except RollerError as err:
        return str(err)
    return f"predicted {seconds * 1e3:.0f} ms" if seconds > LONGEST_S else ""


def chosen_for_compile(planned: Iterable[Planned]) -> set[str]:
    """Return the subset ``torch.compile`` is tuned for: of every set the operator of median size, and what it fuses.

    That is softmax and norms. Autotuning takes tens of seconds per operator, so the whole list would not end in time.
    """
    sets: dict[str, list[Planned]] = {}
    for p in planned:
        if not p.left_out:
            sets.setdefault(p.sets[-1], []).append(p)
    median = {sorted(x, key=lambda p: p.row.get("flops", 0))[len(x) // 2].id for x in sets.values()}
    return median | {p.id for p in sets.get("rows", ())}
