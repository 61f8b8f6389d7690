"""Instruction-set features implied by an architecture's name."""

from __future__ import annotations

import re

#: First CUDA architecture with register-free copies from global memory to the scratchpad (``cp.async``; PTX
#: ISA, section "Data Movement and Conversion Instructions: cp.async").
_ASYNC_COPIES = 80
#: First CUDA architecture with float32 maximum and minimum that propagate NaN (``max.NaN.f32``; PTX ISA, section
#: "Floating Point Instructions: max").
_NAN_EXTREMA = 80
#: Matrix instructions that reach the peak of one architecture only: ``wgmma`` and ``tcgen05`` of the PTX ISA.
#: sm_120 has neither.
_OWN_MATRIX = {90: "wgmma", 100: "tcgen05", 101: "tcgen05", 103: "tcgen05"}


def cuda_architecture_number(arch: str) -> int:
    """Return the number of a CUDA architecture, or 0 for other names.

    >>> cuda_architecture_number("sm_90a"), cuda_architecture_number("gfx906")
    (90, 0)
    """
    found = re.fullmatch(r"sm_(\d+)[af]?", arch)
    return int(found[1]) if found else 0


def has_async_copies(arch: str) -> bool:
    """Return whether kernels for the architecture use asynchronous copies into the scratchpad.

    >>> has_async_copies("sm_80"), has_async_copies("sm_70"), has_async_copies("gfx90a")
    (True, False, False)
    """
    return cuda_architecture_number(arch) >= _ASYNC_COPIES


def has_nan_extrema(arch: str) -> bool:
    """Return whether the architecture has float32 maximum and minimum instructions that propagate NaN.

    >>> has_nan_extrema("sm_80"), has_nan_extrema("sm_75"), has_nan_extrema("gfx90a")
    (True, False, False)
    """
    return cuda_architecture_number(arch) >= _NAN_EXTREMA


def architecture_matrix_family(arch: str) -> str:
    """Return the architecture-specific matrix instructions needed for peak throughput, or ``""`` if none are.

    >>> architecture_matrix_family("sm_90"), architecture_matrix_family("sm_100"), architecture_matrix_family("sm_89")
    ('wgmma', 'tcgen05', '')
    """
    return _OWN_MATRIX.get(cuda_architecture_number(arch), "")
