"""Device functions for operations that CUDA C cannot express: asynchronous copies and matrix instructions.

A template calls them with :func:`call_device_function`; :func:`used_function_texts` returns the text of the functions
that a source uses, each a few instructions of inline PTX that the emulator knows (:mod:`roller.emulator.ptx`). Element
addresses (:func:`address_of_element`) hide accesses from TVM's analyses: a template that uses them must place its own
barriers (:func:`block_barrier`) and keep data that is live at the same time in different buffers.
"""

from __future__ import annotations

import re

from roller.te.compat import tirx, tvm
from roller.templates.gpu.emit import byte_float_functions, nan_extrema_functions
from roller.templates.gpu.emit.tir_statements import Buffer, Expr, Stmt, dtype_name, load, sequence_of
from roller.templates.gpu.matrix import emit_matrix_instructions as matrix_functions
from roller_runtime.core.dtypes import BYTE_FLOATS, DTYPES

#: Texts of functions, keyed by name, in source order: a function calls only earlier functions.
FUNCTIONS: dict[str, str] = {}


def register_device_function(name: str, text: str) -> None:
    """Register a function; ``text`` lacks only ``static __device__ __forceinline__``."""
    head = re.match(r"template <[^>]*> ", text)
    template = head[0] if head else ""
    FUNCTIONS[name] = f"{template}static __device__ __forceinline__ {text.removeprefix(template).strip()}\n"


register_device_function("roller_shared_address", """unsigned roller_shared_address(const void* p) {
  return (unsigned)__cvta_generic_to_shared(p);
}""")  # fmt: skip
# If the source is not `inside`, zeros are written, and the source is not read, so its address may be anything. Copies
# of 16 bytes bypass the first-level cache and make the second-level cache load whole lines: rows of a tile are often
# shorter, and a later step uses the rest.
_COPY = """void roller_copy_async_{bytes}(void* target, const void* source, bool inside) {{
  asm volatile("cp.async.{cache}.shared.global{ahead} [%0], [%1], {bytes}, %2;"
               :: "r"(roller_shared_address(target)), "l"(source), "r"(inside ? {bytes} : 0) : "memory");
}}"""
for _bytes, _cache, _ahead in ((16, "cg", ".L2::128B"), (8, "ca", ""), (4, "ca", "")):
    register_device_function(f"roller_copy_async_{_bytes}", _COPY.format(bytes=_bytes, cache=_cache, ahead=_ahead))
register_device_function("roller_quiet", """float roller_quiet(float value) {
  unsigned quiet = 0x7fc00000u;
  return value != value ? *(const float*)&quiet : value;
}""")  # fmt: skip
register_device_function("roller_bfloat16", """float roller_bfloat16(float value) {
  unsigned bits = *(const unsigned*)&value, rounded = bits + 0x7fffu + (bits >> 16 & 1u) & 0xffff0000u;
  unsigned quiet = 0x7fc00000u;
  return value != value ? *(const float*)&quiet : *(const float*)&rounded;
}""")  # fmt: skip
register_device_function("roller_start", """template <class P> P roller_start(P pointer) {
  return pointer;
}""")  # fmt: skip
register_device_function("roller_copy_commit", """void roller_copy_commit() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}""")  # fmt: skip
register_device_function("roller_copy_wait", """template <int N> void roller_copy_wait() {
  asm volatile("cp.async.wait_group %0;" :: "n"(N) : "memory");
}""")  # fmt: skip

register_device_function("roller_group_sync", """void roller_group_sync() {
  __syncwarp();
}""")  # fmt: skip
#: Vector sizes (bytes) of moves between global memory, registers and scratchpad.
_VECTORS = {16: "uint4", 8: "uint2", 4: "unsigned", 2: "unsigned short", 1: "unsigned char"}
_FETCH = """void roller_fetch_{bytes}(void* registers, const void* source, bool inside) {{
  *({type}*)registers = inside ? *(const {type}*)source : {zero};
}}"""
_STORE = """void roller_store_{bytes}(void* target, const void* registers) {{
  *({type}*)target = *(const {type}*)registers;
}}"""
for _bytes, _type in _VECTORS.items():
    _zero = {16: "make_uint4(0u, 0u, 0u, 0u)", 8: "make_uint2(0u, 0u)"}.get(_bytes, f"({_type})0")
    register_device_function(f"roller_fetch_{_bytes}", _FETCH.format(bytes=_bytes, type=_type, zero=_zero))
    register_device_function(f"roller_store_{_bytes}", _STORE.format(bytes=_bytes, type=_type))
