"""Policies: construct kernels freely, or only kernels like the kernels of a framework's libraries."""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True)
class LibraryPolicy:
    """Properties of the precompiled kernels in a GPU framework, whatever operator they compute.

    Parameters
    ----------
    product_tiles
        Rows and columns of a block's tile of the product, and its number of threads, for kernels on threads (SIMT).
    product_step, product_stages
        Reduction step of those kernels, and copies of its tiles in the scratchpad.
    kept_columns
        Maximum number of columns for which one TEU holds a row in its registers for several reductions in sequence.
    kept_threads
        Threads per such block; each of its TEUs has its own rows.
    row_threads
        Maximum threads of a block that has one row and rereads it for every reduction and for its results.
    moment_threads
        Maximum threads of a block that computes several sums over its row in one pass and rereads it once for its
        results.
    vector_bytes
        Bytes that a thread loads and stores at a time.
    unit_sides
        Sides of a matrix unit's block tiles.
    call_s
        Time from a call to its kernel's start on an empty queue, per tensor that the call creates; if 0, the time of a
        launch.
    matrix_units
        Whether the kernels may use a matrix unit.
    winograd
        Whether the kernels use Winograd's algorithm if the windows allow it.
    rounded
        Dtypes of tensors, and the matrix units' operand dtypes to which they are rounded for multiplication.
    """

    product_tiles: tuple[tuple[int, int, int], ...]
    product_step: int
    product_stages: int
    kept_columns: int
    kept_threads: int
    row_threads: int
    moment_threads: int
    vector_bytes: int
    unit_sides: tuple[int, ...]
    call_s: float = 0.0
    matrix_units: bool = True
    winograd: bool = False
    rounded: tuple[tuple[str, str], ...] = ()


#: The kernels of PyTorch and of cuBLAS below it.
#:
#: Tiles: names of cuBLAS's kernels for float32 (``sgemm_128x64_...``), as profilers of V100, P100, T4 and A100 show
#: them. Rows: PyTorch's ``PersistentSoftmax.cuh`` (a warp holds up to 1024 columns, 128 threads), ``SoftMax.cu`` (a
#: block for a longer row, of up to 1024 threads) and ``layer_norm_kernel.cu`` (Welford's moments, 128 threads);
#: streams: ``TensorIterator`` (vectors of four numbers). The time of a call is the shortest that element-wise kernels
#: on P100, V100, T4 and A100 take beyond their bytes, between events around each (NeuSight's measurements: 15 to 26
#: us). In the same measurements a call that creates three tensors takes three times as long.
_LIBRARY = LibraryPolicy(
    product_tiles=((128, 128, 256), (128, 64, 128), (64, 128, 128), (64, 64, 64), (128, 32, 256), (32, 128, 256)),
    product_step=8,
    product_stages=2,
    kept_columns=1024,
    kept_threads=128,
    row_threads=1024,
    moment_threads=128,
    vector_bytes=16,
    unit_sides=(16, 32, 64, 128, 256),
    call_s=1.5e-5,
)
_GRAPH = replace(_LIBRARY, call_s=0.0)
#: Policies by name. ``None`` constructs freely. ``library`` has the kernels that a framework calls one by one,
#: ``library-graph`` the kernels replayed from a graph, where a call adds only its launches. The variants of the latter
#: have no matrix units, round float32 to TF32 where a unit takes it, or use Winograd's algorithm.
POLICIES: dict[str, LibraryPolicy | None] = {
    "roller": None,
    "library": _LIBRARY,
    "library-graph": _GRAPH,
    "library-graph-threads": replace(_GRAPH, matrix_units=False),
    "library-graph-tf32": replace(_GRAPH, rounded=(("float32", "tfloat32"),)),
    "library-graph-winograd": replace(_GRAPH, matrix_units=False, winograd=True),
}
