"""A kernel too large to be emulated stands proved by one of the same structure on smaller extents.

The same program is lowered once more for fewer tiles (:mod:`roller.tile.smaller`). That it is the same is not assumed:
both sources must be equal line by line but for the numbers in them. Lines that differ are counted, and said.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from roller.artifact import KernelArtifact
from roller.errors import RollerError
from roller.expr import TensorExpr
from roller.tile import RProgram
from roller.tile.smaller import smaller

#: Lowers a program for the device of the kernel in question.
Lower = Callable[[RProgram, TensorExpr], KernelArtifact]
#: Tiles an axis keeps, from few to more: small numbers may let a guard or a remainder disappear.
_TILES = (3, 7, 12)
_NUMBER = re.compile(r"0x[0-9a-fA-F]+(?:p[+-]?\d+)?|\b\d+(?:\.\d+)?(?:e[+-]?\d+)?[fuUlL]*\b")


@dataclass(frozen=True)
class Scaled:
    """A smaller kernel.

    Parameters
    ----------
    artifact
        The kernel, for its own, smaller expression.
    differing, lines
        Lines of the original that it does not have, whatever their numbers, and how many there are.
    """

    artifact: KernelArtifact
    differing: int
    lines: int

    @property
    def same(self) -> bool:
        """Whether both sources are equal but for numbers."""
        return not self.differing

    def __str__(self) -> str:
        """Return its extents."""
        extents = " ".join(f"{a.name}={a.extent}" for a in self.artifact.program.axes)
        but = "" if self.same else f" ({self.differing} of {self.lines} lines differ)"
        return f"scaled to {extents}{but}"


def scaled(artifact: KernelArtifact, lower: Lower) -> Scaled | None:
    """Return the smallest kernel of the same structure, or the one most like it; ``None`` where nothing may shrink."""
    found: list[Scaled] = []
    own = skeleton(artifact.source)
    for tiles in _TILES:
        program = smaller(artifact.program, tiles)
        if program is None:
            break
        try:
            made = lower(program, program.expr)
        except RollerError:  # the template does not take what is so small
            continue
        other = skeleton(made.source)
        lost = sum((Counter(own) - Counter(other)).values()) + sum((Counter(other) - Counter(own)).values())
        found.append(Scaled(made, max(lost, int(own != other)), len(own)))
        if found[-1].same:
            return found[-1]
    return min(found, key=lambda s: s.differing, default=None)


def skeleton(source: str) -> list[str]:
    """Return the lines of a source without their numbers; shifts and masks are the divisions they stand for.

    Examples
    --------
    >>> skeleton("A[(x >> 5) + 64]") == skeleton("A[(x / 3) + 192]")
    True
    """
    text = _NUMBER.sub("#", source).replace(">> #", "/ #").replace("& #", "% #")
    return [line.strip() for line in text.splitlines()]
