"""Translates inline PTX to calls to functions in ``cxx/ptx.h``, using a table of instruction patterns.

To add an instruction, implement its effect on a lane in ``cxx/ptx.h`` and add a row to ``INSTRUCTIONS`` here.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from roller.emulator.bracket_matching import end_of_bracket, split_outside_brackets
from roller.errors import EmulationError

_ASM = re.compile(r"\b(?:asm|__asm__)\b\s*(?:volatile|__volatile__)?\s*\(")
_STRING = re.compile(r'"((?:\\.|[^"\\])*)"')
_REGISTER_TYPES = {"u64": "uint64_t", "s64": "int64_t", "b64": "uint64_t", "u32": "uint32_t", "s32": "int32_t",
                   "b32": "uint32_t", "f32": "float", "f64": "double", "pred": "bool", "u16": "uint16_t",
                   "b16": "uint16_t"}  # fmt: skip
_COMPARE = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}

#: Operands of one instruction; each is a list, since ``{a, b}`` names several registers.
Operands = list[list[str]]
Translation = Callable[[re.Match[str], Operands], str]


@dataclass(frozen=True)
class Instruction:
    """Opcode pattern with its possible operand counts and its translation to a C++ statement."""

    pattern: str
    operands: tuple[int, ...]
    translate: Translation


def _mma(m: re.Match[str], o: Operands) -> str:
    k, d_type, a, b, c_type = int(m["k"]), m["d"], m["a"], m["b"], m["c"]
    if d_type != c_type:
        raise _unknown_instruction_error(m[0], "accumulators of two types")
    arrays = _declare_operand_bits(("e_a", "e_b", "e_c"), o[1:])
    packed = {"f16": 2, "bf16": 2, "tf32": 1, "s8": 4, "u8": 4}[a]
    expected = [2 if d_type == "f16" else 4, k // 2 // packed, k // 4 // packed, 2 if d_type == "f16" else 4]
    if [len(x) for x in o] != expected:
        raise _unknown_instruction_error(m[0], f"{[len(x) for x in o]} registers instead of {expected}")
    puts = "".join(f" emul::ptx::put({x}, e_d[{i}]);" for i, x in enumerate(o[0]))
    types = f"{k}, emul::ptx::{a}, emul::ptx::{b}, emul::ptx::{c_type}_sum"
    return f"{arrays} uint32_t e_d[4] = {{}}; emul::ptx::mma_m16n8<{types}>(e_d, e_a, e_b, e_c);{puts}"


def _ldmatrix(m: re.Match[str], o: Operands) -> str:
    count = int(m["n"])
    if len(o[0]) != count:
        raise _unknown_instruction_error(m[0], f"{len(o[0])} registers instead of {count}")
    puts = "".join(f" emul::ptx::put({x}, e_m[{i}]);" for i, x in enumerate(o[0]))
    transposed = "true" if m["trans"] else "false"
    return f"uint32_t e_m[4]; emul::ptx::ldmatrix(e_m, {count}, {transposed}, {o[1][0]});{puts}"


def _wmma_load(m: re.Match[str], o: Operands) -> str:
    if len(o[0]) != 8:
        raise _unknown_instruction_error(m[0], f"{len(o[0])} registers instead of 8")
    puts = "".join(f" emul::ptx::put({x}, e_w[{i}]);" for i, x in enumerate(o[0]))
    by_columns = "true" if m["layout"] == "col" else "false"
    return f"uint32_t e_w[8]; emul::ptx::wmma_load(e_w, {by_columns}, {o[1][0]}, {o[2][0]});{puts}"


def _wmma_mma(m: re.Match[str], o: Operands) -> str:
    sums = {"f32": 8, "f16": 4}[m["d"]]
    if m["d"] != m["c"] or [len(x) for x in o] != [sums, 8, 8, sums]:
        raise _unknown_instruction_error(m[0], f"{[len(x) for x in o]} registers instead of {[sums, 8, 8, sums]}")
    puts = "".join(f" emul::ptx::put({x}, e_d[{i}]);" for i, x in enumerate(o[0]))
    operands = _declare_operand_bits(("e_a", "e_b", "e_d"), o[1:])
    return f"{operands} emul::ptx::wmma_mma<emul::ptx::{m['d']}_sum>(e_d, e_a, e_b, e_d);{puts}"


def _wmma_store(m: re.Match[str], o: Operands) -> str:
    if len(o[1]) != {"f32": 8, "f16": 4}[m["d"]]:
        raise _unknown_instruction_error(m[0], f"{len(o[1])} registers")
    operands = _declare_operand_bits(("e_d",), o[1:2])
    return f"{operands} emul::ptx::wmma_store<emul::ptx::{m['d']}_sum>({o[0][0]}, e_d, {o[2][0]});"


def _declare_operand_bits(names: tuple[str, ...], operands: Operands) -> str:
    """Return C++ declarations of arrays that hold the bits of each operand's registers."""
    return "".join(
        f" uint32_t {name}[] = {{{', '.join(f'emul::ptx::bits({x})' for x in regs)}}};"
        for name, regs in zip(names, operands, strict=True)
    )


