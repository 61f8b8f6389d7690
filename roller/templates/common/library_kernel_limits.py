"""Policies of construction: allow all kernels, or only those that resemble the kernels of a framework's libraries."""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True)
class LibraryPolicy:
    """Properties that all precompiled kernels of a GPU framework share.

    Parameters
    ----------
    product_tiles
        Rows, columns and number of threads of each block tile that SIMT kernels for products may use.
    product_step, product_stages
        Reduction step of these kernels, and number of copies of each staged tile in the scratchpad.
    kept_columns
        Maximum number of columns of a row that one TEU keeps in its registers for several successive reductions.
    kept_threads
        Number of threads in a block whose TEUs keep rows in registers; each TEU has its own rows.
    row_threads
        Maximum number of threads in a block that has one row and rereads it for every reduction and for its results.
    moment_threads
        Maximum number of threads in a block that computes several sums over its row in one pass and rereads the row
        once for its results.
    vector_bytes
        Number of bytes that a thread loads or stores at a time.
    unit_sides
        Side lengths of block tiles for a matrix unit.
    call_s
        Seconds from a call to the start of its kernel on an empty queue, per tensor that the call creates; 0 if the
        kernel is launched without a call.
    matrix_units
        Whether the kernels may use a matrix unit.
    winograd
        Whether the kernels use Winograd's algorithm for windows that allow it.
    rounded
        Pairs of a tensor's dtype and the matrix unit's operand dtype to which elements are rounded for multiplication.
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


#: The kernels of PyTorch and of cuBLAS, which it calls.
#:
#: Tiles come from the names of cuBLAS's float32 kernels (``sgemm_128x64_...``) in profiles of V100, P100, T4 and A100.
#: Rows come from PyTorch's ``PersistentSoftmax.cuh`` (a warp holds up to 1024 columns; 128 threads), ``SoftMax.cu``
#: (one block per longer row; up to 1024 threads) and ``layer_norm_kernel.cu`` (Welford's moments; 128 threads). Streams
#: come from ``TensorIterator`` (vectors of four numbers). The time of a call is the shortest time that element-wise
#: kernels on P100, V100, T4 and A100 take in addition to moving their bytes, measured with events around each kernel
#: (NeuSight's measurements: 15 to 26 us). In the same measurements, a call that creates three tensors takes three times
#: as long.
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
#: Named policies. ``None`` allows all kernels. ``library`` is for kernels that a framework calls one by one, and
#: ``library-graph`` for kernels replayed from a graph, where a call adds only the time of its launches. The variants of
#: ``library-graph`` use no matrix units, round float32 to TF32 for matrix units that support it, or use Winograd's
#: algorithm.
POLICIES: dict[str, LibraryPolicy | None] = {
    "roller": None,
    "library": _LIBRARY,
    "library-graph": _GRAPH,
    "library-graph-threads": replace(_GRAPH, matrix_units=False),
    "library-graph-tf32": replace(_GRAPH, rounded=(("float32", "tfloat32"),)),
    "library-graph-winograd": replace(_GRAPH, matrix_units=False, winograd=True),
}
