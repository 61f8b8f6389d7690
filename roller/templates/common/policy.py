"""Whose kernels are constructed: our own, or those that a framework's libraries have, as properties of programs."""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True)
class LibraryPolicy:
    """What the precompiled kernels of a GPU framework are like, whatever operator they compute.

    Parameters
    ----------
    product_tiles
        Tiles of a block, rows and columns of the product, and its threads: kernels of threads (SIMT).
    product_step, product_stages
        Reduction step of those kernels, and copies of its tiles in the scratchpad.
    kept_columns
        Columns up to which one TEU holds a row in its registers, where reductions follow each other.
    kept_threads
        Threads of such a block; its TEUs have rows of their own.
    row_threads
        Threads of a block that has one row, and reads it again for every reduction and for its results, at most.
    moment_threads
        Those of a block that takes several sums over its row in one pass, and reads it once more for its results.
    vector_bytes
        Bytes that a thread loads and stores at a time.
    unit_sides
        Sides of a matrix unit's block tiles.
    call_s
        Time from a call to its kernel's start where nothing is queued before it, per tensor that the call makes; 0:
        that of a launch.
    matrix_units
        Whether its kernels may use a matrix unit.
    winograd
        Whether its kernels use Winograd's algorithm where the windows allow it.
    rounded
        Dtypes of tensors, and the operands of matrix units to which they are rounded as they are multiplied.
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
#: Tiles: names of cuBLAS's kernels for float32 (``sgemm_128x64_...``), as profilers of V100, P100, T4 and A100 tell
#: them. Rows: PyTorch's ``PersistentSoftmax.cuh`` (a warp holds up to 1024 columns, 128 threads), ``SoftMax.cu`` (a
#: block for a longer row, of up to 1024 threads) and ``layer_norm_kernel.cu`` (Welford's moments, 128 threads);
#: streams: ``TensorIterator`` (vectors of four numbers). The time of a call is the least that element-wise kernels of
#: P100, V100, T4 and A100 take beyond their bytes, between events around each (NeuSight's measurements: 15 to 26 us);
#: that a call which makes three tensors takes three times as long agrees with the same measurements.
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
#: What constructs programs freely, by name (``None``), and what only knows others' kernels: called one by one by a
#: framework, or replayed from a graph, where launches are all that a call adds; of a graph also those without matrix
#: units alone, those that round float32 to TF32 where a unit takes it, and those of Winograd's algorithm.
POLICIES: dict[str, LibraryPolicy | None] = {
    "roller": None,
    "library": _LIBRARY,
    "library-graph": _GRAPH,
    "library-graph-threads": replace(_GRAPH, matrix_units=False),
    "library-graph-tf32": replace(_GRAPH, rounded=(("float32", "tfloat32"),)),
    "library-graph-winograd": replace(_GRAPH, matrix_units=False, winograd=True),
}
