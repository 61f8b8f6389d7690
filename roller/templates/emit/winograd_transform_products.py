"""One-sided products with the matrices of Winograd's algorithm, as expressions that share common subexpressions."""

from __future__ import annotations

from collections.abc import Sequence

from roller.te.emit_tvm_expressions import Expr, constant
from roller.tile.winograd import Matrix

_DTYPE = "float32"


def weighted_sum(coefficients: Sequence[float], values: Sequence[Expr]) -> Expr:
    """Return the sum of products without multiplications by 0 and 1; at least one coefficient must be nonzero."""
    total: Expr | None = None
    for c, v in zip(coefficients, values, strict=True):
        if c == 0.0:
            continue
        if total is not None and c == -1.0:
            total = total - v
            continue
        term = v if c == 1.0 else v * constant(c, _DTYPE)
        total = term if total is None else total + term
    return total


def multiply_by_transform(matrix: Matrix, values: Sequence[Expr]) -> list[Expr]:
    """Return ``matrix @ values``; rows that differ only in signs (opposite points) share their two partial sums."""
    out = []
    for row in matrix:
        sizes = [abs(c) for c in row]
        other = next((r for r in matrix if r != row and [abs(c) for c in r] == sizes), None)
        if other is None:
            out.append(weighted_sum(row, values))
            continue
        first, second = max(row, other), min(row, other)
        same = weighted_sum([a if a == b else 0.0 for a, b in zip(first, second, strict=True)], values)
        opposite = weighted_sum([a if a != b else 0.0 for a, b in zip(first, second, strict=True)], values)
        out.append(same + opposite if row == first else same - opposite)
    return out


def multiply_by_inverse_transform(matrix: Matrix, values: Sequence[Expr]) -> list[Expr]:
    """Return ``matrix @ values`` for ``A^T``, whose columns for opposite points agree up to sign in every row."""
    pairs = [(j, j + 1) for j in range(1, len(values) - 1, 2)]
    sums = [values[0], *(values[i] + values[j] for i, j in pairs), values[-1]]
    differences = [values[0], *(values[i] - values[j] for i, j in pairs), values[-1]]
    kept = [0, *(i for i, _ in pairs), len(values) - 1]
    return [weighted_sum([row[j] for j in kept], differences if n % 2 else sums) for n, row in enumerate(matrix)]