def _cp_async(m: re.Match[str], o: Operands) -> str:
    read = o[3][0] if len(o) > 3 else o[2][0]
    return f"emul::ptx::cp_async({o[0][0]}, {o[1][0]}, {o[2][0]}, {read});"


def _load_global(m: re.Match[str], o: Operands) -> str:
    count = int(m["v"] or 1)
    puts = "".join(f" emul::ptx::put({x}, e_l[{i}]);" for i, x in enumerate(o[0]))
    return f"uint32_t e_l[{count}]; emul::ptx::load_global(e_l, {count}, {o[1][0]});{puts}"


def _wgmma(m: re.Match[str], o: Operands) -> str:
    n = int(m["n"])
    if n % 8 or not 8 <= n <= 256 or len(o[0]) != n // 2 or len(o[1]) != 1:
        raise _unknown_instruction_error(
            m[0], f"{len(o[0])} registers of D and {len(o[1])} of A, expected {n // 2} and a descriptor"
        )
    d = ", ".join(f"emul::ptx::place({x})" for x in o[0])
    a, b, adds, scale_a, scale_b, trans_a, trans_b = (x[0] for x in o[1:])
    given = f"{a}, {b}, {adds}, {scale_a}, {scale_b}, {trans_a}, {trans_b}"
    return f"emul::ptx::wgmma<emul::ptx::{m['a']}>({n}, {{{d}}}, {given});"


