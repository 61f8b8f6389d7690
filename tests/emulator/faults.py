"""Faults planted into emitted kernels: each takes a source and returns it changed, or as it was where it cannot."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace

from roller.artifact import KernelArtifact


def planted(made: KernelArtifact, fault: Callable[[str, KernelArtifact], str]) -> KernelArtifact | None:
    """Return the artifact with a fault in its launches, or ``None`` where the source has no place for it."""
    launches = tuple(replace(x, source=fault(x.source, made)) for x in made.launches)
    return None if launches == made.launches else replace(made, launches=launches)


def index_off_by_one(source: str, made: KernelArtifact) -> str:
    """Store every output one element further."""
    name = made.outputs[0].name
    return re.sub(rf"\b{name}_ptr( \+ |\[)", rf"{name}_ptr\g<1>1 + ", source)


def input_off_by_one(source: str, made: KernelArtifact) -> str:
    """Read the first input one element further."""
    name = made.inputs[0].name
    return re.sub(rf"\b{name}_ptr( \+ |\[)", rf"{name}_ptr\g<1>1 + ", source)


def barriers_missing(source: str, made: KernelArtifact) -> str:
    """Leave the barriers out."""
    return source.replace("__syncthreads();", ";")


def guard_dropped(source: str, made: KernelArtifact) -> str:
    """Take every branch whose condition is a bound."""
    return re.sub(r"if \((?=\(.* < \d+\)+ \{)", "if (true || ", source)


def wrong_register(source: str, made: KernelArtifact) -> str:
    """Store the neighbour of the register that was meant."""
    aligned = r"(?:alignas\(\d+\)|__attribute__\(\(aligned\(\d+\)\)\))?"
    registers = re.findall(rf"^ *{aligned} *\w+ (\w+_ptr)\[(\d+)\];", source, re.M)
    many = "|".join(n for n, count in registers if int(count) > 1)
    name = made.outputs[0].name
    if not many:
        return source
    lines = source.splitlines(keepends=True)
    for n, line in enumerate(lines):
        stored = re.match(rf"(.*\b{name}_ptr.* = )(.*)", line, re.S)
        if stored:
            lines[n] = stored[1] + re.sub(rf"\b({many})\[([^\[\]]+)\]", r"\1[(\2) ^ 1]", stored[2])
    return "".join(lines)


def first_block_only(source: str, made: KernelArtifact) -> str:
    """Let all blocks but the first write what the one before them has."""
    return source.replace("((int)blockIdx.x)", "((int)(blockIdx.x - (blockIdx.x > 0)))")


FAULTS = (index_off_by_one, input_off_by_one, barriers_missing, guard_dropped, wrong_register, first_block_only)
