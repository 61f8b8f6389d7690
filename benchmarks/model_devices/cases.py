"""Published kernels as cases: an expression, the tile that ran where it is known, its measured time, a roofline."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace

import roller
from benchmarks.common import reference
from roller.hardware import DeviceSpec

#: Specification of every device of the tables.
SPECS = {
    "v100-pcie-32gb": "v100", "a100-pcie-40gb": "a100", "p100-pcie-16gb": "p100", "t4": "t4", "h100-sxm": "h100",
    "a100-sxm-80gb": "a100-80",
}  # fmt: skip
#: Reduction step of cuBLAS's SIMT kernels, tiles of it in the scratchpad (the next one is fetched while one is
#: multiplied), and the longer and shorter side of a thread's tile by its outputs.
SIMT_STEP, SIMT_STAGES, THREAD_TILES = 8, 2, {16: (4, 4), 32: (8, 4), 64: (8, 8), 128: (16, 8)}
#: Rows of a matrix product from which on it is judged as a large one.
LARGE_ROWS = 512
#: What families of kernels that a library's policy prices are called behind their name.
LIBRARY = ", library"
#: Functions of :func:`roller.ops.elementwise` by the tables' operators; a ``u`` at the end: the operand is a number.
_BINARY = ("add", "mul", "div", "pow")
_UNARY = ("relu", "gelu", "tanh")


@dataclass(frozen=True)
class Case:
    """One published time.

    Parameters
    ----------
    device
        As the tables call it; a key of :data:`SPECS`.
    family
        What it is summed up with: ``linear``, ``bmm``, ``bf16 m>=512``, ``bf16 m<512``, ``element-wise``, ``softmax``,
        ``layer norm``; and the last three, of our own kernels, with those of a library (:data:`LIBRARY`).
    shape
        What tells it from others of its family.
    measured_s
        The published time.
    expression
        Makes what was computed.
    tiles, stages
        The tile that ran and its copies in the scratchpad, as :func:`roller.predict` takes them; ``None`` where it is
        unknown.
    warm
        Inputs that were in the shared cache as far as it holds them: calls were repeated, with weights that were not.
    policy
        Whose kernels are priced, and beside tiles who called them, as :func:`roller.predict` takes it; ``None`` for
        ours. Events around each call of the framework took the times of all float32 kernels, so that they have the
        time of its call in them; the products of 16 bits were replayed from a graph.
    """

    device: str
    family: str
    shape: tuple[str | int, ...]
    measured_s: float
    expression: Callable[[], roller.TensorExpr] = field(compare=False)
    tiles: Mapping[str, Mapping[str, int]] | None = None
    stages: int = 1
    warm: tuple[str, ...] = ()
    policy: str | None = None

    @property
    def spec(self) -> str:
        """Name of the device's specification."""
        return SPECS[self.device]

    @property
    def is_matrix(self) -> bool:
        """Whether a matrix unit computed it."""
        return self.family.startswith("bf16")


def cases() -> Iterator[Case]:
    """Yield all published times."""
    yield from _simt_products()
    yield from _matrix_products()
    yield from _rows()


def _simt_products() -> Iterator[Case]:
    for row in reference("fp32_gemm_library_tiles"):
        batch, m, n, k, i, j, threads = (int(row[c]) for c in ("batch", "m", "n", "k", "block_m", "block_n", "threads"))
        longer, shorter = THREAD_TILES[i * j // threads]
        thread = (longer, shorter) if i >= j else (shorter, longer)
        tiles = {"shared": {"i": i, "j": j, "k": SIMT_STEP}, "register": {"i": thread[0], "j": thread[1]}}
        yield Case(
            row["device"], row["family"], (batch, m, n, k, f"{i}x{j}"), _seconds(row),
            _product(m, n, k, batch if row["family"] == "bmm" else None, row["layout"] == "tn"), tiles, SIMT_STAGES,
            policy="library",
        )  # fmt: skip


def _product(m: int, n: int, k: int, batch: int | None, transposed: bool) -> Callable[[], roller.TensorExpr]:
    return lambda: roller.ops.matmul(m, n, k, batch=batch, transpose_b=transposed)


def _matrix_products() -> Iterator[Case]:
    for row in reference("bf16_gemm_library"):
        m, n, k = (int(row[c]) for c in "mnk")
        family = f"bf16 m{'>=' if m >= LARGE_ROWS else '<'}{LARGE_ROWS}"
        yield Case(row["device"], family, (m, n, k), _seconds(row), _bf16(m, n, k), warm=("A",))


def _bf16(m: int, n: int, k: int) -> Callable[[], roller.TensorExpr]:
    return lambda: roller.ops.matmul(m, n, k, dtype="bfloat16")


def _rows() -> Iterator[Case]:
    for row in reference("fp32_rows_library"):
        operator, shape = row["operator"], (int(row["rows"]), int(row["columns"]))
        family = {"softmax": "softmax", "ln": "layer norm"}.get(operator, "element-wise")
        ours = Case(row["device"], family, (operator, *shape), _seconds(row), _row_expression(operator, shape))
        yield from (ours, replace(ours, family=family + LIBRARY, policy="library"))


def _row_expression(operator: str, shape: tuple[int, int]) -> Callable[[], roller.TensorExpr]:
    if operator == "softmax":
        return lambda: roller.ops.softmax(shape)
    if operator == "ln":
        return lambda: roller.ops.layer_norm(shape)
    if operator in _UNARY:
        return lambda: roller.ops.elementwise(operator, shape)
    function = operator.removesuffix("u")
    if function not in _BINARY:
        raise KeyError(f"fp32_rows_library.csv: expected an operator of {(*_BINARY, *_UNARY)}, got '{operator}'.")
    other = shape if operator == function else (1,)
    return lambda: roller.ops.elementwise(function, shape, other_shapes=(other,))


def _seconds(row: Mapping[str, str]) -> float:
    return float(row["time_ms"]) * 1e-3


def roofline_s(expr: roller.TensorExpr, spec: DeviceSpec) -> float:
    """Return the plain roofline: peak rate of the dtype, compulsory bytes at the bus."""
    moved = sum(t.nbytes for t in (*expr.inputs, *expr.output_tensors)) / spec.layer("global").bandwidth_bytes_per_s
    if not expr.anchor.combiner or len(expr.stages) > 1:
        return moved
    dtype, rates = expr.inputs[0].dtype, spec.compute.ops_per_cycle_per_unit
    peak = max(rates.get(f"{unit}.{dtype}", 0.0) for unit in ("matrix", "group_matrix", "fma")) or rates["fma"]
    points = math.prod(a.extent for a in expr.axes)
    return max(points / (peak * spec.units * spec.clock_hz), moved)
