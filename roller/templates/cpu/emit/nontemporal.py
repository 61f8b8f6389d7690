"""Non-temporal stores, which write results to memory without reading their cache lines first (write-allocate).

TIR has no such store, so vector stores become calls to inlined functions in LLVM IR (``pragma_import_llvm``), which
become ``vmovntps`` on x86 and ``stnp`` on Arm.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import numpy as np

from roller.te.compat import dtype_of, structural_map, tirx, tvm
from roller.te.emit_tvm_expressions import Expr
from roller.te.opaque_floats import hide_float_arithmetic, reveal_float_arithmetic
from roller.templates.cpu.emit.tir_loop_constructors import (
    LINE_BYTES,
    Buffer,
    Stmt,
    int32_index,
    is_parallel,
    sequence_of_statements,
)

#: LLVM's names of the element types that have non-temporal stores.
_LLVM = {
    "float16": "half", "float32": "float", "float64": "double", "int8": "i8", "uint8": "i8", "int16": "i16",
    "uint16": "i16", "int32": "i32", "uint32": "i32", "int64": "i64", "uint64": "i64",
}  # fmt: skip
#: Size (bytes) of the narrowest vector worth the address check: the width of the narrowest vector unit.
_NARROWEST_BYTES = 16
_HEAD, _FENCE = "roller_to_line", "roller_fence"
#: Function that returns the number of bytes from an address to the next cache line.
_HEAD_IR = f"""define i32 @{_HEAD}(ptr %p) alwaysinline {{
  %a = ptrtoint ptr %p to i64
  %n = sub i64 0, %a
  %r = and i64 %n, {LINE_BYTES - 1}
  %h = trunc i64 %r to i32
  ret i32 %h
}}
"""
#: Fence at the end of a task, which makes the task's stores visible before later ones.
_FENCE_IR = f"""define void @{_FENCE}() alwaysinline {{
  fence seq_cst
  ret void
}}
"""


def emit_elements_to_line(buffer: Buffer, index: tuple[Expr, ...]) -> Expr:
    """Return the number of elements from an element of ``buffer`` to the next cache line, computed at run time."""
    # The enclosing function needs :func:`make_stores_nontemporal`, which adds the called function.
    address = tirx.address_of(tirx.BufferLoad(buffer, list(index)))
    size = _vector_bytes(str(buffer.ty.dtype))
    return tirx.floordiv(tirx.call_pure_extern("int32", _HEAD, address), int32_index(size))


def make_stores_nontemporal(module: Any, outputs: Collection[str]) -> Any:
    """Return ``module`` with the vector stores to ``outputs`` made non-temporal."""
    # A store whose address is not a multiple of its size (at most a line) stays ordinary: the ends of a row, or all of
    # it if nothing aligned it (:func:`emit_elements_to_line`).
    tir = tirx.transform
    passes = [tir.StmtSimplify(), tir.FlattenBuffer(), tir.NarrowDataType(32), tir.VectorizeLoop()]
    flat = reveal_float_arithmetic(tvm.transform.Sequential(passes)(hide_float_arithmetic(module)))
    return tvm.IRModule({name: _make_function_nontemporal(f, outputs) for name, f in flat.functions_items()})


def _make_function_nontemporal(function: Any, outputs: Collection[str]) -> Any:
    imports: dict[str, str] = {}

    def store(s: Stmt) -> Stmt:
        element, _, lanes = dtype_of(s.value).partition("x")
        at = s.indices[0]
        if str(s.buffer.name) not in outputs or element not in _LLVM:
            return s
        if (
            not isinstance(at, tirx.Ramp)
            or int(at.stride) != 1
            or _vector_bytes(element, int(lanes)) < _NARROWEST_BYTES
        ):
            return s
        name = f"roller_stream_{element}x{lanes}"
        imports[name] = _vector_store_llvm(name, element, int(lanes))
        address = tirx.address_of(tirx.BufferLoad(s.buffer, [at.base]))
        return tirx.Evaluate(tirx.call_extern("void", name, address, s.value))

    def task(loop: Stmt) -> Stmt:
        if loop.kind != tirx.ForKind.PARALLEL:
            return loop
        return tirx.For(loop.loop_var, loop.min, loop.extent, loop.kind, sequence_of_statements(loop.body, fence))

    fence = tirx.Evaluate(tirx.call_extern("void", _FENCE))
    body = structural_map(function.body, (tirx.BufferStore, store))
    parallel = is_parallel(body)
    body = structural_map(body, (tirx.For, task)) if parallel else sequence_of_statements(body, fence)
    text = "".join([_HEAD_IR, _FENCE_IR, *imports.values(), "!0 = !{i32 1}\n"])
    return function.with_body(tirx.AttrStmt(int32_index(0), "pragma_import_llvm", tvm.ir.StringImm(text), body))


def _vector_bytes(element: str, lanes: int = 1) -> int:
    """Return the size of a vector in bytes."""
    return lanes * np.dtype(element).itemsize


def _vector_store_llvm(name: str, element: str, lanes: int) -> str:
    """Return the LLVM function for a vector store that is non-temporal if its address is a multiple of its size."""
    vector, size = f"<{lanes} x {_LLVM[element]}>", _vector_bytes(element)
    aligned = min(LINE_BYTES, lanes * size)
    return f"""define void @{name}(ptr %p, {vector} %v) alwaysinline {{
  %a = ptrtoint ptr %p to i64
  %r = and i64 %a, {aligned - 1}
  %whole = icmp eq i64 %r, 0
  br i1 %whole, label %stream, label %plain
stream:
  store {vector} %v, ptr %p, align {aligned}, !nontemporal !0
  ret void
plain:
  store {vector} %v, ptr %p, align {size}
  ret void
}}
"""
