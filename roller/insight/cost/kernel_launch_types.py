"""Launches of an operator: kernels described by an expression, by the bytes they move, or by their products."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from roller.expr import TensorExpr

#: Units that a library's kernel may use: ``"any"``; ``"matrix"``, matrix units only; ``"planar"``, a kernel for images
#: in the channels-first layout, which NVIDIA's matrix units do not take; ``"winograd"``, a SIMT kernel with Winograd's
#: algorithm.
Units = Literal["any", "matrix", "planar", "winograd"]
#: Kinds of products that a framework's TF32 switches distinguish; ``""`` is never computed in TF32.
ProductKind = Literal["", "convolution", "product"]


@dataclass(frozen=True)
class Kernel:
    """A sequence of ``count`` kernels, each of which computes the expression."""

    expr: TensorExpr
    count: int = 1
    #: Units that a library's kernel may use, and the TF32 switch that applies to it.
    units: Units = "any"
    kind: ProductKind = ""
    #: Other variants that a library may run; the library takes the fastest.
    ways: tuple[KernelVariant, ...] = ()
    #: Kernel that runs instead on NVIDIA devices: the framework's own kernel, or the library's kernel for these sizes.
    own_kernel: InstructionKernel | FusedKernel | None = None
    #: Kernel that cuDNN ran instead before version 9.
    before_cudnn_9: InstructionKernel | None = None
    #: Bytes that each kernel moves between the shared cache and its threads; 0 if they equal the expression's bytes.
    cache_bytes: float = 0.0


@dataclass(frozen=True)
class MemoryKernel:
    """Memory-bound kernels, whose arithmetic overlaps with the memory traffic."""

    #: Bytes that all kernels together read from and write to device memory.
    read_bytes: float
    written_bytes: float
    #: Number of kernels; 0 for bytes that another launch of the operator moves in addition to its own.
    launches: int = 1
    #: Number of threads that move the bytes; ``None`` if they are enough to saturate the memory bandwidth.
    threads: float | None = None


@dataclass(frozen=True)
class FusedKernel:
    """One kernel for several products whose intermediate results stay on the chip, such as fused attention."""

    #: Products whose arithmetic counts; their memory traffic does not.
    products: tuple[TensorExpr, ...]
    #: Number of exponentials between the products; they run on different units but wait for the products.
    exponentials: float
    read_bytes: float
    written_bytes: float
    #: Share of the products' points that is computed: one half under a causal mask.
    share: float = 1.0
    launches: int = 1
    #: For the remaining fields, see :class:`Kernel`.
    units: Units = "any"
    kind: ProductKind = ""
    ways: tuple[KernelVariant, ...] = ()
    own_kernel: InstructionKernel | FusedKernel | None = None
    before_cudnn_9: InstructionKernel | None = None


@dataclass(frozen=True)
class InstructionKernel:
    """A kernel without data reuse, bound by instruction issue or by memory bandwidth."""

    #: Number of instructions, summed over all threads.
    count: float
    read_bytes: float
    written_bytes: float
    launches: int = 1


@dataclass(frozen=True)
class KernelVariant:
    """One variant of a kernel that a library may run."""

    #: The kernel; it has no variants of its own.
    kernel: Kernel | FusedKernel
    #: Kernels that convert tensors to the layout that the kernel's units take and back.
    conversions: tuple[MemoryKernel, ...] = ()


@dataclass(frozen=True)
class HostWait:
    """A wait of the host for a value that it reads: until the queue is empty and the copy has arrived."""

    #: Number of bytes copied to the host.
    read_bytes: float = 0.0


Launch = Kernel | MemoryKernel | FusedKernel | HostWait | InstructionKernel
