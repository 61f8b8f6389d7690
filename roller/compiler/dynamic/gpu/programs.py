"""GPU programs with dynamic extents, and one kernel for all sizes with the same code.

Tiles fix blocks and threads, and guards stop at the ends of axes, so the code for different sizes differs only in
numbers, which become kernel arguments. A call generates the code for its own sizes and uses the kernel only if
everything else is equal.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from roller.artifact import KernelArtifact
from roller.compiler.dynamic import price_symbolic_programs
from roller.compiler.dynamic.dynamic_size_box import Sizes
from roller.compiler.dynamic.symbolic_programs import SymbolicProgram
from roller.errors import BuildError, RollerError, TileError, counted
from roller.expr import SPATIAL, TensorExpr
from roller.hardware import DeviceSpec
from roller.targets import target_for
from roller.templates import price_with_templates
from roller.tile import RProgram
from roller.tile.geometry import Geometry
from roller_runtime.core.kernel_argument import Argument

if TYPE_CHECKING:
    from roller.templates.gpu.emit.size_arguments import CodeForSizes, CodeNumbers

#: Log level for a kernel that is not used at some sizes, which other kernels support.
UNUSED = logging.DEBUG
#: Pattern of vector accesses to memory, as TVM prints them.
_VECTOR = re.compile(r"\*\(u?[a-z]+\d\*\)")
#: Maximum number of versions of a program's code in its cache, which evicts the oldest, and in one kernel.
MOST_KEPT = 64


@dataclass(frozen=True)
class SymbolicGpuProgram(SymbolicProgram):
    """A GPU program for all sizes; for further fields, see :class:`SymbolicProgram`."""

    #: Whether rows of variable length are copied element by element, so that the code serves any length, not only
    #: multiples of a vector's length.
    scalar: bool = False
    _own: dict[tuple[int, ...], CodeForSizes | str] = field(default_factory=dict, compare=False, repr=False)

    def at(self, sizes: Sizes) -> RProgram:
        """Return the program at the given sizes: the same tiles, but whole windows if threads slide over them."""
        p, expr = self.program, self.form.at(sizes)
        tiles = p.tiles
        if p.traits.slides_windows:
            whole = [a.extent if a.kind != SPATIAL else 0 for a in expr.axes]
            tiles = tuple((layer, tuple(w or t for w, t in zip(whole, tile, strict=True))) for layer, tile in tiles)
        return replace(p, expr=expr, tiles=tiles, open_axes=self.open_axes, relaxed=())

    def takes(self, sizes: Sizes) -> bool:
        """Return whether the program may have code for these sizes; only generating the code can decide."""
        return True

    def key(self) -> tuple[Any, ...]:
        """Return the identity of the program without its sizes."""
        p = self.program
        return (p.structure, p.tiles, p.staged, p.storage_padding, p.vector_axis, p.vector_elements, p.interleaved,
                p.split_k, p.stages, p.raster, p.fragment, p.matrix_axes, self.scalar, id(self.form))  # fmt: skip

    @property
    def with_scalar_variant(self) -> list[SymbolicGpuProgram]:
        """The program and, if it has rows of variable length, a variant without vector accesses along these rows."""
        expr, varying = self.program.expr, set(self.open_axes)
        ends = [load.index[-1].axes for s in expr.stages for load in s.loads if load.index]
        ends += [s.store[-1].axes for s in expr.stages if s.store]
        if not any(varying.intersection(axes) for axes in ends):
            return [self]
        plain = self.program.vector_axis is not None and self.program.vector_axis in varying
        program = replace(self.program, vector_elements=1) if plain else self.program
        return [self, SymbolicGpuProgram(program, self.form, self.sizes, scalar=True)]

    def own(self, sizes: Sizes, spec: DeviceSpec) -> CodeForSizes | str:
        """Return the program's code for the given sizes, or the reason why it has none."""
        from roller.templates.gpu.emit.size_arguments import CodeForSizes

        key = tuple(sizes.values())
        if key not in self._own:
            if len(self._own) >= MOST_KEPT:
                del self._own[next(iter(self._own))]
            try:
                program = self.at(sizes)
                spec.traits.module_for("templates", "checks").check_program(program, Geometry.of(program.expr), spec)
                generation = target_for(spec).generation()
                self._own[key] = CodeForSizes(generation.write_tir_kernels_for(program, spec, scalar=self.scalar))
            except RollerError as err:
                self._own[key] = str(err)
        return self._own[key]

    def codes_at(self, several: Sequence[Sizes], spec: DeviceSpec) -> list[CodeForSizes | str]:
        """Return the program's code for several sizes, each generated only once even if the cache evicts it."""
        kept = {key: self._own[key] for p in several if (key := tuple(p.values())) in self._own}
        return [kept[key] if (key := tuple(p.values())) in kept else self.own(p, spec) for p in several]


