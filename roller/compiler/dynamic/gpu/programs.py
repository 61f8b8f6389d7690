"""Programs of a GPU whose extents are functions of sizes, and their one kernel for all that have the same code.

Blocks and threads are fixed by the tiles, which stay as they are; beyond the end of an axis nothing is loaded or
stored. So a program has one code for nearly all sizes, that differs in numbers. They are arguments of its kernel, and a
call passes those of the program's own code for its sizes: written then, which takes some tens of milliseconds, and held
against the kernel's. Where all but the passed numbers are equal both are one code; else the kernel is not used there.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from roller.artifact import Argument, KernelArtifact
from roller.compiler.dynamic import prices
from roller.compiler.dynamic.box import Sizes
from roller.compiler.dynamic.symbolic_programs import SymbolicProgram
from roller.errors import BuildError, RollerError, TileError, counted
from roller.expr import SPATIAL, TensorExpr
from roller.hardware import DeviceSpec
from roller.targets import target_for
from roller.templates import pricing
from roller.tile import RProgram
from roller.tile.geometry import Geometry

if TYPE_CHECKING:
    from roller.templates.gpu.emit.general import Numbers, OwnCode

#: How loud it is said that a kernel is not used at some sizes: others have the code of these.
UNUSED = logging.DEBUG
#: Vectors in memory, as TVM prints them.
_VECTOR = re.compile(r"\*\(u?[a-z]+\d\*\)")
#: Codes of a program that are kept, and that a kernel is made of; the first of them makes room for another.
MOST_KEPT = 64


@dataclass(frozen=True)
class GpuProgram(SymbolicProgram):
    """A program of a GPU for all sizes.

    Parameters
    ----------
    program, form, sizes
        As of :class:`SymbolicProgram`.
    scalar
        Whether rows whose length differs are copied by single elements: one code for rows of any length, where others
        have one for those that are multiples of a vector.
    """

    scalar: bool = False
    _own: dict[tuple[int, ...], OwnCode | str] = field(default_factory=dict, compare=False, repr=False)

    def at(self, sizes: Sizes) -> RProgram:
        """Return the program of some sizes: the same tiles, but those of windows that threads walk, which are whole."""
        p, expr = self.program, self.form.at(sizes)
        tiles = p.tiles
        if p.traits.slides_windows:
            whole = [a.extent if a.kind != SPATIAL else 0 for a in expr.axes]
            tiles = tuple((layer, tuple(w or t for w, t in zip(whole, tile, strict=True))) for layer, tile in tiles)
        return replace(p, expr=expr, tiles=tiles, open_axes=self.open_axes, relaxed=())

    def takes(self, sizes: Sizes) -> bool:
        """Whether it may have code for such a call, which its code says."""
        return True

    def key(self) -> tuple[Any, ...]:
        """Return what tells it from others: all but its sizes."""
        p = self.program
        return (p.structure, p.tiles, p.staged, p.storage_padding, p.vector_axis, p.vector_elements, p.interleaved,
                p.split_k, p.stages, p.raster, p.fragment, p.matrix_axes, self.scalar, id(self.form))  # fmt: skip

    @property
    def with_scalar(self) -> list[GpuProgram]:
        """The program, and the same without vectors where the rows of a tensor differ in length."""
        expr, varying = self.program.expr, set(self.open_axes)
        ends = [load.index[-1].axes for s in expr.stages for load in s.loads if load.index]
        ends += [s.store[-1].axes for s in expr.stages if s.store]
        if not any(varying.intersection(axes) for axes in ends):
            return [self]
        plain = self.program.vector_axis is not None and self.program.vector_axis in varying
        program = replace(self.program, vector_elements=1) if plain else self.program
        return [self, GpuProgram(program, self.form, self.sizes, scalar=True)]

    def own(self, sizes: Sizes, spec: DeviceSpec) -> OwnCode | str:
        """Return its code for some sizes, or why it has none."""
        from roller.templates.gpu.emit.general import OwnCode

        key = tuple(sizes.values())
        if key not in self._own:
            if len(self._own) >= MOST_KEPT:
                del self._own[next(iter(self._own))]
            try:
                program = self.at(sizes)
                spec.traits.module_for("templates", "checks").check_program(program, Geometry.of(program.expr), spec)
                generation = target_for(spec).generation()
                self._own[key] = OwnCode(generation.unlowered_for(program, spec, scalar=self.scalar))
            except RollerError as err:
                self._own[key] = str(err)
        return self._own[key]

    def owns(self, several: Sequence[Sizes], spec: DeviceSpec) -> list[OwnCode | str]:
        """Return its code for several sizes; none is written twice, though one that is written makes another go."""
        kept = {key: self._own[key] for p in several if (key := tuple(p.values())) in self._own}
        return [kept[key] if (key := tuple(p.values())) in kept else self.own(p, spec) for p in several]


@dataclass(frozen=True)
class GpuKernel:
    """A kernel of all sizes that have its code.

    Parameters
    ----------
    program
        Its program.
    artifact
        With the numbers of some of the sizes.
    numbers
        Which numbers of the code are passed.
    code
        Digest of all others.
    spec
        The device.
    """

    program: GpuProgram
    artifact: KernelArtifact
    numbers: Numbers
    code: str
    spec: DeviceSpec

    def takes(self, sizes: Sizes) -> bool:
        """Whether it may be asked for such a call."""
        return self.program.takes(sizes)

    def passed(self, sizes: Sizes) -> dict[str, int] | str:
        """Return the numbers that it takes for some sizes, or why it cannot be used there."""
        own = self.program.own(sizes, self.spec)
        if isinstance(own, str):
            return f"its program has no code: {own}"
        if own.digest != self.code:
            return "its program has code of another kind"
        panels = [a for a in self.artifact.arguments if a.role == "panel"]
        if panels != [a for a in own.code.arguments if a.role == "panel"]:
            return "its program packs constants in another way"
        values = self.numbers.read(own.numbers)
        return "its program has other numbers than it was built with" if values is None else values

    def at(self, sizes: Sizes, expression: TensorExpr) -> KernelArtifact:
        """Return the artifact with the shapes and numbers of some sizes: the same source."""
        values, own = self.passed(sizes), self.program.own(sizes, self.spec)
        if isinstance(values, str) or isinstance(own, str):
            raise BuildError(f"{expression.name}: a kernel of a range: at {dict(sizes)}: {values}.")
        held = self.artifact
        first = 1 if held.prepare is not None else 0
        launches = tuple(replace(x, grid=g) for x, g in zip(held.launches, own.grids[first:], strict=True))
        arguments = (*own.code.arguments, *(Argument.of_number(n, x) for n, x in values.items()))
        return replace(
            held, expression=expression, program=self.program.at(sizes), launches=launches, arguments=arguments
        )


def predicted(programs: Sequence[SymbolicProgram], sizes: Sizes, spec: DeviceSpec) -> np.ndarray:
    """Return the predicted seconds of programs at some sizes; infinite where one says nothing there.

    One that copies single elements is priced for the next odd sizes, where all do.
    """
    single = [n for n, p in enumerate(programs) if isinstance(p, GpuProgram) and p.scalar]
    if single and any(x % 2 == 0 for x in sizes.values()):
        others = [n for n in range(len(programs)) if n not in single]
        out = np.full(len(programs), np.inf)
        out[others] = predicted([programs[n] for n in others], sizes, spec) if others else 0.0
        out[single] = predicted([programs[n] for n in single], {n: x | 1 for n, x in sizes.items()}, spec)
        return out
    try:
        return prices.predicted(programs, sizes, spec)
    except TileError:  # windows of one element are none
        if len(programs) == 1:
            return np.full(1, np.inf)
        return np.concatenate([predicted([p], sizes, spec) for p in programs])


def fault(kernel: GpuKernel, expression: TensorExpr, sizes: Sizes, spec: DeviceSpec) -> str:
    """Return why a kernel cannot be used at some sizes; empty where it is the program's own code for them."""
    del expression, spec
    values = kernel.passed(sizes)
    return f"at {dict(sizes)}: {values}" if isinstance(values, str) else ""


