"""Translates CUDA C to C++ for the emulator's headers, keeping line numbers.

Only constructs that macros cannot express are rewritten: pointers become checked, shared arrays belong to the block,
inline PTX becomes calls, and every kernel keeps its indices in local variables.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from roller.emulator.bracket_matching import end_of_bracket
from roller.emulator.ptx import translate_asm
from roller.errors import EmulationError

#: Element types of pointers, longest first so that a prefix never matches alone.
_TYPES = sorted(
    [
        "unsigned long long", "unsigned long", "unsigned char", "unsigned short", "unsigned int", "unsigned",
        "signed char", "long long", "long", "char", "short", "int", "bool", "float", "double", "uchar", "ushort",
        "uint", *(f"{u}int{n}_t" for u in ("", "u") for n in (8, 16, 32, 64)),
        "half", "half2", "half4", "__half", "__half2", "nv_bfloat16", "nv_bfloat162", "nv_bfloat164", "__nv_bfloat16",
        "__nv_bfloat162",
        *(f"{t}{n}" for n in (1, 2, 3, 4) for t in ("char", "uchar", "short", "ushort", "int", "uint", "longlong",
                                                    "ulonglong", "float", "double")),
    ],
    key=len, reverse=True,
)  # fmt: skip
_TYPE = "(?:" + "|".join(t.replace(" ", r"\s+") for t in _TYPES) + ")"
_POINTER = re.compile(rf"\b((?:(?:const|volatile)\s+)*{_TYPE}(?:\s+(?:const|volatile))*)\s*\*(?!\*)\s*(?:const\b)?")
_ALIGNED = r"(?:(?:alignas|__align__)\s*\(\s*(\d+)\s*\)\s*)?"
#: HIP's spelling of the alignment.
_ATTRIBUTE = re.compile(r"__attribute__\(\(aligned\((\d+)\)\)\)")
_SHARED = re.compile(
    rf"\b__shared__\s+{_ALIGNED}((?:(?:const|volatile)\s+)*{_TYPE})\s+{_ALIGNED}(\w+)\s*\[([^\];]+)\]((?:\s*\[[^\];]+\])*)\s*;"
)
_DYNAMIC = re.compile(
    rf"\bextern\s+__shared__\s+{_ALIGNED}((?:(?:const|volatile)\s+)*{_TYPE})\s+{_ALIGNED}(\w+)\s*\[\s*\]\s*;"
)
_LOCAL = re.compile(rf"(^|[;{{}}])(\s*){_ALIGNED}({_TYPE})\s+{_ALIGNED}(\w+)\s*\[([^\];]+)\]\s*;", re.M)
_KERNEL = re.compile(
    r"__global__\s+(?:void\s+)?(?:__launch_bounds__\s*\(\s*(\d+)[^)]*\)\s*)?(?:void\s+)?(\w+)\s*\(([^)]*)\)\s*\{"
)
_INDICES = (
    " const emul::Index3 threadIdx = emul::thread_index(), blockIdx = emul::block_index(), "
    "blockDim = emul::block_extent(), gridDim = emul::grid_extent();"
)
#: Headers that warp groups need; they are slow to compile and must come before CUDA's keywords are defined.
_CONTAINERS = "#include <map>\n#include <memory>\n#include <vector>\n"
#: Operations by which threads of a block wait for each other; kernels without them run without fibers.
_CONVERGES = re.compile(r"__sync|__shfl|__activemask|_sync\b|\basm\b|__asm__|wmma")


@dataclass(frozen=True)
class TranslatedKernel:
    """Description of one kernel in a source.

    Parameters
    ----------
    parameters
        Name and element type of each parameter.
    max_threads
        Bound given by ``__launch_bounds__``; 0 if there is none.
    converges
        Whether threads wait for each other.
    numbers
        Parameters passed by value.
    """

    entry: str
    parameters: tuple[tuple[str, str], ...]
    max_threads: int
    converges: bool
    numbers: frozenset[str] = frozenset()


def translate(source: str, architecture: int = 800) -> tuple[str, tuple[TranslatedKernel, ...]]:
    """Translate a CUDA source; return the C++ source and descriptions of its kernels.

    Examples
    --------
    >>> text, (kernel,) = translate('extern "C" __global__ void f(float* A_ptr) { A_ptr[threadIdx.x] = 1.0f; }')
    >>> kernel.entry, kernel.parameters, kernel.converges
    ('f', (('A_ptr', 'float'),), False)
    >>> "emul::Ptr<float> A_ptr" in text
    True
    """
    text = _ATTRIBUTE.sub(r"alignas(\1)", _remove_comments(source))
    kernels = _find_kernels(text)
    text = translate_asm(text)
    text = _translate_addresses(text)
    text = _translate_local_arrays(_translate_shared_arrays(text))
    text = _KERNEL.sub(lambda m: m[0] + _INDICES, text)
    text = _POINTER.sub(lambda m: f"emul::Ptr<{' '.join(m[1].split())}> ", text)
    first, last = (_CONTAINERS, '#include "wgmma.h"\n') if "wgmma" in text else ("", "")
    head = (
        f"{first}#define __CUDA_ARCH__ {architecture}\n#define __CUDACC_VER_MAJOR__ 12\n"
        f'#define __CUDACC_VER_MINOR__ 9\n#include "cuda_emulation.h"\n#include "ptx.h"\n{last}#line 1 "kernel.cu"\n'
    )
    return head + text + "\n" + "".join(_emit_entry_functions(k) for k in kernels), kernels


def _find_kernels(text: str) -> tuple[TranslatedKernel, ...]:
    found = []
    matches = list(_KERNEL.finditer(text))
    for n, m in enumerate(matches):
        body = text[m.end() : matches[n + 1].start() if n + 1 < len(matches) else len(text)]
        several = [_parse_parameter(m[2], p) for p in m[3].split(",") if p.strip()]
        parameters, numbers = tuple(p[:2] for p in several), frozenset(p[0] for p in several if p[2])
        found.append(TranslatedKernel(m[2], parameters, int(m[1] or 0), bool(_CONVERGES.search(body)), numbers=numbers))
    if not found:
        raise EmulationError(
            "emulator: expected a CUDA source with a __global__ function, found none. Pass a 'cuda' artifact."
        )
    return tuple(found)


def _parse_parameter(entry: str, text: str) -> tuple[str, str, bool]:
    """Return a parameter's name and type, and whether it is a number that is passed by value."""
    plain = " ".join(re.sub(r"__restrict__|\bconst\b", " ", text).split())
    m = re.fullmatch(rf"({_TYPE})\s*\*\s*(\w+)", plain) or re.fullmatch(r"(int)\s+(\w+)", plain)
    if m is None:
        raise EmulationError(
            f"emulator: kernel {entry}: parameter '{plain}': expected a pointer to a plain type, or an int. "
            "Pass arrays and whole numbers only."
        )
    return m[2], m[1], "*" not in plain


