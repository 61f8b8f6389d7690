"""Every TVM name that moved between releases, in one place (written for apache-tvm 0.27).

Nothing else in roller names ``tvm.sym``, ``tvm.tirx`` or ``tvm.s_tir``: a move in a later release is
a change of this file.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from roller.core.imports import left_out

try:
    with left_out("torch"):  # which TVM loads where it is installed, for tensors that are none of ours
        import tvm
        import tvm_ffi
        from tvm import sym, te, tirx
        from tvm.ir.expr import Call, TensorLoad
        from tvm.s_tir import SBlockRealize, Schedule
        from tvm.s_tir.schedule.schedule import ScheduleError
except ImportError as err:  # pragma: no cover - exercised only without TVM
    raise ImportError(
        f"roller's code generation: expected apache-tvm, got {err}. Install it: pip install apache-tvm==0.27.0.post1."
    ) from err

__all__ = [
    "Call", "SBlockRealize", "Schedule", "ScheduleError", "TensorLoad", "analyzer", "default_pipeline", "dtype_of",
    "llvm_features", "pure_operator", "split_host_device", "substitute", "te", "tirx", "tvm", "tvm_ffi",
]  # fmt: skip


def analyzer(extents: Sequence[tuple[Any, int]]) -> Any:
    """Return an arithmetic analyzer that knows ``0 <= var < extent`` of every pair."""
    known = sym.Analyzer()
    for var, extent in extents:
        known.bind(var, tvm.ir.Range(0, extent))
    return known


def substitute(expr: Any, values: Mapping[Any, Any]) -> Any:
    """Replace variables (by identity) in a primitive expression."""
    if not values:
        return expr
    return tvm_ffi.structural_map(expr, (tirx.Var, lambda v: values.get(v, v)))


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


def llvm_features(target: Any) -> list[str]:
    """Return the names of all features LLVM knows of a target's processor."""
    return [str(name) for name in tvm.target.codegen.llvm_get_cpu_features(target)]


def pure_operator(name: str, lowerings: Mapping[str, Callable[[Any], Any]]) -> Any:
    """Register an operator without side effects, which loops may vectorise, and return it.

    Parameters
    ----------
    name
        Of the operator, as ``"roller.add"``.
    lowerings
        What ``LowerIntrin``, the last pass of every pipeline, makes of a call: by kind of target, ``"default"`` for
        all others.
    """
    # Attributes are set once for all functions of a process: TVM has no operator that is local to a module.
    pure = 1  # CallEffectKind::kPure
    tvm.ir.op._ffi_api.RegisterOp(name, "arithmetic that is not simplified")
    for attribute, value in (("TCallEffectKind", pure), ("TVectorizable", True), ("TScriptPrinterName", name)):
        tvm.ir.op.register_op_attr(name, attribute, value)
    for kind, lowering in lowerings.items():
        tirx.op.register_intrin_lowering(name, target=kind, f=lowering)
    return tvm.ir.Op.get(name)
