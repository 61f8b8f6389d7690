"""PyTorch's TF32 switches: the float32 operators that a GPU from sm_80 on may compute with 11-bit significands."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch

#: Maps each kind of operators to the section of ``torch.backends`` that has its switch. By default, PyTorch allows TF32
#: only for convolutions ("CUDA semantics", TensorFloat-32).
_SECTIONS: dict[str, Any] = {"convolution": torch.backends.cudnn, "product": torch.backends.cuda.matmul}


def operator_kinds_allowing_tf32() -> list[str]:
    """Return the kinds of operators that may currently be computed in TF32: ``"convolution"``, ``"product"``.

    Examples
    --------
    >>> operator_kinds_allowing_tf32()
    ['convolution']
    """
    return [kind for kind in _SECTIONS if _is_tf32_allowed(kind)]


def _is_tf32_allowed(kind: str) -> bool:
    section = _SECTIONS[kind]
    part = getattr(section, "conv", section)  # newer releases: one switch for convolutions, one for recurrent layers
    precision = getattr(part, "fp32_precision", None)
    return bool(section.allow_tf32) if precision is None else precision == "tf32"


@contextmanager
def preserve_tf32() -> Iterator[None]:
    """Restore the TF32 switches at the end of this context.

    Newer releases of PyTorch give each kind of operator its own precision, in addition to precisions that kinds share.
    A kind that was turned off (``"ieee"``) no longer follows the shared precisions, so each is restored separately.
    """
    with _allow_flag_writes():
        shared = _clear_shared_precisions()
        single, older = _per_kind_precisions(), _legacy_switches()
        _set_precisions(shared)
    try:
        yield
    finally:
        with _allow_flag_writes():
            _clear_shared_precisions()
            for name, value in _legacy_switches().items():
                if older[name] is not None and older[name] != value:
                    _set_legacy_switch(name, older[name])
            # Unchanged precisions are not written: convolutions follow shared precisions until they are set.
            now = _per_kind_precisions()
            _set_precisions({path: value for path, value in single.items() if now[path] != value})
            _set_precisions(shared)


def _allow_flag_writes() -> AbstractContextManager[None]:
    """Allow writes even after ``torch.backends.disable_global_flags``, which PyTorch's own test modules call."""
    writable: AbstractContextManager[None] = getattr(torch.backends, "__allow_nonbracketed_mutation", nullcontext)()
    return writable


#: Sections of ``torch.backends`` whose precision is shared by several kinds of operators, outermost first, and sections
#: with the precision of a single kind.
_SHARED = ("", "cudnn", "mkldnn")
_SINGLE = ("cuda.matmul", "cudnn.conv", "cudnn.rnn", "mkldnn.matmul", "mkldnn.conv", "mkldnn.rnn")


def _iterate_precisions(paths: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Yield each section that has a precision, and its effective precision: a shared one if the section sets none."""
    for path in paths:
        precision = getattr(_backend_section(path), "fp32_precision", None)
        if precision is not None:
            yield path, precision


def _backend_section(path: str) -> Any:
    found: Any = torch.backends
    for name in filter(None, path.split(".")):
        found = getattr(found, name, None)
    return found


def _set_precisions(precisions: dict[str, str]) -> None:
    for path, precision in precisions.items():
        _backend_section(path).fp32_precision = precision


def _clear_shared_precisions() -> dict[str, str]:
    """Set the shared precisions to none, so that each kind's precision can be read; return the previous ones."""
    found = {}
    for path, precision in _iterate_precisions(_SHARED):
        found[path] = precision
        _set_precisions({path: "none"})
    return found


def _per_kind_precisions() -> dict[str, str]:
    return dict(_iterate_precisions(_SINGLE))


def _legacy_switches() -> dict[str, Any]:
    """Return the switches that older releases also have; ``None`` for those that PyTorch refuses to mix with others."""
    found: dict[str, Any] = {}
    for name, read in (
        ("matmul", torch.get_float32_matmul_precision),
        ("cudnn", lambda: _backend_section("cudnn").allow_tf32),
    ):
        try:
            found[name] = read()
        except RuntimeError:
            found[name] = None
    return found


def _set_legacy_switch(name: str, value: Any) -> None:
    if name == "matmul":
        torch.set_float32_matmul_precision(value)
    else:
        _backend_section("cudnn").allow_tf32 = value


def allow_tf32_only_for(kinds: list[str]) -> None:
    """Allow TF32 only for the given kinds of operators."""
    with _allow_flag_writes():
        for kind, section in _SECTIONS.items():
            if _is_tf32_allowed(kind) != (kind in kinds):
                section.allow_tf32 = kind in kinds