@dataclass(frozen=True)
class GpuKernel:
    """A kernel for all sizes with the same code."""

    program: SymbolicGpuProgram
    artifact: KernelArtifact  #: Artifact with the numbers for one choice of sizes
    numbers: CodeNumbers  #: The numbers in the code that are passed as arguments
    code: str  #: Digest of the code without these numbers
    spec: DeviceSpec

    def takes(self, sizes: Sizes) -> bool:
        """Return whether the kernel may support these sizes."""
        return self.program.takes(sizes)

    def passed(self, sizes: Sizes) -> dict[str, int] | str:
        """Return the kernel's arguments for the given sizes, or the reason why it cannot be used."""
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
        """Return the artifact with the shapes and numbers of the given sizes and the same source."""
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
    """Return predicted seconds at the given sizes, shape ``(programs,)``; infinite if unsupported."""
    # A program that copies single elements is priced at the next odd sizes, where all programs do.
    single = [n for n, p in enumerate(programs) if isinstance(p, SymbolicGpuProgram) and p.scalar]
    if single and any(x % 2 == 0 for x in sizes.values()):
        others = [n for n in range(len(programs)) if n not in single]
        out = np.full(len(programs), np.inf)
        out[others] = predicted([programs[n] for n in others], sizes, spec) if others else 0.0
        out[single] = predicted([programs[n] for n in single], {n: x | 1 for n, x in sizes.items()}, spec)
        return out
    try:
        return price_symbolic_programs.predicted(programs, sizes, spec)
    except TileError:  # windows of one element are not windows
        if len(programs) == 1:
            return np.full(1, np.inf)
        return np.concatenate([predicted([p], sizes, spec) for p in programs])


def fault(kernel: GpuKernel, expression: TensorExpr, sizes: Sizes, spec: DeviceSpec) -> str:
    """Return why a kernel cannot be used at the given sizes; empty if it equals the program's own code."""
    del expression, spec
    values = kernel.passed(sizes)
    return f"at {dict(sizes)}: {values}" if isinstance(values, str) else ""


def build(
    program: SymbolicGpuProgram, codes: Sequence[CodeForSizes], sizes: Sizes, expression: TensorExpr, spec: DeviceSpec
) -> GpuKernel:
    """Return one kernel for versions of a program's code that differ only in numbers; its source is not compiled."""
    from roller.templates.gpu.emit.size_arguments import generalise_code

    code, numbers = generalise_code(codes)
    made = program.at(sizes)
    artifact = target_for(spec).generation().lower_tir_kernels_for(code, made, expression, spec)
    packing = set(artifact.prepare.arguments) & set(numbers.names) if artifact.prepare is not None else ()
    if packing:
        raise BuildError(
            f"{expression.name}: a kernel of a range: expected constants packed alike for all sizes, got packing that "
            f"takes {counted(len(packing), 'number')} of them."
        )
    estimate = price_with_templates.estimate_program(made, spec).to_dict()
    alone = target_for(spec).generation().lower_tir_kernels_for(codes[0].code, made, expression, spec)
    if _count_vector_accesses(artifact) < _count_vector_accesses(alone):
        raise BuildError(f"{expression.name}: a kernel of a range: expected the vectors of one shape's, got fewer.")
    kernel = GpuKernel(program, replace(artifact, estimate=estimate), numbers, codes[0].digest, spec)
    return replace(kernel, artifact=kernel.at(sizes, expression))


def _count_vector_accesses(artifact: KernelArtifact) -> int:
    """Return the number of vector accesses in a source, which TVM emits if it knows the alignment."""
    return len(_VECTOR.findall(artifact.source))
