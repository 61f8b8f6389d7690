"""Programs and kernels whose extents are functions of sizes, in any dimension of any tensor."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from roller.artifact import KernelArtifact
from roller.compiler.dynamic.dynamic_size_box import Sizes
from roller.core.anti_unification import MismatchError, general
from roller.core.formula_fitting import FormulaFitter
from roller.expr import SPATIAL, TensorExpr
from roller.expr.serialize import expr_from_dict, expr_to_dict
from roller.templates.common.forms import canonical_forms, joined_channel_forms
from roller.templates.common.options import ConstructOptions
from roller.tile import RProgram
from roller.tile.winograd import window_product
from roller_runtime.core.generalized_data import GeneralizedData
from roller_runtime.core.kernel_argument import Argument
from roller_runtime.core.size_formulas import Atom, Formula

#: Additional numbers of lanes, for programs on few elements.
FEW_LANES = (1, 4)


@dataclass(frozen=True)
class SymbolicExpr:
    """An expression for all sizes, as generalized data."""

    general: GeneralizedData
    _memo: dict[tuple[int, ...], TensorExpr] = field(default_factory=dict, compare=False, repr=False)

    def __reduce__(self) -> tuple[Any, ...]:
        """Leave out cached expressions."""
        return SymbolicExpr, (self.general,)

    def at(self, sizes: Sizes) -> TensorExpr:
        """Return the expression at the given sizes; the result is cached."""
        key = tuple(sizes.values())
        if key not in self._memo:
            self._memo[key] = expr_from_dict(self.general.at(sizes))
        return self._memo[key]

    @classmethod
    def of(cls, several: Sequence[TensorExpr], points: Sequence[Sizes]) -> SymbolicExpr:
        """Return the expression for all sizes, derived from expressions at some sizes."""
        return cls(general([expr_to_dict(e) for e in several], FormulaFitter(points)))


def canonical_symbolic_forms(
    expr: SymbolicExpr, points: Sequence[Sizes], options: ConstructOptions
) -> list[SymbolicExpr]:
    """Return the canonical forms of an expression, generalized over all points."""
    found = []
    for forms_of in (canonical_forms, joined_channel_forms):
        for forms in zip(*(forms_of(expr.at(p), options) for p in points), strict=False):
            with contextlib.suppress(MismatchError):
                found.append(SymbolicExpr.of(forms, points))
    return found


@dataclass(frozen=True)
class SymbolicProgram:
    """A program for all sizes above some minimum."""

    program: RProgram  #: The program at ``sizes``
    form: SymbolicExpr  #: Its expression for all sizes
    sizes: Sizes  #: The sizes it was constructed for

    @cached_property
    def extents(self) -> tuple[int | Formula, ...]:
        """Extent of each axis: a number, or a formula in the sizes."""
        node: Any = self.form.general.data
        anchor = self.program.expr.stages.index(self.program.expr.anchor)
        steps: tuple[tuple[Any, type], ...] = (("stages", dict), (anchor, list), ("axes", dict))
        for step, kind in steps:
            held: Any = node
            node = held[step] if isinstance(node, kind) else None
        fixed = tuple(a.extent for a in self.program.axes)
        if not isinstance(node, list):
            return fixed
        return tuple(a[1] if isinstance(a, list) else x for a, x in zip(node, fixed, strict=True))

    @cached_property
    def open_axes(self) -> tuple[str, ...]:
        """Axes with dynamic extents: first the anchor's axes, then those of other stages."""
        anchor = [n for n, e in zip(self.program.axis_names, self.extents, strict=True) if isinstance(e, Formula)]
        node = self.form.general.data
        stages = node["stages"] if isinstance(node, dict) and isinstance(node["stages"], list) else []
        varying = [s["axes"] for s in stages if isinstance(s, dict) and isinstance(s["axes"], list)]
        others = [a[0] for axes in varying for a in axes if isinstance(a, list) and isinstance(a[1], Formula)]
        return tuple(dict.fromkeys((*anchor, *others)))

    @property
    def kind(self) -> tuple[object, ...]:
        """Properties in which equally priced programs differ: template, and static axes split among tasks."""
        # Tasks that each take some filters read them once; tasks that take rows of an image all read all filters.
        p, task = self.program, self.program.tiles[-1][1]
        cut = tuple(a.name for a, t in zip(p.axes, task, strict=True)
                    if a.kind == SPATIAL and a.name not in self.open_axes and t < a.extent)  # fmt: skip
        return p.structure, cut

    @cached_property
    def tensors_divided_by_sizes(self) -> frozenset[str]:
        """Tensors read at an index divided by a dynamic size; division by a static size becomes a multiplication."""
        node = self.form.general.data
        return frozenset(_tensors_divided_by_sizes(node["stages"])) if isinstance(node, dict) else frozenset()

    @cached_property
    def fixed_axes(self) -> frozenset[str]:
        """Axes with static extents in the code: filters and channels of Winograd's algorithm."""
        p = self.program
        found = window_product(p.expr) if p.traits.output_side else None
        return frozenset() if found is None else frozenset((found.filter, found.channel))

    @cached_property
    def anchor_may_change(self) -> bool:
        """Whether another stage may become the anchor at other sizes."""
        stages = self.program.expr.stages
        reducing = [s for s in stages if s.combiner is not None]
        return len(reducing or stages) > 1

    @cached_property
    def units(self) -> tuple[int, ...]:
        """Number of elements per axis that are handled as one: the outputs of a Winograd tile, otherwise 1."""
        p = self.program
        found = window_product(p.expr) if p.traits.output_side else None
        sliding = {axis for axis, _, _ in found.slides} if found is not None else set()
        return tuple(p.traits.output_side if n in sliding else 1 for n in p.axis_names)

    def at(self, sizes: Sizes) -> RProgram:
        """Return the program at the given sizes: the same tiles, and whole axes stay whole."""
        expr = self.form.at(sizes)
        # Winograd tiles stay unchanged: a task beyond the end of an axis is clipped.
        clipped = self.program.traits.output_side > 0
        tiles, above = list[tuple[str, tuple[int, ...]]](), (1,) * len(expr.axes)
        for layer, tile in self.program.tiles:
            cut = []
            for n, (was, now) in enumerate(zip(self.program.axes, expr.axes, strict=True)):
                reduced = now.kind != SPATIAL and was.name in self.open_axes
                whole = tile[n] >= was.extent and not (clipped and was.name in self.open_axes)
                held = now.extent if tiles and (whole or reduced) else tile[n]
                if tiles and whole and not reduced and was.name in self.open_axes:
                    held += tiles[0][1][n]  # at least two tiles per task: a single tile gives different code
                cut.append(-(-held // above[n]) * above[n])
            above = tuple(cut)
            tiles.append((layer, above))
        return replace(
            self.program, expr=expr, tiles=tuple(tiles), open_axes=self.open_axes, relaxed=(), nontemporal=False
        )

    def takes(self, sizes: Sizes) -> bool:
        """Return whether the code supports the sizes: the anchor stays, and each dynamic axis fills a register tile."""
        if self.fixed_axes & set(self.open_axes):
            return False
        if any(extent.at(sizes) < least for extent, least in self.minimums):
            return False
        return not self.anchor_may_change or tuple(a.name for a in self.form.at(sizes).axes) == self.program.axis_names

    @cached_property
    def minimums(self) -> tuple[tuple[Formula, int], ...]:
        """Dynamic extents and their smallest values that the code supports: each fills a register tile."""
        found, register = list[tuple[Formula, int]](), self.program.tiles[0][1]
        for extent, was, tile, unit in zip(self.extents, self.program.axes, register, self.units, strict=True):
            if isinstance(extent, Formula):
                # A vector axis must fill its lanes: code for fewer lanes differs.
                lanes = was.name == self.program.vector_axis and was.kind == SPATIAL
                found.append((extent, tile if lanes else min(tile - unit + 1, was.extent)))
        return tuple(found)

    def key(self) -> tuple[Any, ...]:
        """Return the identity of the program without its sizes."""
        p = self.program
        clipped = p.traits.output_side > 0
        whole = tuple(
            (layer, tuple(None if t >= a.extent and n in self.open_axes and not clipped else t
                          for t, a, n in zip(tile, p.axes, p.axis_names, strict=True)))
            for layer, tile in p.tiles
        )  # fmt: skip
        return p.structure, whole, p.staged, p.vector_axis, p.vector_elements, p.nontemporal, p.split_k, id(self.form)

    def with_narrowed_variants(self, several: Sequence[int]) -> list[SymbolicProgram]:
        """Return the program and its :meth:`narrowed` variants for several numbers of lanes."""
        # A matrix instruction has no code for fewer lanes than its own.
        narrow = [self.narrowed(lanes) for lanes in several]
        if self.program.fragment is not None:
            narrow = [n for n in narrow if n.program.vector_elements == self.program.vector_elements]
        return [self, *narrow]

    def narrowed(self, lanes: int) -> SymbolicProgram:
        """Return the program with one-element tiles and at most ``lanes`` lanes along dynamic axes, for small sizes."""
        p = self.program
        lone = [n for n, name in enumerate(p.axis_names) if name in self.open_axes]
        first = p.tiles[0][1]
        tiles = list[tuple[str, tuple[int, ...]]]()
        for layer, tile in p.tiles:
            tiles.append((layer, tuple(
                t if n not in lone or (t >= p.axes[n].extent and layer != p.tiles[0][0])
                else self.units[n] * max(1, t // first[n]) for n, t in enumerate(tile)
            )))  # fmt: skip
        elements = p.vector_elements if p.vector_axis not in self.open_axes else min(lanes, p.vector_elements)
        return replace(
            self, program=replace(p, tiles=_tiles_rounded_to_multiples(tiles), vector_elements=elements, relaxed=())
        )


def _tensors_divided_by_sizes(node: Any, tensor: str = "") -> Iterator[str]:
    """Yield the tensors with an index term whose divisor is a formula."""
    if not isinstance(node, list | dict):
        return
    if isinstance(node, dict):
        for part in node.values():
            yield from _tensors_divided_by_sizes(part, tensor)
        return
    tensor = node[1] if len(node) > 2 and node[0] == "load" and isinstance(node[1], str) else tensor
    if tensor and len(node) == 4 and isinstance(node[0], str) and any(isinstance(x, Formula) for x in node[2:]):
        yield tensor
    for part in node:
        yield from _tensors_divided_by_sizes(part, tensor)


def _tiles_rounded_to_multiples(
    tiles: Sequence[tuple[str, tuple[int, ...]]],
) -> tuple[tuple[str, tuple[int, ...]], ...]:
    out, above = [], (1,) * len(tiles[0][1])
    for layer, tile in tiles:
        above = tuple(-(-t // a) * a for t, a in zip(tile, above, strict=True))
        out.append((layer, above))
    return tuple(out)


@dataclass(frozen=True)
class SymbolicKernel:
    """A built kernel for all sizes from ``low`` up."""

    program: SymbolicProgram
    artifact: KernelArtifact  #: Artifact with the shapes of :attr:`SymbolicProgram.sizes`
    low: Sizes
    formulas: tuple[Formula, ...] = ()  #: Formulas of the numbers in the code, in order
    code: str = ""  #: Digest of the code without these numbers
    #: Sizes, as tuples of values in order, at which it was proven correct when it was built.
    proven: frozenset[tuple[int, ...]] = frozenset()
    #: Lengths and their smallest values at which tiles of all stages, not only of the anchor, fit into them.
    shortest: tuple[tuple[Formula, int], ...] = ()

    def takes(self, sizes: Sizes) -> bool:
        """Return whether the kernel supports the sizes."""
        long_enough = all(length.at(sizes) >= least for length, least in self.shortest)
        return long_enough and all(sizes[n] >= x for n, x in self.low.items()) and self.program.takes(sizes)

    @property
    def minimums(self) -> tuple[tuple[Formula, int], ...]:
        """Formulas in the sizes and their smallest supported values; :meth:`takes` may refuse further sizes."""
        low = ((Formula(0, ((1, (Atom((n,)),)),)), x) for n, x in self.low.items())
        found: dict[Formula, int] = {}
        for formula, least in (*low, *self.program.minimums, *self.shortest):
            found[formula] = max(least, found.get(formula, least))
        return tuple(found.items())

    def at(self, sizes: Sizes, expression: TensorExpr) -> KernelArtifact:
        """Return the artifact with the shapes of the given sizes and the same library."""
        program = self.program.at(sizes)
        shapes = {t.name: t.shape for t in program.expr.tensors.values()}
        arguments = tuple(_argument_at_sizes(a, shapes, sizes) for a in self.artifact.arguments)
        return replace(self.artifact, expression=expression, program=program, arguments=arguments)


def _argument_at_sizes(a: Argument, shapes: Mapping[str, tuple[int, ...]], sizes: Sizes) -> Argument:
    if a.role == "size":
        return replace(a, shape=(sizes[a.name.rpartition(".")[0]],))
    return a if a.role == "panel" else replace(a, shape=shapes[a.name])
