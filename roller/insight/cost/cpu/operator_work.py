"""The work of an operator on a processor: arithmetic, bytes of tensors, and its division among cores."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from roller.insight.cost.gpu.operator_view import View, distinct_bytes, element_count
from roller.insight.trace.trace import TensorRecord

#: Elements from which on PyTorch hands a loop to a further thread (``at::internal::GRAIN_SIZE``).
GRAIN_ELEMENTS = 32768


@dataclass(frozen=True)
class Traffic:
    """A tensor, how many times it is read or written, and whether in runs too short to be prefetched."""

    tensor: TensorRecord
    passes: float = 1.0
    is_strewn: bool = False

    @property
    def size_bytes(self) -> float:
        """Bytes that are moved."""
        return self.passes * distinct_bytes(self.tensor)


@dataclass(frozen=True)
class Work:
    """One operator.

    Parameters
    ----------
    reads, writes
        Tensors, in order of access.
    multiplies
        Multiply-adds of blocked products.
    share
        Share of the rate of multiply-adds that they reach.
    packed_elements, packers
        Elements that are rearranged before products, and how many cores can do so at a time.
    exponentials
        Exponentials of all elements, or other functions in equivalent exponentials.
    vector_cycles
        Cycles of a core, times the elements of a vector, in addition to bytes and exponentials.
    cycles
        Cycles of a core in code that takes elements one by one.
    parallel_elements
        Elements shared among threads, each of which takes :data:`GRAIN_ELEMENTS` at least; 0 for a serial operator.
    forks
        Number of forks and joins of threads.
    buffers
        Bytes of buffers of its own, and how many times each is written or read.
    strewn_bytes
        Bytes that are read or written in runs too short to be prefetched.
    dtype
        Of the multiply-adds.
    hides
        Whether arithmetic overlaps with memory traffic.
    """

    reads: tuple[Traffic, ...] = ()
    writes: tuple[Traffic, ...] = ()
    multiplies: float = 0.0
    share: float = 1.0
    packed_elements: float = 0.0
    packers: float = 1.0
    exponentials: float = 0.0
    vector_cycles: float = 0.0
    cycles: float = 0.0
    parallel_elements: float = 0.0
    forks: int = 1
    buffers: tuple[tuple[float, float], ...] = ()
    strewn_bytes: float = 0.0
    dtype: str = "float32"
    hides: bool = True


#: How an operator becomes work.
Mapping = Callable[[View], Work]


def stream_inputs_to_outputs(view: View, **work: float) -> Work:
    """Return work that reads every input of an operator and writes every output once."""
    reads = tuple(Traffic(t) for t in dict.fromkeys(view.inputs) if element_count(t))
    writes = tuple(Traffic(t) for t in view.outputs if element_count(t))
    most = max(map(element_count, (*view.inputs, *view.outputs)), default=0)
    return Work(reads, writes, **{"parallel_elements": float(most), **work})  # type: ignore[arg-type]
