"""Builds operators from benchmark rows (benchmarks/operators.yaml)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from roller.errors import ExprError, did_you_mean, shown
from roller.expr import TensorExpr
from roller.ops.conv2d import conv2d
from roller.ops.depthwise_conv2d import depthwise_conv2d
from roller.ops.elementwise import elementwise
from roller.ops.matmul import matmul
from roller.ops.norms import layer_norm, rms_norm
from roller.ops.operator_argument_checks import check_choice, check_shape, extent, normalize_padding
from roller.ops.pool2d import pool2d
from roller.ops.reduce import reduce
from roller.ops.sliding_windows_and_convolutions import same_padding_total
from roller.ops.softmax import softmax

#: Batch size of rows without a column ``N``: 128, as in section 5 of the Roller paper.
DEFAULT_BATCH = 128
#: Number of rows per sequence in the benchmark's matmuls and row reductions (65536 rows at batch 128).
_ROWS_PER_SEQUENCE = 512


#: Size columns, which are upper-case in the benchmark; rows may also use the lower-case names of :mod:`roller.ops`.
_SIZES = ("M", "N", "K", "C", "H", "W", "F", "KH", "KW")


class _BenchmarkRow:
    """A benchmark row; its error messages name it, and unused columns are ignored."""

    def __init__(self, row: Mapping[str, Any], batch: int | None) -> None:
        spelt = {name.lower(): name for name in _SIZES if name not in row}
        self.row, self.batch = {spelt.get(column, column): value for column, value in row.items()}, batch
        self.name = f"operator row {row['id'] if isinstance(row.get('id'), str) else shown(dict(row))}"

    def get(self, column: str) -> Any:
        if column not in self.row:
            raise ExprError(f"{self.name}: missing column '{column}'{did_you_mean(column, self.row) or '.'} Add it.")
        return self.row[column]

    def integer_columns(self, *columns: str) -> tuple[Any, ...]:
        return tuple(self.get(c) for c in columns)

    @property
    def n(self) -> Any:
        """Batch size from the argument, the row, or the benchmark's default."""
        return self.batch if self.batch is not None else self.row.get("N", DEFAULT_BATCH)

    @property
    def shape(self) -> tuple[Any, ...]:
        shape = check_shape(self.name, self.get("shape"))
        return shape if self.batch is None else (self.rows(shape[0]), *shape[1:])

    def rows(self, rows: Any) -> Any:
        """Return ``rows`` for the batch, if given: 65536 rows become ``512 * batch``, any other number ``batch``."""
        if self.batch is None:
            return rows
        return _ROWS_PER_SEQUENCE * self.batch if rows == _ROWS_PER_SEQUENCE * DEFAULT_BATCH else self.batch

    @property
    def dtype(self) -> Any:
        return self.row.get("dtype", "float32")

    @property
    def dtypes(self) -> dict[str, Any]:
        """Dtypes of a sum of products: storage and, if given, accumulator and output."""
        return {"dtype": self.dtype, "acc_dtype": self.row.get("acc_dtype"), "out_dtype": self.row.get("out_dtype")}

    @property
    def layouts(self) -> dict[str, Any]:
        """``layout`` and ``kernel_layout``, as far as the row has them."""
        return {k: self.row[k] for k in ("layout", "kernel_layout") if k in self.row}

    @property
    def padding(self) -> tuple[int, ...]:
        """Padding from the ``pad_*`` columns if there are any, otherwise from ``padding``: SAME, VALID or numbers."""
        sides = ("pad_top", "pad_bottom", "pad_left", "pad_right")
        if any(s in self.row for s in sides):
            return tuple(extent(self.name, s, self.row.get(s, 0), 0) for s in sides)
        mode = self.row.get("padding", "VALID")
        if not isinstance(mode, str):
            return normalize_padding(self.name, mode)
        if mode not in ("SAME", "VALID"):
            raise ExprError(f"{self.name}: column 'padding': expected SAME, VALID or numbers, got {shown(mode)}.")
        if mode == "VALID":
            return (0, 0, 0, 0)
        stride, dilation = (extent(self.name, c, self.row.get(c, 1)) for c in ("stride", "dilation"))
        sides_out: list[int] = []
        for size, kernel in (("H", "KH"), ("W", "KW")):
            n, k = (extent(self.name, c, self.get(c)) for c in (size, kernel))
            total = same_padding_total(n, dilation * (k - 1) + 1, stride)
            sides_out += [total // 2, total - total // 2]
        return tuple(sides_out)


def _matmul_from_row(r: _BenchmarkRow) -> TensorExpr:
    m, n, k = extent(r.name, "M", r.get("M")), *r.integer_columns("N", "K")
    # Only M for sequences scales with the batch; a small M belongs to the layer.
    rows = r.rows(m) if m == _ROWS_PER_SEQUENCE * DEFAULT_BATCH else m
    transposed = r.row.get("transpose_a", False), r.row.get("transpose_b", False)
    return matmul(rows, n, k, r.row.get("batch"), *transposed, **r.dtypes)


def _conv2d_from_row(r: _BenchmarkRow) -> TensorExpr:
    c, h, w, f, kh, kw = r.integer_columns("C", "H", "W", "F", "KH", "KW")
    stride, dilation, groups = r.row.get("stride", 1), r.row.get("dilation", 1), r.row.get("groups", 1)
    return conv2d(r.n, c, h, w, f, kh, kw, stride, r.padding, dilation, groups, **r.layouts, **r.dtypes)


def _depthwise_from_row(r: _BenchmarkRow) -> TensorExpr:
    c, h, w, kh, kw = r.integer_columns("C", "H", "W", "KH", "KW")
    return depthwise_conv2d(r.n, c, h, w, kh, kw, stride=r.row.get("stride", 1), padding=r.padding,
                            dilation=r.row.get("dilation", 1), multiplier=r.row.get("multiplier", 1),
                            **r.layouts, dtype=r.dtype)  # fmt: skip


def _pooling_from_row(r: _BenchmarkRow) -> TensorExpr:
    c, h, w, kh, kw = r.integer_columns("C", "H", "W", "KH", "KW")
    layout = r.row.get("layout", "NCHW")
    return pool2d(r.get("pool"), r.n, c, h, w, kh, kw, stride=r.row.get("stride", 1), padding=r.padding,
                  layout=layout, dtype=r.dtype)  # fmt: skip


def _elementwise_from_row(r: _BenchmarkRow) -> TensorExpr:
    return elementwise(r.get("fn"), r.shape, dtype=r.dtype)


def _reduce_from_row(r: _BenchmarkRow) -> TensorExpr:
    return reduce(r.get("fn"), r.shape, r.get("axes"), dtype=r.dtype)


def _row_operator_builder(build: Callable[..., TensorExpr]) -> Callable[[_BenchmarkRow], TensorExpr]:
    return lambda r: build(r.shape, dtype=r.dtype)


_OPS: dict[str, Callable[[_BenchmarkRow], TensorExpr]] = {
    "matmul": _matmul_from_row, "conv2d": _conv2d_from_row, "depthwise_conv2d": _depthwise_from_row,
    "pooling": _pooling_from_row,
    "elementwise": _elementwise_from_row, "reduce": _reduce_from_row, "softmax": _row_operator_builder(softmax),
    "layer_norm": _row_operator_builder(layer_norm), "rms_norm": _row_operator_builder(rms_norm),
}  # fmt: skip


def from_spec(mapping: Mapping[str, Any], batch: int | None = None) -> TensorExpr:
    """Build the operator of one benchmark row.

    Parameters
    ----------
    mapping
        A row: ``op``, its sizes in upper or lower case, ``dtype``, and, for matrix products and convolutions,
        ``acc_dtype`` and ``out_dtype``. ``fn`` or ``pool`` selects the kind, and ``pad_*`` columns override
        ``padding``. Other columns are ignored.
    batch
        Replaces ``N`` or the first dimension of ``shape``. The benchmark's 65536 rows (``M`` of its matmuls, first
        dimension of a reduction) are 128 sequences of 512: they become ``512 * batch``.

    Returns
    -------
    TensorExpr
        The operator.

    Raises
    ------
    ExprError
        If the operator is unknown, or a column is missing or malformed.

    Examples
    --------
    >>> str(from_spec({"op": "matmul", "M": 65536, "N": 1024, "K": 2}, batch=1))
    'matmul[i=512 j=1024 k=2] float32'
    """
    if not isinstance(mapping, Mapping):
        raise ExprError(f"operator row: expected a mapping of columns, got {type(mapping).__name__}. Pass one row.")
    row = _BenchmarkRow(mapping, None if batch is None else extent("operator row", "batch", batch))
    return _OPS[check_choice(row.name, "op", row.get("op"), sorted(_OPS), "op")](row)
