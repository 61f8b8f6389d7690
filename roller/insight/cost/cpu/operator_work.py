"""The work of an operator on a CPU: arithmetic, tensor bytes, and how the work is divided among cores."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from roller.insight.cost.gpu.operator_view import OperatorView, distinct_bytes, element_count
from roller.insight.trace.trace import TensorRecord

#: Minimum number of loop elements per PyTorch thread (``at::internal::GRAIN_SIZE``).
GRAIN_ELEMENTS = 32768


@dataclass(frozen=True)
class TensorTraffic:
    """A tensor, the number of passes over it, and whether its runs are too short to be prefetched."""

    tensor: TensorRecord
    passes: float = 1.0
    is_scattered: bool = False

    @property
    def size_bytes(self) -> float:
        """Number of bytes moved."""
        return self.passes * distinct_bytes(self.tensor)


@dataclass(frozen=True)
class OperatorWork:
    """Work of one operator on a CPU."""

    reads: tuple[TensorTraffic, ...] = ()
    writes: tuple[TensorTraffic, ...] = ()
    #: Number of multiply-adds in blocked products, and the share of the peak rate that they reach.
    multiplies: float = 0.0
    share: float = 1.0
    #: Number of elements packed before the products, and number of cores that can pack at the same time.
    packed_elements: float = 0.0
    packers: float = 1.0
    #: Number of exponentials over all elements; other functions count as equivalent exponentials.
    exponentials: float = 0.0
    #: Cycles of vectorized code on one core, times the number of elements in a vector; memory traffic and exponentials
    #: are not included.
    vector_cycles: float = 0.0
    #: Cycles of one core in code that processes elements one by one.
    cycles: float = 0.0
    #: Number of elements divided among threads, at least :data:`GRAIN_ELEMENTS` per thread; 0 for a serial operator.
    parallel_elements: float = 0.0
    #: Number of times that threads are forked and joined.
    forks: int = 1
    #: Size in bytes of each internal buffer, and number of times that it is written or read.
    buffers: tuple[tuple[float, float], ...] = ()
    #: Bytes that are read or written in runs too short to be prefetched.
    scattered_bytes: float = 0.0
    #: Dtype of the multiply-adds.
    dtype: str = "float32"
    #: Whether arithmetic overlaps with memory traffic.
    hides: bool = True


#: Maps an operator to its work.
Mapping = Callable[[OperatorView], OperatorWork]


def streaming_work(view: OperatorView, **work: float) -> OperatorWork:
    """Return work that reads every input and writes every output of an operator once."""
    reads = tuple(TensorTraffic(t) for t in dict.fromkeys(view.inputs) if element_count(t))
    writes = tuple(TensorTraffic(t) for t in view.outputs if element_count(t))
    most = max(map(element_count, (*view.inputs, *view.outputs)), default=0)
    return OperatorWork(reads, writes, **{"parallel_elements": float(most), **work})  # type: ignore[arg-type]
