"""The launches of an operator: kernels given by an expression, by the bytes they move, or by their products."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from roller.expr import TensorExpr

#: Units that a library's kernel may use: ``"any"``; ``"matrix"``, a kernel that is there for matrix units alone;
#: ``"planar"``, those that take images in planes of channels, which NVIDIA's matrix units do not; ``"winograd"``,
#: Winograd's algorithm on threads.
Units = Literal["any", "matrix", "planar", "winograd"]
#: What a framework's switches of TF32 tell apart; ``""`` is never computed in TF32.
ProductKind = Literal["", "convolution", "product"]


@dataclass(frozen=True)
class Kernel:
    """Kernels that compute an expression.

    Parameters
    ----------
    expr
        The expression that one kernel computes.
    count
        How many run one after the other.
    units, kind
        Units that a library's kernel may use, and which switch of TF32 applies to it.
    ways
        Other ways in which a library may run it; it takes the fastest.
    own_kernel
        The kernel that runs in its place on NVIDIA's devices: the framework's own, or its library's for such sizes.
    before_cudnn_9
        What NVIDIA's library ran in its place before cuDNN 9.
    cache_bytes
        Bytes that each kernel of a framework moves between the shared cache and its threads; 0 where the expression
        tells.
    """

    expr: TensorExpr
    count: int = 1
    units: Units = "any"
    kind: ProductKind = ""
    ways: tuple[Way, ...] = ()
    own_kernel: Instructions | Fused | None = None
    before_cudnn_9: Instructions | None = None
    cache_bytes: float = 0.0


@dataclass(frozen=True)
class Stream:
    """Kernels bound by memory: their arithmetic overlaps with it.

    Parameters
    ----------
    read_bytes, written_bytes
        Of all kernels, from and to the device's memory.
    launches
        Kernels; 0 for bytes that another launch of the operator moves beside its own.
    threads
        Threads that move the bytes together; ``None``: as many as it takes to saturate memory.
    """

    read_bytes: float
    written_bytes: float
    launches: int = 1
    threads: float | None = None


@dataclass(frozen=True)
class Fused:
    """One kernel of several products whose results between them stay on the chip: fused attention.

    Parameters
    ----------
    products
        Expressions of the products; their arithmetic counts, their traffic does not.
    exponentials
        Exponentials between them: they share no unit with the products, and wait for them.
    read_bytes, written_bytes
        Traffic of the kernel.
    share
        Share of the products' points that is computed: a half under a causal mask.
    launches
        Kernels.
    units, kind, ways, own_kernel, before_cudnn_9
        As of :class:`Kernel`.
    """

    products: tuple[TensorExpr, ...]
    exponentials: float
    read_bytes: float
    written_bytes: float
    share: float = 1.0
    launches: int = 1
    units: Units = "any"
    kind: ProductKind = ""
    ways: tuple[Way, ...] = ()
    own_kernel: Instructions | Fused | None = None
    before_cudnn_9: Instructions | None = None


@dataclass(frozen=True)
class Instructions:
    """A kernel whose threads reuse nothing: it is bound by the instructions that they issue, or by memory.

    Parameters
    ----------
    count
        Instructions of all threads.
    read_bytes, written_bytes
        Traffic of the kernel.
    launches
        Kernels.
    """

    count: float
    read_bytes: float
    written_bytes: float
    launches: int = 1


@dataclass(frozen=True)
class Way:
    """A way in which a library may run a kernel.

    Parameters
    ----------
    kernel
        The kernel in this way, without further ways.
    conversions
        Kernels around it that convert tensors to the layout that its units take, and back.
    """

    kernel: Kernel | Fused
    conversions: tuple[Stream, ...] = ()


@dataclass(frozen=True)
class Wait:
    """The host reads a value: it waits until the queue is empty and the copy has arrived.

    Parameters
    ----------
    read_bytes
        Bytes copied to the host.
    """

    read_bytes: float = 0.0


Launch = Kernel | Stream | Fused | Wait | Instructions
