"""What an operator makes a device do: kernels given by an expression, by the bytes they move, or by their products."""

from __future__ import annotations

from dataclasses import dataclass

from roller.expr import TensorExpr


@dataclass(frozen=True)
class Kernel:
    """Kernels that compute an expression.

    Parameters
    ----------
    expr
        What one of them computes.
    count
        How many run one after the other.
    """

    expr: TensorExpr
    count: int = 1


@dataclass(frozen=True)
class Stream:
    """Kernels that only move bytes: their arithmetic hides behind memory.

    Parameters
    ----------
    read_bytes, written_bytes
        Of all kernels together, from and to the device's memory.
    launches
        Kernels; 0 for bytes that another launch of the operator moves beside its own.
    """

    read_bytes: float
    written_bytes: float
    launches: int = 1


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
        What the kernel moves.
    share
        Share of the products' points that is computed: a half under a causal mask.
    launches
        Kernels.
    """

    products: tuple[TensorExpr, ...]
    exponentials: float
    read_bytes: float
    written_bytes: float
    share: float = 1.0
    launches: int = 1


@dataclass(frozen=True)
class Wait:
    """The host reads a value: it goes on when everything queued is done, and a copy has come.

    Parameters
    ----------
    read_bytes
        What is copied to the host.
    """

    read_bytes: float = 0.0


Launch = Kernel | Stream | Fused | Wait