#: All instructions that can be translated; an opcode must match the whole pattern.
INSTRUCTIONS: tuple[Instruction, ...] = (
    Instruction(
        r"mma\.sync\.aligned\.m16n8k(?P<k>8|16|32)\.row\.col(?:\.satfinite)?"
        r"\.(?P<d>f16|f32|s32)\.(?P<a>f16|bf16|tf32|s8|u8)\.(?P<b>f16|bf16|tf32|s8|u8)\.(?P<c>f16|f32|s32)",
        (4,), _mma,
    ),
    Instruction(
        r"ldmatrix\.sync\.aligned\.m8n8\.x(?P<n>[124])(?P<trans>\.trans)?(?:\.shared(?:::cta)?)?\.b16", (2,), _ldmatrix
    ),
    Instruction(
        r"wmma\.load\.[ab]\.sync\.aligned\.(?P<layout>row|col)\.m16n16k16\.shared(?:::cta)?\.f16", (3,), _wmma_load
    ),
    Instruction(
        r"wmma\.mma\.sync\.aligned\.(?:row|col)\.(?:row|col)\.m16n16k16\.(?P<d>f16|f32)\.(?P<c>f16|f32)",
        (4,), _wmma_mma,
    ),
    Instruction(
        r"wmma\.store\.d\.sync\.aligned\.row\.m16n16k16\.shared(?:::cta)?\.(?P<d>f16|f32)", (3,), _wmma_store
    ),
    Instruction(
        r"cp\.async\.c[ag]\.shared(?:::cta)?\.global(?:\.L2::(?:cache_hint|\d+B))?", (3, 4), _cp_async
    ),
    Instruction(r"cp\.async\.commit_group", (0,), lambda m, o: "emul::async_commit();"),
    Instruction(r"cp\.async\.wait_group", (1,), lambda m, o: f"emul::async_wait({o[0][0]});"),
    Instruction(r"cp\.async\.wait_all", (0,), lambda m, o: "emul::async_commit(); emul::async_wait(0);"),
    Instruction(
        r"cvta\.to\.shared\.u64", (2,),
        lambda m, o: f"{o[0][0]} = emul::shared_address(emul::ptx::generic({o[1][0]}));",
    ),
    Instruction(r"cvt\.u32\.u64", (2,), lambda m, o: f"{o[0][0]} = (uint32_t){o[1][0]};"),
    Instruction(
        r"mbarrier\.init(?:\.shared(?:::cta)?)\.b64", (2,),
        lambda m, o: f"emul::ptx::mbarrier_init({o[0][0]}, {o[1][0]});",
    ),
    Instruction(
        r"mbarrier\.arrive(?P<tx>\.expect_tx)?(?:\.release)?(?:\.cta)?\.shared(?:::cta)?\.b64", (2, 3),
        lambda m, o: f"emul::ptx::mbarrier_arrive({o[1][0]}, {o[2][0] if m['tx'] else 0});",
    ),
    Instruction(
        r"mbarrier\.(?:try|test)_wait\.parity(?:\.acquire)?(?:\.cta)?\.shared(?:::cta)?\.b64", (3,),
        lambda m, o: f"{o[0][0]} = emul::ptx::mbarrier_wait({o[1][0]}, {o[2][0]});",
    ),
    Instruction(
        r"cp\.async\.bulk\.shared::(?:cluster|cta)\.global\.mbarrier::complete_tx::bytes", (4,),
        lambda m, o: f"emul::ptx::bulk_copy({o[0][0]}, {o[1][0]}, {o[2][0]}, {o[3][0]});",
    ),
    Instruction(r"fence\.mbarrier_init\.release\.cluster", (0,), lambda m, o: ";"),
    Instruction(
        r"selp\.[bus]32", (4,),
        lambda m, o: f"emul::ptx::put({o[0][0]}, (uint32_t)({o[3][0]} ? {o[1][0]} : {o[2][0]}));",
    ),
    Instruction(
        r"wgmma\.mma_async\.sync\.aligned\.m64n(?P<n>\d+)k16\.f32\.(?P<a>f16|bf16)\.(?P=a)", (8,), _wgmma
    ),
    Instruction(r"wgmma\.fence\.sync\.aligned", (0,), lambda m, o: "emul::ptx::wgmma_fence();"),
    Instruction(r"wgmma\.commit_group\.sync\.aligned", (0,), lambda m, o: "emul::ptx::wgmma_commit();"),
    Instruction(r"wgmma\.wait_group\.sync\.aligned", (1,), lambda m, o: f"emul::ptx::wgmma_wait({o[0][0]});"),
    Instruction(r"fence\.proxy\.async(?:\.shared::cta)?", (0,), lambda m, o: "emul::proxy_fence();"),
    Instruction(r"ld\.global(?:\.\w+)*?(?:\.v(?P<v>[24]))?\.[bfus]32", (2,), _load_global),
    Instruction(r"mov\.[bus]32", (2,), lambda m, o: f"emul::ptx::put({o[0][0]}, (uint32_t)({o[1][0]}));"),
    Instruction(
        r"setp\.(?P<op>eq|ne|lt|le|gt|ge)\.[bus]32", (3,),
        lambda m, o: f"{o[0][0]} = (int)({o[1][0]}) {_COMPARE[m['op']]} (int)({o[2][0]});",
    ),
    Instruction(
        r"(?P<fn>max|min)\.NaN\.f32", (3,),
        lambda m, o: f"{o[0][0]} = emul::{m['fn']}_nan({o[1][0]}, {o[2][0]});",
    ),
    Instruction(r"dp4a\.(?P<a>[us])32\.(?P<b>[us])32", (4,), lambda m, o: (
        f"{o[0][0]} = emul::dot4<{_byte_type(m['a'])}, {_byte_type(m['b'])}>({o[1][0]}, {o[2][0]}, {o[3][0]});"
    )),
)  # fmt: skip