def build(
    program: GpuProgram, codes: Sequence[OwnCode], sizes: Sizes, expression: TensorExpr, spec: DeviceSpec
) -> GpuKernel:
    """Return the kernel of codes of a program that differ in numbers only; its source is not built."""
    from roller.templates.gpu.emit.general import generalised

    code, numbers = generalised(codes)
    made = program.at(sizes)
    artifact = target_for(spec).generation().lowered_for(code, made, expression, spec)
    packing = set(artifact.prepare.arguments) & set(numbers.names) if artifact.prepare is not None else ()
    if packing:
        raise BuildError(
            f"{expression.name}: a kernel of a range: expected constants packed alike for all sizes, got packing that "
            f"takes {counted(len(packing), 'number')} of them."
        )
    estimate = pricing.estimate_program(made, spec).to_dict()
    alone = target_for(spec).generation().lowered_for(codes[0].code, made, expression, spec)
    if _vectors(artifact) < _vectors(alone):
        raise BuildError(f"{expression.name}: a kernel of a range: expected the vectors of one shape's, got fewer.")
    kernel = GpuKernel(program, replace(artifact, estimate=estimate), numbers, codes[0].digest, spec)
    return replace(kernel, artifact=kernel.at(sizes, expression))


def _vectors(artifact: KernelArtifact) -> int:
    """Return how often a source reads or writes vectors in memory: TVM does where it sees where they begin."""
    return len(_VECTOR.findall(artifact.source))
