"""Template: one way of writing kernels, as an entry in the ordered registry of its device kind."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from roller.core.matrix_instruction_fragment import Fragment
from roller.errors import BuildError
from roller.expr import TensorExpr
from roller.hardware import DeviceSpec
from roller.perf.tile_batch import TileBatch
from roller.targets.lazy import import_object
from roller.templates.common.options import ConstructOptions
from roller.templates.common.tile_neighbours import NeighbourContext
from roller.tile.geometry import Floats, Geometry
from roller.tile.structures import Structure

Terms = dict[str, Floats]
#: Returns the programs for one form of an expression, as batches.
Pool = Callable[[Geometry, DeviceSpec, ConstructOptions], list[TileBatch]]
#: Returns further programs derived from a batch of the template's programs.
Vary = Callable[[TileBatch, DeviceSpec, ConstructOptions], list[TileBatch]]
#: Returns the programs for all forms of an expression at once.
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
    """One way of writing kernels: its programs, their price, and the emitter of their kernels.

    Parameters
    ----------
    name
        Name of the template's folder.
    matches
        Returns whether the template writes the kernels of the given programs.
    price
        Returns the terms of a batch's price; the arguments depend on the device kind.
    emit
        Emitter of the kernels as ``"module:name"``, loaded on first use because it imports TVM.
    pool
        Returns the template's programs for one form of an expression, or none if the form does not suit the template.
    whole
        Returns the template's programs for all forms of an expression together; it is called after every ``pool``. The
        programs of a template without ``pool`` and ``whole`` come from a different template.
    vary
        Returns further programs derived from one of the template's batches; it is called after every ``pool``.
    neighbours
        Yields neighbouring programs specific to this template, in addition to those with larger and smaller tiles.
    bound
        Returns a lower bound, in seconds, on the time of each program in a batch; ``None`` if no bound is cheaper to
        compute than the price.
    arithmetic
        Returns the time, in seconds, of each program's arithmetic alone, by which growing tiles are first compared.
    decide
        Returns the decisions for the programs of a batch, which are made once for both the price and the kernels.
    limits
        Returns the mask of the programs in a batch that construction may offer, by limits that the price does not
        include.
    extents_of_calls
        Whether the kernels support a row axis of the result whose extent is known only at the call.
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
        """Import :attr:`emit`, call it with ``arguments``, and return the kernels that it writes."""
        return import_object(self.emit)(*arguments)


def template_for_programs(templates: Sequence[Template], programs: ProgramProperties) -> Template:
    """Return the first template that writes the kernels of the given programs; raise an error if there is none."""
    for template in templates:
        if template.matches(programs):
            return template
    raise BuildError(
        f"templates: expected programs of {[t.name for t in templates]}, got structure '{programs.structure}'. "
        "Construct them for this kind of device."
    )