for _text in (*byte_float_functions.byte_float_function_texts(), *matrix_functions.matrix_function_texts()):
    register_device_function(_text.partition("(")[0].split()[-1], _text)


def used_function_texts(source: str, arch: str) -> str:
    """Return the functions that a source for an architecture calls, directly or indirectly."""
    wanted = [n for n in FUNCTIONS if re.search(rf"\b{n}\b", source)]
    for name in reversed(FUNCTIONS):
        if name not in wanted and any(re.search(rf"\b{name}\b", FUNCTIONS[n]) for n in wanted):
            wanted.append(name)
    own = (
        text
        for name, text in nan_extrema_functions.nan_extrema_functions(arch).items()
        if re.search(rf"\b{name}\b", source)
    )
    return "".join((*(text for name, text in FUNCTIONS.items() if name in wanted), *own))


def call_device_function(name: str, *arguments: Expr) -> Stmt:
    """Return the statement ``name(arguments)``; ``name`` may carry template arguments."""
    assert name.partition("<")[0] in FUNCTIONS, name
    return tirx.Evaluate(tirx.call_extern("void", name, *arguments))


def address_of_element(of: Buffer, *index: Expr) -> Expr:
    """Return the address of an element."""
    return tirx.address_of(load(of, *index))


def bind_start_address(name: str, of: Buffer, offset: Expr) -> tuple[Stmt, Buffer]:
    """Return the statement that names an element's address, and a buffer that starts there."""
    # The address, equal in all accesses of a loop, is then added once. In an index, the compiler would mix it with the
    # constants of every access and keep an address of each in a register. In that case, as with `address`, a kernel
    # must have only one buffer of dynamic scratchpad.
    element = dtype_name(of)
    kind = tvm.ir.PointerType(tvm.ir.PrimType(DTYPES[element].bits if element in BYTE_FLOATS else element), "global")
    var = tirx.Var(name, kind)
    view = tirx.decl_buffer(of.shape, dtype_name(of), name=f"{name}_view")
    named = tirx.Bind(var, tirx.call_extern(kind, "roller_start", address_of_element(of, offset)))
    return sequence_of([named, tirx.DeclBuffer(view, data=var)]), view


def copy_async(nbytes: int, target: Expr, source: Expr, inside: list[Expr]) -> Stmt:
    """Return an asynchronous copy of 16, 8 or 4 aligned bytes to the scratchpad, or of zeros unless ``inside``."""
    return call_device_function(f"roller_copy_async_{nbytes}", target, source, _conjunction(inside))


def load_vector_into_registers(nbytes: int, registers: Expr, source: Expr, inside: list[Expr]) -> Stmt:
    """Return the load of one vector from global memory into registers; zeros without a read unless ``inside``."""
    return call_device_function(f"roller_fetch_{nbytes}", registers, source, _conjunction(inside))


def store_vector_from_registers(nbytes: int, target: Expr, registers: Expr) -> Stmt:
    """Return the store of one vector from registers to aligned memory."""
    return call_device_function(f"roller_store_{nbytes}", target, registers)


def _conjunction(conditions: list[Expr]) -> Expr:
    if not conditions:
        return tirx.const(True, "bool")
    return conditions[0] if len(conditions) == 1 else tirx.all(*conditions)


def commit_async_copies() -> Stmt:
    """Return the statement that ends a group of this thread's asynchronous copies."""
    return call_device_function("roller_copy_commit")


def wait_for_async_copies(groups: int) -> Stmt:
    """Return the wait until at most ``groups`` groups of this thread's asynchronous copies are in flight."""
    return call_device_function(f"roller_copy_wait<{groups}>")
