"""Every TVM name that moved between releases, in one place (written for apache-tvm 0.27).

Nothing else in roller names ``tvm.sym``, ``tvm.tirx`` or ``tvm.s_tir``: a move in a later release is
a change of this file.
"""

from __future__ import annotations

import functools
import sys
from typing import Any

try:
    import tvm
    import tvm_ffi
    from tvm import te, tirx
    from tvm.s_tir import Schedule
    from tvm.s_tir.schedule.schedule import ScheduleError
except ImportError as err:  # pragma: no cover - exercised only without TVM
    raise ImportError(
        f"roller's code generation: expected apache-tvm, got {err}. Install it with 'pip install roller[tvm]'."
    ) from err

__all__ = [
    "Schedule", "ScheduleError", "default_pipeline", "dtype_of", "register_reducers", "split_host_device", "te", "tirx",
    "tvm", "tvm_ffi",
]  # fmt: skip


def dtype_of(expr: Any) -> str:
    """Return the dtype name of a primitive expression."""
    return str(expr.ty.dtype)


def default_pipeline(target: Any) -> Any:
    """Return TVM's ``(pipeline, finalize_host, finalize_device)`` of a target."""
    return tvm.tirx.get_default_tir_pipeline(target)


def split_host_device(module: Any) -> Any:
    """Split a lowered module into the host module and ``{target: device module}``."""
    # The attribute ``tvm.tirx.build`` is a function that hides the module of the same name.
    return sys.modules["tvm.tirx.build"].split_host_device_mods(module)


@functools.cache
def register_reducers() -> None:
    """Teach cross-thread reduction the ``max`` and ``min`` whose neutral values are infinite.

    TVM registers them with the largest finite value as identity, which would turn a maximum over
    ``-inf`` into a finite number.
    """
    register = tvm_ffi.get_global_func("s_tir.schedule.RegisterReducer")
    for combine, value in ((tirx.max, float("-inf")), (tirx.min, float("inf"))):
        register(1, _combiner(combine), _identity(value))


def _combiner(combine: Any) -> Any:
    return lambda x, y: [combine(x[0], y[0])]


def _identity(value: float) -> Any:
    return lambda dtypes: [tirx.const(value, dtypes[0])]
