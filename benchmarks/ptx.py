"""Read PTX: what the loops of a kernel are made of, for people, tests and benchmarks that have no GPU.

PTX is the compiler's output before registers are assigned: loops are unrolled, addresses are hoisted and vector
accesses are formed, so widths and counts of memory accesses and of arithmetic are those of the machine code, while
moves and address arithmetic still shrink a little.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from roller.errors import BuildError

_ENTRY = re.compile(r"\.entry\s+(\w+)")
_LABEL = re.compile(r"^(\$?[\w$]+):")
_BRANCH = re.compile(r"^(?:@!?%p\d+\s+)?bra(?:\.uni)?\s+(\$?[\w$]+)\s*;")
_BITS = re.compile(r"\.[bsuf](8|16|32|64|128)$")
_INTEGER = ("add", "sub", "mul", "mad", "shl", "shr", "and", "or", "xor", "bfe", "bfi", "lop3", "shf", "min", "max",
            "rem", "div", "neg", "not", "prmt")  # fmt: skip
#: Classes of what a kernel is there to compute.
ARITHMETIC = ("matrix", "fma", "float")
_MATRIX = ("mma.sync", "wmma.mma", "wgmma.mma_async")


@dataclass(frozen=True)
class Loop:
    """One loop: from the label its last branch jumps back to, up to that branch.

    Parameters
    ----------
    label
        Where it starts.
    lines
        Its instructions.
    inner
        Whether no other loop lies within it.
    """

    label: str
    lines: tuple[str, ...]
    inner: bool

    @cached_property
    def counts(self) -> Mapping[str, int]:
        """Instructions by class, see :func:`instruction_class`."""
        return Counter(instruction_class(x) for x in self.lines)

    def total(self, *classes: str) -> int:
        """Return how many instructions have a class that starts with one of ``classes``."""
        return sum(n for c, n in self.counts.items() if c.startswith(classes))


@dataclass(frozen=True)
class Kernel:
    """One kernel of a PTX text: its name, instructions and loops, in the order of the text."""

    name: str
    lines: tuple[str, ...]
    loops: tuple[Loop, ...]

    @cached_property
    def counts(self) -> Mapping[str, int]:
        """Instructions by class, whole kernel."""
        return Counter(instruction_class(x) for x in self.lines)

    @property
    def main_loop(self) -> Loop | None:
        """The shortest of the loops that hold the most arithmetic; ``None`` where none holds any.

        That is the innermost loop of a reduction; the loop around it holds the same arithmetic and the copies.
        """
        working = [x for x in self.loops if x.total(*ARITHMETIC)]
        return max(working, key=lambda x: (x.total(*ARITHMETIC), -len(x.lines)), default=None)


def kernels(ptx: str) -> dict[str, Kernel]:
    """Return the kernels of a PTX text by name.

    Raises
    ------
    BuildError
        Where the text holds no kernel.

    Examples
    --------
    >>> text = '''
    ... .visible .entry k() {
    ... $L__BB0_1:
    ... ld.shared.v4.f32 {%f1, %f2, %f3, %f4}, [%r1];
    ... fma.rn.f32 %f5, %f1, %f2, %f5;
    ... @%p1 bra $L__BB0_1;
    ... ret;
    ... }'''
    >>> dict(kernels(text)["k"].main_loop.counts)
    {'shared_load_128': 1, 'fma': 1, 'branch': 1}
    """
    starts = list(_ENTRY.finditer(ptx))
    if not starts:
        raise BuildError("PTX: expected at least one '.entry', found none. Is it the text of nvrtc or nvcc -ptx?")
    ends = [*(m.start() for m in starts[1:]), len(ptx)]
    return {m[1]: _kernel(m[1], ptx[m.end() : end]) for m, end in zip(starts, ends, strict=True)}


def _kernel(name: str, text: str) -> Kernel:
    body = text[text.index("{") + 1 :] if "{" in text else ""
    instructions: list[str] = []
    labels: dict[str, int] = {}
    last: dict[str, int] = {}
    for statement in _statements(body):
        label = _LABEL.match(statement)
        if label:
            labels[label[1]] = len(instructions)
            continue
        branch = _BRANCH.match(statement)
        instructions.append(statement)
        if branch and branch[1] in labels:  # backwards: a loop
            last[branch[1]] = len(instructions)
    spans = [(labels[label], end, label) for label, end in last.items()]
    loops = tuple(
        Loop(label, tuple(instructions[a:b]), not any((c, d) != (a, b) and a <= c and d <= b for c, d, _ in spans))
        for a, b, label in sorted(spans)
    )
    return Kernel(name, tuple(instructions), loops)


def _statements(body: str) -> list[str]:
    """Return labels and instructions, one each; declarations, directives, braces and comments are left out."""
    found = []
    for line in re.sub(r"//[^\n]*", "", body).splitlines():
        for part in line.replace(";", ";\n").splitlines():  # inline assembly puts several on one line
            text = re.sub(r"^[{}\s]+", "", part).strip()
            if text and not text.startswith("."):
                found.append(text)
    return found


def instruction_class(text: str) -> str:
    """Return the class of one PTX instruction.

    Memory accesses carry their width in bits (``"global_load_128"``), asynchronous copies theirs in bytes
    (``"async_copy_16"``). Others: ``matrix``, ``ldmatrix``, ``fma``, ``float``, ``special``, ``integer``,
    ``convert``, ``move``, ``compare``, ``branch``, ``barrier``, ``shuffle``, ``async_wait``, ``other``.

    Examples
    --------
    >>> instruction_class("@%p2 ld.global.nc.v2.f32 {%f1, %f2}, [%rd4];")
    'global_load_64'
    >>> instruction_class("cp.async.cg.shared.global [%r1], [%rd1], 16, %r2;")
    'async_copy_16'
    """
    words = re.sub(r"^@!?%p\d+\s+", "", text)
    opcode = re.match(r"[\w.:]+", words)
    name = opcode[0] if opcode else ""
    if name.startswith(_MATRIX):
        return "matrix"
    if name.startswith(("ldmatrix", "wmma.load")):
        return "ldmatrix"
    if name.startswith("cp.async"):
        size = re.search(r"\]\s*,\s*\[[^\]]*\]\s*,\s*(\d+)", words)
        return f"async_copy_{size[1]}" if size else "async_wait"
    memory = re.match(r"(ld|st|red|atom)\.(?:volatile\.)?(global|shared|local|param)", name)
    if memory:
        kind = {"ld": "load", "st": "store"}.get(memory[1], "atomic")
        return "move" if memory[2] == "param" else f"{memory[2]}_{kind}_{_width(name)}"
    return _arithmetic_class(name)


def _width(name: str) -> int:
    bits = _BITS.search(name)
    lanes = re.search(r"\.v([248])\.", name)
    return (int(bits[1]) if bits else 32) * (int(lanes[1]) if lanes else 1)


def _arithmetic_class(name: str) -> str:
    head = name.partition(".")[0]
    floating = re.search(r"\.(f16|f16x2|bf16|bf16x2|f32|f64)$", name) is not None
    if head == "fma":
        return "fma"
    if head in ("ex2", "lg2", "rcp", "rsqrt", "sqrt", "sin", "cos", "tanh") or (head == "div" and floating):
        return "special"
    simple = {"mov": "move", "cvta": "move", "cvt": "convert", "setp": "compare", "set": "compare", "selp": "move",
              "bra": "branch", "bar": "barrier", "barrier": "barrier", "shfl": "shuffle"}  # fmt: skip
    if head in simple:
        return simple[head]
    if floating:
        return "float"
    return "integer" if head in _INTEGER else "other"