def _emit_entry_functions(kernel: TranslatedKernel) -> str:
    places = [
        f"*(const {t}*)a[{n}].base" if name in kernel.numbers else f"emul::whole<{t}>(a + {n})"
        for n, (name, t) in enumerate(kernel.parameters)
    ]
    name, arguments = kernel.entry, ", ".join(places)
    return (
        f"static void emul_body_{name}(const emul::Region* a) {{ (void)a; {name}({arguments}); }}\n"
        f'extern "C" int emul_{name}(emul::Launch* l) {{ return emul::run(*l, emul_body_{name}); }}\n'
    )


def _remove_comments(text: str) -> str:
    def blank(m: re.Match[str]) -> str:
        return m[0] if m[0].startswith('"') else " " + "\n" * m[0].count("\n")

    return re.sub(r'"(?:\\.|[^"\\])*"|/\*.*?\*/|//[^\n]*', blank, text, flags=re.S)


def _translate_shared_arrays(text: str) -> str:
    number = iter(range(10**6))

    def static(m: re.Match[str]) -> str:
        inner, align, t, align2, name, count, rest = "", m[1], m[2], m[3], m[4], m[5], m[6]
        element = f"{t}{inner}"
        if rest.strip():  # elements of the outer array are rows
            element = f"emul_row_{name}"
            inner = f"typedef {t} {element}{rest.strip()}; "
        size = align or align2 or f"alignof({element})"
        value = f'emul::shared_array<{element}>({next(number)}, {count}, {size}, "{name}")'
        return f"{inner}emul::Ptr<{element}> {name} = {value};"

    text = _DYNAMIC.sub(lambda m: f'emul::Ptr<{m[2]}> {m[4]} = emul::dynamic_array<{m[2]}>("{m[4]}");', text)
    return _SHARED.sub(static, text)


def _translate_local_arrays(text: str) -> str:
    """Replace a thread's arrays (its registers) by arrays with checked indices."""

    def local(m: re.Match[str]) -> str:
        align = f"alignas({m[3] or m[5]}) " if m[3] or m[5] else ""
        return f'{m[1]}{m[2]}{align}emul::Local<{m[4]}, ({m[7]})> {m[6]}{{"{m[6]}"}};'

    start = _KERNEL.search(text)
    at = start.start() if start else len(text)  # before it are types and helpers of the prelude
    return text[:at] + _LOCAL.sub(local, text[at:])


def _translate_addresses(text: str) -> str:
    """Rewrite ``&a[i]`` and ``&(a[i])`` as ``(a + (i))``, so that the pointer keeps its buffer."""
    out: list[str] = []
    at = 0
    while True:
        i = text.find("&", at)
        if i < 0:
            return "".join(out) + text[at:]
        found = None if text[i - 1 : i] == "&" or text[i + 1 : i + 2] == "&" else _parse_addressed_element(text, i)
        if found is None:
            out.append(text[at : i + 1])
            at = i + 1
        else:
            base, index, end = found
            out.append(f"{text[at:i]}({_translate_addresses(base)} + ({_translate_addresses(index)}))")
            at = end


def _parse_addressed_element(text: str, i: int) -> tuple[str, str, int] | None:
    """Return the base, the index and the end of the element addressed by ``&`` at ``i``; ``None`` if there is none."""
    before = text[:i].rstrip()[-1:]
    if before and before not in "(,=;{}[?:":
        return None
    start = i + 1 + len(text[i + 1 :]) - len(text[i + 1 :].lstrip())
    wrapped = text[start] == "(" and end_of_bracket(text, start)
    inner = start + 1 if wrapped else start
    m = re.compile(r"\s*(?:(\w+)|(?=\())\s*").match(text, inner)
    if m is None:
        return None
    base_end = m.end() if m[1] else end_of_bracket(text, m.end())
    if text[base_end : base_end + 1] != "[":
        return None
    end = end_of_bracket(text, base_end)
    index = text[base_end + 1 : end - 1]
    if wrapped:
        if text[end:wrapped].strip() != ")":
            return None
        return text[inner:base_end], index, wrapped
    return None if text[end : end + 1] in ".[" else (text[inner:base_end], index, end)
