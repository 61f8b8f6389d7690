"""Scales a kernel that is too large to emulate down to one with the same structure and smaller extents."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from roller.artifact import KernelArtifact
from roller.errors import RollerError
from roller.expr import TensorExpr
from roller.tile import RProgram
from roller.tile.shrink_program import shrink_program

#: Function that lowers a program for the device of the original kernel.
Lower = Callable[[RProgram, TensorExpr], KernelArtifact]
#: Numbers of tiles per axis to try; with few tiles a guard or a remainder may disappear.
_TILES = (3, 7, 12)
_NUMBER = re.compile(r"0x[0-9a-fA-F]+(?:p[+-]?\d+)?|\b\d+(?:\.\d+)?(?:e[+-]?\d+)?[fuUlL]*\b")


@dataclass(frozen=True)
class ScaledKernel:
    """A smaller kernel with its own, smaller expression."""

    artifact: KernelArtifact
    #: Number of lines that differ from the original's in more than numbers, and number of original lines.
    differing: int
    lines: int

    @property
    def same(self) -> bool:
        """Whether both sources are equal except for numbers."""
        return not self.differing

    def __str__(self) -> str:
        extents = " ".join(f"{a.name}={a.extent}" for a in self.artifact.program.axes)
        but = "" if self.same else f" ({self.differing} of {self.lines} lines differ)"
        return f"scaled to {extents}{but}"


def find_scaled_kernel(artifact: KernelArtifact, lower: Lower) -> ScaledKernel | None:
    """Return the smallest kernel with the same structure, or the most similar one; ``None`` if no axis can shrink."""
    found: list[ScaledKernel] = []
    own = source_lines_without_numbers(artifact.source)
    for tiles in _TILES:
        program = shrink_program(artifact.program, tiles)
        if program is None:
            break
        try:
            made = lower(program, program.expr)
        except RollerError:  # too small for the template
            continue
        other = source_lines_without_numbers(made.source)
        lost = sum((Counter(own) - Counter(other)).values()) + sum((Counter(other) - Counter(own)).values())
        found.append(ScaledKernel(made, max(lost, int(own != other)), len(own)))
        if found[-1].same:
            return found[-1]
    return min(found, key=lambda s: s.differing, default=None)


def source_lines_without_numbers(source: str) -> list[str]:
    """Return the lines of a source without numbers; shifts become divisions, and masks become remainders.

    >>> source_lines_without_numbers("A[(x >> 5) + 64]") == source_lines_without_numbers("A[(x / 3) + 192]")
    True
    """
    text = _NUMBER.sub("#", source).replace(">> #", "/ #").replace("& #", "% #")
    return [line.strip() for line in text.splitlines()]
