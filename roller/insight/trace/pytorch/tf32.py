"""PyTorch's switches of TF32: which float32 operators a GPU from sm_80 on may compute with operands of 11 digits."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

#: Kind of operators -> the section of ``torch.backends`` that has its switch. By default PyTorch allows TF32 for
#: convolutions alone ("CUDA semantics", TensorFloat-32).
_SECTIONS: dict[str, Any] = {"convolution": torch.backends.cudnn, "product": torch.backends.cuda.matmul}


def tf32_kinds() -> list[str]:
    """Return the kinds of operators that may be computed in TF32 now: ``"convolution"``, ``"product"``.

    Examples
    --------
    >>> tf32_kinds()
    ['convolution']
    """
    return [kind for kind in _SECTIONS if _is_allowed(kind)]


def _is_allowed(kind: str) -> bool:
    section = _SECTIONS[kind]
    part = getattr(section, "conv", section)  # newer releases: one switch for convolutions, one for recurrent layers
    precision = getattr(part, "fp32_precision", None)
    return bool(section.allow_tf32) if precision is None else precision == "tf32"


@contextmanager
def tf32_restored() -> Iterator[None]:
    """Restore the switches at the end."""
    before = {kind: _is_allowed(kind) for kind in _SECTIONS}
    try:
        yield
    finally:
        set_tf32([kind for kind, allowed in before.items() if allowed])


def set_tf32(kinds: list[str]) -> None:
    """Allow TF32 for kinds of operators alone."""
    for kind, section in _SECTIONS.items():
        if _is_allowed(kind) != (kind in kinds):
            section.allow_tf32 = kind in kinds
