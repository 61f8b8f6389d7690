"""Template: one way of writing kernels, as an entry in the ordered registry of its device kind."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from roller.core.fragment import Fragment
from roller.errors import BuildError
from roller.expr import TensorExpr
from roller.hardware import DeviceSpec
from roller.perf.batch import TileBatch
from roller.targets.lazy import import_object
from roller.templates.common.options import ConstructOptions
from roller.templates.common.tile_neighbours import NeighbourContext
from roller.tile.geometry import Floats, Geometry
from roller.tile.structures import Structure

Terms = dict[str, Floats]
#: Programs of one form of an expression, as arrays.
Pool = Callable[[Geometry, DeviceSpec, ConstructOptions], list[TileBatch]]
#: Further programs derived from those that this or another template offered.
Vary = Callable[[TileBatch, DeviceSpec, ConstructOptions], list[TileBatch]]
#: Programs of all forms of an expression at once.
Whole = Callable[[TensorExpr, DeviceSpec, ConstructOptions], list[TileBatch]]


class ProgramProperties(Protocol):
    """Properties of a batch or a program that select its template."""

    @property
    def structure(self) -> str: ...  # noqa: D102

    @property
    def traits(self) -> Structure: ...  # noqa: D102

    @property
    def fragment(self) -> Fragment | None: ...  # noqa: D102

    @property
    def sums_along_vectors(self) -> bool: ...  # noqa: D102


@dataclass(frozen=True)
class Template:
    """Programs, price and emitter for one way of writing kernels.

    Parameters
    ----------
    name
        Name of its folder.
    matches
        Whether the template writes the kernels for the given programs.
    price
        Terms of a batch's price; the arguments depend on the device kind.
    emit
        Emitter of the kernels as ``"module:name"``, loaded on first use because it imports TVM.
    pool
        Its programs for one form of an expression; none if the form does not suit the template.
    whole
        Its programs for all forms of an expression together, after the programs for single forms; another template
        offers the programs of a template with neither.
    vary
        Further programs derived from its batches, after all templates have offered theirs.
    neighbours
        Neighbouring programs specific to this template, in addition to larger and smaller tiles.
    bound
        Lower bound on the seconds of each program in a batch, if it is cheaper to compute than the price.
    arithmetic
        Seconds of every program's arithmetic alone, by which growing tiles are compared first.
    decide
        Decisions for every program of a batch, made once for its price and its kernels.
    limits
        Mask of the programs of a batch that construction offers, by limits in addition to the limits in the price.
    extents_of_calls
        Whether its kernels support an extent along a row axis of the result that is known only at the call.
    """

    name: str
    matches: Callable[[ProgramProperties], bool]
    price: Callable[..., Terms]
    emit: str
    pool: Pool | None = None
    whole: Whole | None = None
    vary: Vary | None = None
    neighbours: Callable[[NeighbourContext], Iterator[TileBatch]] = lambda place: iter(())
    bound: Callable[[TileBatch, DeviceSpec], Floats] | None = None
    arithmetic: Callable[[TileBatch, DeviceSpec], Floats] | None = None
    decide: Callable[[TileBatch, DeviceSpec], Any] | None = None
    limits: Callable[[TileBatch, DeviceSpec], np.ndarray] = lambda batch, spec: np.ones(len(batch), bool)
    extents_of_calls: bool = False

    def emitted(self, *arguments: Any) -> Any:
        """Call :attr:`emit` and return the kernels it writes."""
        return import_object(self.emit)(*arguments)


def template_of(templates: Sequence[Template], programs: ProgramProperties) -> Template:
    """Return the first template that writes the given programs."""
    for template in templates:
        if template.matches(programs):
            return template
    raise BuildError(
        f"templates: expected programs of {[t.name for t in templates]}, got structure '{programs.structure}'. "
        "Construct them for this kind of device."
    )
