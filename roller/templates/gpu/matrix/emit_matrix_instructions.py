"""Device functions of matrix instructions, as text: ``ldmatrix``, ``mma.sync`` and ``wmma`` in inline PTX.

Registers are passed by the address of the first register; after inlining and unrolling, their arrays are indexed by
constants, so that everything stays in registers.
"""

from __future__ import annotations

#: PTX type, 32-bit registers per lane for a 16 x 8 accumulator, C type and constraint, by accumulator dtype.
_MMA_SUMS = {"f32": (4, "float", "f"), "f16": (2, "unsigned", "r"), "s32": (4, "int", "r")}
#: ``(shape, operand, accumulator)``, with PTX types.
_MMA = (
    ("m16n8k16", "f16", "f32"),
    ("m16n8k16", "f16", "f16"),
    ("m16n8k16", "bf16", "f32"),
    ("m16n8k32", "s8", "s32"),
)
#: Registers of a wmma accumulator of 16 x 16: f32 in eight, f16 in four.
_WMMA_SUMS = {"f32": (8, "float", "f"), "f16": (4, "unsigned", "r")}


def _register_placeholder_list(first: int, count: int) -> str:
    return "{" + ", ".join(f"%{first + n}" for n in range(count)) + "}"


def _constraint_list(constraint: str, name: str, count: int) -> str:
    return ", ".join(f'"{constraint}"({name}[{n}])' for n in range(count))


def _ldmatrix_text(count: int, trans: str) -> str:
    suffix, results = trans.replace(".", "_"), _register_placeholder_list(0, count)
    return (
        f"void roller_ldmatrix_x{count}{suffix}(unsigned* r, unsigned row) {{\n"
        f'  asm volatile("ldmatrix.sync.aligned.m8n8.x{count}{trans}.shared.b16 {results}, [%{count}];"\n'
        f'               : {_constraint_list("=r", "r", count)} : "r"(row));\n}}'
    )


def _mma_text(shape: str, operand: str, sums: str) -> str:
    count, kind, constraint = _MMA_SUMS[sums]
    form = f"mma.sync.aligned.{shape}.row.col.{sums}.{operand}.{operand}.{sums}"
    d, a, b = (
        _register_placeholder_list(0, count),
        _register_placeholder_list(count, 4),
        _register_placeholder_list(count + 4, 2),
    )
    outputs, inputs = _constraint_list("+" + constraint, "d", count), _constraint_list("r", "a", 4)
    return (
        f"void roller_mma_{shape}_{operand}_{sums}(void* sums, const unsigned* a, const unsigned* b) {{\n"
        f"  {kind}* d = ({kind}*)sums;\n"
        f'  asm volatile("{form} {d}, {a}, {b}, {d};"\n'
        f"               : {outputs} : {inputs}, {_constraint_list('r', 'b', 2)});\n}}"
    )


def _wmma_load_text(operand: str, layout: str) -> str:
    form = f"wmma.load.{operand}.sync.aligned.{layout}.m16n16k16.shared.f16"
    return (
        f"void roller_wmma_load_{operand}_{layout}(unsigned* r, unsigned p, int pitch) {{\n"
        f'  asm volatile("{form} {_register_placeholder_list(0, 8)}, [%8], %9;"\n'
        f'               : {_constraint_list("=r", "r", 8)} : "r"(p), "r"(pitch));\n}}'
    )


def _wmma_mma_text(a: str, b: str, sums: str) -> str:
    count, kind, constraint = _WMMA_SUMS[sums]
    form = f"wmma.mma.sync.aligned.{a}.{b}.m16n16k16.{sums}.{sums}"
    d = _register_placeholder_list(0, count)
    operands = [_register_placeholder_list(first, 8) for first in (count, count + 8)]
    outputs, inputs = _constraint_list("+" + constraint, "d", count), _constraint_list("r", "a", 8)
    return (
        f"void roller_wmma_mma_{a}_{b}_{sums}(void* sums, const unsigned* a, const unsigned* b) {{\n"
        f"  {kind}* d = ({kind}*)sums;\n"
        f'  asm volatile("{form} {d}, {operands[0]}, {operands[1]}, {d};"\n'
        f"               : {outputs} : {inputs}, {_constraint_list('r', 'b', 8)});\n}}"
    )


def _wmma_store_text(sums: str) -> str:
    count, kind, constraint = _WMMA_SUMS[sums]
    values = _register_placeholder_list(2, count)
    return (
        f"void roller_wmma_store_{sums}(void* p, const void* sums, int pitch) {{\n"
        f"  const {kind}* d = (const {kind}*)sums;\n"
        f'  asm volatile("wmma.store.d.sync.aligned.row.m16n16k16.shared.{sums} [%0], {values}, %1;"\n'
        f'               :: "r"(roller_shared_address(p)), "r"(pitch), {_constraint_list(constraint, "d", count)}\n'
        '               : "memory");\n}'
    )


#: A scratchpad address that the compiler must not decompose: constant distances then become offsets; otherwise the
#: compiler would keep a register for every address of an unrolled loop.
_HELD = """unsigned roller_held(const void* p) {
  unsigned address = roller_shared_address(p);
  asm volatile("" : "+r"(address));
  return address;
}"""


def matrix_function_texts() -> list[str]:
    """Return the text of each function, without qualifiers."""
    found = [_HELD, *(_ldmatrix_text(count, trans) for count in (4, 2) for trans in ("", ".trans"))]
    found += [_mma_text(*form) for form in _MMA]
    found += [_wmma_load_text(operand, layout) for operand in "ab" for layout in ("row", "col")]
    found += [_wmma_mma_text(a, b, s) for a in ("row", "col") for b in ("row", "col") for s in _WMMA_SUMS]
    return found + [_wmma_store_text(s) for s in _WMMA_SUMS]
