"""One kernel for the sizes of many calls: numbers that differ between sizes become arguments.

A template writes kernels for given numbers. For several shapes with the same tiles, the texts differ only in numbers
(:mod:`roller.templates.emit.separated_tir_numbers`); the differing numbers become ``int`` arguments of the kernels.
The result is
the least general generalization of the texts. The arguments of a call are read from the code that the templates write
for its sizes, so that the kernel equals that code number for number.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from roller.errors import BuildError
from roller.te.compat import tirx
from roller.templates.emit.separated_tir_numbers import (
    TirText,
    number_values_by_position,
    separate_numbers,
    substitute_formulas,
)
from roller.templates.gpu.emit.cuda import TirKernels, thread_extents
from roller_runtime.core.size_formulas import Atom, Formula

#: Exclusive upper limit of a passed number.
_LIMIT = 1 << 31
#: Maximum number of numbers passed to a kernel: 2 KiB at 4 bytes each. With 8 bytes for each array, they stay within
#: the 4096 bytes that parameters of a kernel may take (CUDA before 12.1, and GPUs before Volta; 32,764 bytes since:
#: CUDA C++ Programming Guide, "Function Parameters").
_MOST = 512
#: Largest divisor of a passed number that TVM needs to know: at least the number of elements in the widest vector.
_UNIT = 64
#: For each division that rounds down, the truncating division, which is equal for non-negative numbers and takes one
#: instruction fewer.
_ROUNDED = {"prim.FloorDiv": "prim.Div", "prim.FloorMod": "prim.Mod"}
#: Operations on non-negative numbers whose result is non-negative.
_KEEP_SIGN = ("prim.Add", "prim.Mul", "prim.FloorDiv", "prim.FloorMod", "prim.Min", "prim.Max", "prim.Div", "prim.Mod")


@dataclass(frozen=True)
class CodeForSizes:
    """Code of a program for some sizes, as the templates write it."""

    code: TirKernels

    @cached_property
    def text(self) -> TirText:
        """The code as data, with its numbers stored separately."""
        return separate_numbers([*self.code.params, self.code.body], kept=True)

    @cached_property
    def digest(self) -> str:
        """Hash that is the same for code that differs only in numbers."""
        c = self.code
        kinds = [[a.name, a.role, len(a.shape), a.dtype] for a in c.arguments]
        rest = json.dumps([kinds, dict(c.names), c.entry, c.prepares, c.own_barriers])
        return hashlib.sha256((self.text.shape + rest).encode()).hexdigest()

    @cached_property
    def numbers(self) -> tuple[int, ...]:
        """Numbers of the code, in order."""
        return tuple(number for _, number in self.text.numbers)

    @cached_property
    def grids(self) -> tuple[tuple[int, int, int], ...]:
        """Grid of each kernel, in order: numbers of blocks along x, y and z."""
        body = self.code.body
        several = list(body.seq) if isinstance(body, tirx.SeqStmt) else [body]
        extents = [thread_extents(kernel) for kernel in several]
        x, y, z = ([int(e.get(f"blockIdx.{c}", 1)) for e in extents] for c in "xyz")
        return tuple(zip(x, y, z, strict=True))


@dataclass(frozen=True)
class CodeNumbers:
    """Split of a code's numbers into constants and arguments.

    Parameters
    ----------
    constants
        Value of the number at each position; ``None`` for an argument.
    passed
        Index of the argument at each position; ``-1`` for a constant.
    units
        Divisor of each argument: TVM must know that vectors start at multiples of their number of elements.
    names
        Names of the arguments.
    """

    constants: tuple[int | None, ...]
    passed: tuple[int, ...]
    units: tuple[int, ...]
    names: tuple[str, ...]

    @classmethod
    def of(cls, several: Sequence[CodeForSizes]) -> CodeNumbers:
        """Return the split for code of equal text: numbers that differ are passed, equal columns of them only once."""
        text = several[0].text
        columns, blocks = number_values_by_position([c.text for c in several]), _block_count_positions(text.nodes)
        found: dict[tuple[bool, tuple[int, ...]], int] = {}
        passed = []
        for (at, _), column in zip(text.numbers, columns, strict=True):
            differs = len(set(column)) > 1
            passed.append(found.setdefault((at in blocks, column), len(found)) if differs else -1)
        name = "n"
        while f'"{name}' in text.shape:
            name += "_"
        return cls(
            tuple(None if at >= 0 else c[0] for c, at in zip(columns, passed, strict=True)), tuple(passed),
            tuple(1 if is_blocks else math.gcd(_UNIT, *column) for is_blocks, column in found),
            tuple(f"{name}{k}" for k in range(len(found))),
        )  # fmt: skip

    def read(self, numbers: Sequence[int]) -> dict[str, int] | None:
        """Return the arguments for code with these numbers, or ``None`` if this kernel does not cover it."""
        values: dict[int, int] = {}
        for number, constant, at in zip(numbers, self.constants, self.passed, strict=True):
            if at < 0:
                if number != constant:
                    return None
            elif not 0 <= number < _LIMIT or number % self.units[at] or values.setdefault(at, number) != number:
                return None
        return {name: values[n] // self.units[n] for n, name in enumerate(self.names)}


def _block_count_positions(nodes: Sequence[Mapping[str, Any]]) -> set[int]:
    """Return the positions of numbers of blocks, which the launch contains."""
    data: list[Any] = [n["data"] for n in nodes if n["type"] == "tirx.IterVar"]
    doms: list[Any] = [nodes[d["dom"]]["data"] for d in data]
    return {d["extent"] for d in doms}


def generalise_code(several: Sequence[CodeForSizes]) -> tuple[TirKernels, CodeNumbers]:
    """Return one code for all sizes, and the split of the code's numbers into constants and arguments."""
    first = several[0]
    if any(c.digest != first.digest for c in several):
        raise BuildError("a kernel of a range: expected the same code for all sizes, got another one for some.")
    numbers = CodeNumbers.of(several)
    if len(numbers.names) > _MOST:
        raise BuildError(
            f"a kernel of a range: expected at most {_MOST} numbers that differ between sizes, got "
            f"{len(numbers.names)}."
        )
    values = numbers.read(first.numbers)
    if values is None or any(numbers.read(c.numbers) is None for c in several):
        found = [n for c in several for n, at in zip(c.numbers, numbers.passed, strict=True) if at >= 0]
        raise BuildError(
            "a kernel of a range: expected numbers from 0 to 2**31 - 1 where sizes differ, got "
            f"{next(n for n in found if not 0 <= n < _LIMIT)}."
        )
    formulas = [
        Formula(0, ((numbers.units[at], (Atom((numbers.names[at],)),)),)) if constant is None else Formula(constant)
        for constant, at in zip(numbers.constants, numbers.passed, strict=True)
    ]
    text = replace(first.text, nodes=_with_truncating_divisions(first.text, numbers.passed))
    *params, body, passed = substitute_formulas(text, formulas, numbers.names)
    return replace(first.code, params=(*params, *passed), body=body, numbers=values), numbers


