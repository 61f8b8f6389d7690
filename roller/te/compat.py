"""The TVM names that moved between releases (for apache-tvm 0.27); no other module of roller uses these namespaces."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from roller.core.import_without_dependency import import_without_package

try:
    with import_without_package("torch"):  # TVM would load an installed torch, which is not needed here
        import tvm
        import tvm_ffi
        from tvm import sym, te, tirx
        from tvm.ir.expr import Call, TensorLoad
        from tvm.s_tir import SBlockRealize, Schedule
        from tvm.s_tir.schedule.schedule import ScheduleError
        from tvm.tirx.buffer import is_buffer_var
except ImportError as err:  # pragma: no cover - exercised only without TVM
    raise ImportError(
        f"roller's code generation: expected apache-tvm, got {err}. Install it: pip install apache-tvm==0.27.0.post1."
    ) from err

__all__ = [
    "Call", "SBlockRealize", "Schedule", "ScheduleError", "TensorLoad", "analyzer_with_extents", "build_for_cpu",
    "compute_op",
    "default_pipeline", "dtype_of", "is_buffer_var", "llvm_features", "register_pure_operator", "split_host_device",
    "structural_map", "structural_walk", "substitute", "te", "tirx", "tvm", "tvm_ffi",
]  # fmt: skip


def analyzer_with_extents(extents: Sequence[tuple[Any, int]]) -> Any:
    """Return an arithmetic analyzer that knows ``0 <= var < extent`` for each pair."""
    known = sym.Analyzer()
    for var, extent in extents:
        known.bind(var, tvm.ir.Range(0, extent))
    return known


class _Callbacks:
    """Traversal callbacks that never raise; the first exception is stored, and later nodes remain unchanged."""

    # TVM's traversals do not unwind: an exception within one corrupts the heap.
    def __init__(self) -> None:
        self.raised: BaseException | None = None

    def wrap_entries(self, entries: Any, changes: bool) -> Any:
        """Wrap an entry ``(type, callback)``, a callback, or a list of them so that none raises."""
        if (
            isinstance(entries, tuple)
            and len(entries) == 2
            and callable(entries[1])
            and not isinstance(entries[1], type)
        ):
            return (entries[0], self._guarded(entries[1], changes))
        if isinstance(entries, (tuple, list)):
            return [self.wrap_entries(e, changes) for e in entries]
        return self._guarded(entries, changes)

    def _guarded(self, callback: Any, changes: bool) -> Any:
        def run(node: Any) -> Any:
            if self.raised is None:
                try:
                    return callback(node)
                except BaseException as err:  # noqa: BLE001 - raised again after the traversal
                    self.raised = err
            return node if changes else None

        return run

    def done(self, result: Any) -> Any:
        """Return the result of a traversal; if a callback raised an exception, raise it instead."""
        if self.raised is not None:
            raise self.raised
        return result


def structural_map(root: Any, callbacks: Any, order: str = "post") -> Any:
    """Return the result of ``tvm_ffi.structural_map``; an exception of a callback is raised after the traversal."""
    held = _Callbacks()
    return held.done(tvm_ffi.structural_map(root, held.wrap_entries(callbacks, True), order=order))


def structural_walk(root: Any, callbacks: Any, order: str = "post") -> None:
    """Call ``tvm_ffi.structural_walk``; an exception of a callback is raised after the traversal."""
    held = _Callbacks()
    held.done(tvm_ffi.structural_walk(root, held.wrap_entries(callbacks, False), order=order))


def substitute(expr: Any, values: Mapping[Any, Any]) -> Any:
    """Replace variables (by identity) in a primitive expression."""
    if not values:
        return expr
    return structural_map(expr, (tirx.Var, lambda v: values.get(v, v)))


def compute_op(op: Any, body: Sequence[Any]) -> Any:
    """Return ``op``, a ``te.ComputeOp``, with its body replaced."""
    return te._ffi_api.ComputeOp(op.name, op.tag, op.attrs, op.axis, list(body))


def dtype_of(expr: Any) -> str:
    """Return the dtype name of a primitive expression."""
    return str(expr.ty.dtype)


def default_pipeline(target: Any) -> Any:
    """Return TVM's ``(pipeline, finalize_host, finalize_device)`` for a target."""
    return tvm.tirx.get_default_tir_pipeline(target)


def split_host_device(module: Any) -> Any:
    """Split a lowered module into the host module and ``{target: device module}``."""
    # The attribute ``tvm.tirx.build`` is a function that shadows the module of the same name.
    return sys.modules["tvm.tirx.build"].split_host_device_mods(module)


def build_for_cpu(module: Any, target: Any, finish: Callable[[Any, Any], Any]) -> Any:
    """Compile a module for a CPU as ``tvm.tirx.build`` does; ``finish(passes, module)`` runs the last passes."""
    pipeline, last, _ = default_pipeline(target)
    bound = tirx.transform.BindTarget(target.with_host(target))(module)
    host, _ = split_host_device(pipeline(bound))
    return sys.modules["tvm.tirx.build"].tir_to_runtime(finish(last(), host), {}, target)


def llvm_features(target: Any) -> list[str]:
    """Return the names of all features that LLVM knows for a target's processor."""
    return [str(name) for name in tvm.target.codegen.llvm_get_cpu_features(target)]


def register_pure_operator(name: str, lowerings: Mapping[str, Callable[[Any], Any]]) -> Any:
    """Register and return an operator without side effects, which loops may vectorize."""
    # The registration is global to the process: TVM has no operator that is local to a module.
    pure = 1  # CallEffectKind::kPure
    tvm.ir.op._ffi_api.RegisterOp(name, "arithmetic that is not simplified")
    for attribute, value in (("TCallEffectKind", pure), ("TVectorizable", True), ("TScriptPrinterName", name)):
        tvm.ir.op.register_op_attr(name, attribute, value)
    for kind, lowering in lowerings.items():
        tirx.op.register_intrin_lowering(name, target=kind, f=lowering)
    return tvm.ir.Op.get(name)