def _byte_type(sign: str) -> str:
    return "int8_t" if sign == "s" else "uint8_t"


def translate_asm(text: str) -> str:
    """Replace every inline assembly statement by calls to functions in ``cxx/ptx.h``; keep line numbers.

    Examples
    --------
    >>> translate_asm('asm volatile("cp.async.wait_group %0;" :: "n"(2));')
    '{ emul::async_wait((2)); }'
    """
    out, at = [], 0
    for m in _ASM.finditer(text):
        end = end_of_bracket(text, m.end() - 1)
        semicolon = text.index(";", end)
        whole = text[m.end() : end - 1]
        out.append(text[at : m.start()])
        out.append("{ " + _translate_statement(whole) + " }" + "\n" * text[m.start() : semicolon].count("\n"))
        at = semicolon + 1
    return "".join(out) + text[at:]


def _translate_statement(inside: str) -> str:
    """Translate the contents of ``asm(...)``: template, outputs, and inputs."""
    sections = split_outside_brackets(inside, ":")
    template = "".join(s.encode().decode("unicode_escape") for s in _STRING.findall(sections[0]))
    values = []
    for section in sections[1:3]:
        for operand in split_outside_brackets(section, ","):
            if operand.strip():
                values.append("(" + operand[operand.index("(") + 1 : operand.rindex(")")].strip() + ")")
    return " ".join(_translate_instructions(template, values))


def _translate_instructions(template: str, values: list[str]) -> list[str]:
    out = []
    for line in re.sub(r"//[^\n]*", "", template).split(";"):
        text = " ".join(line.split()).strip()
        while text[:1] in ("{", "}") and text:  # register scopes end with the statement
            text = text[1:].strip()
        text = text[:-1].strip() if text.endswith("}") and text.count("}") > text.count("{") else text
        if text:
            out.append(_translate_instruction(text, values))
    return out


def _translate_instruction(text: str, values: list[str]) -> str:
    declared = re.fullmatch(r"\.reg\s*\.(\w+)\s+(.+)", text)
    if declared:
        if declared[1] not in _REGISTER_TYPES:
            raise _unknown_instruction_error(text, f"a register of type {declared[1]}")
        return f"{_REGISTER_TYPES[declared[1]]} {declared[2]};"
    guard = re.match(r"@(!?)(\w+)\s+", text)
    rest = text[guard.end() :] if guard else text
    opcode = re.match(r"[^\s{\[%]*", rest)[0]  # type: ignore[index]  # the pattern matches any text
    operands = rest[len(opcode) :]
    parsed = [_substitute_operand(o, values) for o in split_outside_brackets(operands, ",") if o.strip()]
    for entry in INSTRUCTIONS:
        m = re.fullmatch(entry.pattern, opcode)
        if m and len(parsed) in entry.operands:
            call = entry.translate(m, parsed)
            return f"if ({guard[1]}{guard[2]}) {{ {call} }}" if guard else call
    raise _unknown_instruction_error(rest, "no translation of this instruction")


def _substitute_operand(text: str, values: list[str]) -> list[str]:
    inner = text.strip().strip("{}[]")
    parts = [re.sub(r"%(\d+)", lambda m: values[int(m[1])], p.strip()) for p in split_outside_brackets(inner, ",")]
    return [re.sub(r"^0f([0-9A-Fa-f]{8})$", r"0x\1u", p) for p in parts if p]


def _unknown_instruction_error(text: str, what: str) -> EmulationError:
    return EmulationError(
        f"emulator: inline PTX '{text}': {what}. Add the instruction to roller/emulator/ptx.py and cxx/ptx.h."
    )