def _with_truncating_divisions(text: TirText, passed: Sequence[int]) -> tuple[dict[str, Any], ...]:
    """Return a text's nodes with truncating divisions where a non-negative number is divided by an argument."""
    # TVM knows the sign of a constant but not of an argument, for which it would write both cases.
    numbers = {at: (n, p) for (at, n), p in zip(text.numbers, passed, strict=True)}
    counters = _counting_variables(text.nodes, numbers)
    positive: dict[int, bool] = {}
    out = []
    for at, node in enumerate(text.nodes):
        kind: str = node["type"]
        data: Any = node.get("data")
        if at in numbers:
            positive[at] = numbers[at][0] >= 0
        elif kind == "ir.IntImm":
            positive[at] = data["value"]["number"] >= 0
        elif kind in _KEEP_SIGN:
            positive[at] = all(positive.get(data[k], False) for k in ("a", "b"))
        else:
            positive[at] = at in counters
        if kind in _ROUNDED and positive[at] and numbers.get(data["b"], (0, -1))[1] >= 0:
            node = {**node, "type": _ROUNDED[kind]}
        out.append(node)
    return tuple(out)


def _counting_variables(nodes: Sequence[Mapping[str, Any]], numbers: Mapping[int, tuple[int, int]]) -> set[int]:
    """Return the variables of loops, blocks and threads, which count from 0."""
    found = set()
    for node in nodes:
        data: Any = node.get("data")
        if node["type"] == "tirx.For" and (numbers.get(data["min"]) == (0, -1)):
            found.add(data["loop_var"])
        elif node["type"] == "tirx.IterVar":
            found.add(data["var"])
    return found
