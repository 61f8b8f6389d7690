"""Launches of an operator: kernels described by an expression, by the bytes they move, or by their products."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from roller.expr import TensorExpr

#: Units that a library's kernel may use: ``"any"``; ``"matrix"``, a kernel for matrix units only; ``"planar"``, a
#: kernel that takes images in planes of channels, which NVIDIA's matrix units do not; ``"winograd"``, Winograd's
#: algorithm on threads.
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
    #: Kernel that runs instead on NVIDIA devices: the framework's own, or the library's for such sizes.
    own_kernel: InstructionKernel | FusedKernel | None = None
    #: Kernel that NVIDIA's library ran instead before cuDNN 9.
    before_cudnn_9: InstructionKernel | None = None
    #: Bytes that each kernel moves between the shared cache and its threads; 0: the expression's bytes.
    cache_bytes: float = 0.0


@dataclass(frozen=True)
class MemoryKernel:
    """Memory-bound kernels, whose arithmetic overlaps with the memory traffic."""

    #: Bytes of all kernels together, from and to device memory.
    read_bytes: float
    written_bytes: float
    #: 0 for bytes that another launch of the operator moves in addition to its own.
    launches: int = 1
    #: Threads that move the bytes together; ``None``: as many as saturate memory.
    threads: float | None = None


@dataclass(frozen=True)
class FusedKernel:
    """One kernel for several products whose intermediate results stay on the chip, such as fused attention."""

    #: Their arithmetic counts, their traffic does not.
    products: tuple[TensorExpr, ...]
    #: Exponentials between the products: they use other units, and wait for the products.
    exponentials: float
    read_bytes: float
    written_bytes: float
    #: Share of the products' points that is computed: a half under a causal mask.
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
    """A kernel without data reuse, bound by the instructions that its threads issue or by memory."""

    #: Instructions of all threads.
    count: float
    read_bytes: float
    written_bytes: float
    launches: int = 1


@dataclass(frozen=True)
class KernelVariant:
    """One of the variants in which a library may run a kernel."""

    #: The kernel without further variants.
    kernel: Kernel | FusedKernel
    #: Kernels that convert tensors to the layout that its units take, and back.
    conversions: tuple[MemoryKernel, ...] = ()


@dataclass(frozen=True)
class HostWait:
    """A wait in which the host reads a value, until the queue is empty and the copy has arrived."""

    #: Bytes copied to the host.
    read_bytes: float = 0.0


Launch = Kernel | MemoryKernel | FusedKernel | HostWait | InstructionKernel
