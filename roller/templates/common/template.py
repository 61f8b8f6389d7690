"""A template: one way of writing kernels, as a row of its kind's ordered registry."""

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
from roller.targets.lazy import loaded
from roller.templates.common.moves import Place
from roller.templates.common.options import ConstructOptions
from roller.tile.geometry import Floats, Geometry
from roller.tile.structures import Structure

Terms = dict[str, Floats]
#: Programs of one form of an expression, as arrays.
Pool = Callable[[Geometry, DeviceSpec, ConstructOptions], list[TileBatch]]
#: Further programs made of those another template or this one offered.
Vary = Callable[[TileBatch, DeviceSpec, ConstructOptions], list[TileBatch]]
#: Programs of all forms of an expression at once.
Whole = Callable[[TensorExpr, DeviceSpec, ConstructOptions], list[TileBatch]]


class Programs(Protocol):
    """What a template is told by: of a batch and of a program alike."""

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
    """What one way of writing kernels offers, costs and emits.

    Parameters
    ----------
    name
        Of its folder.
    matches
        Whether it writes the kernels of some programs.
    price
        Terms of a batch; the arguments are those of its kind.
    emit
        What writes the kernels, as ``"module:name"``: loaded when there is a kernel to write, for it imports TVM.
    pool
        Its programs of one form of an expression, none where it does not suit it.
    whole
        Its programs of all forms of an expression, after those of single forms; a template with neither has its
        programs offered by another one.
    vary
        Further programs made of its batches, after all templates have offered theirs.
    neighbours
        Programs one step away that only its programs have, beside larger and smaller tiles.
    bound
        Seconds that no program of a batch can beat, where they are cheaper to know than the price.
    arithmetic
        Seconds of the arithmetic of every program alone: what growing tiles are compared by first.
    decide
        What is decided about every program of a batch, once for its price and its kernels.
    limits
        Mask of the programs of a batch that construction offers, by limits beyond those the price knows.
    extents_of_calls
        Whether its kernels can take an extent that only a call says, along an axis of rows of the result.
    """

    name: str
    matches: Callable[[Programs], bool]
    price: Callable[..., Terms]
    emit: str
    pool: Pool | None = None
    whole: Whole | None = None
    vary: Vary | None = None
    neighbours: Callable[[Place], Iterator[TileBatch]] = lambda place: iter(())
    bound: Callable[[TileBatch, DeviceSpec], Floats] | None = None
    arithmetic: Callable[[TileBatch, DeviceSpec], Floats] | None = None
    decide: Callable[[TileBatch, DeviceSpec], Any] | None = None
    limits: Callable[[TileBatch, DeviceSpec], np.ndarray] = lambda batch, spec: np.ones(len(batch), bool)
    extents_of_calls: bool = False

    def emitted(self, *arguments: Any) -> Any:
        """Return what :attr:`emit` writes."""
        return loaded(self.emit)(*arguments)


def template_of(templates: Sequence[Template], programs: Programs) -> Template:
    """Return the first template that writes some programs."""
    for template in templates:
        if template.matches(programs):
            return template
    raise BuildError(
        f"templates: expected programs of {[t.name for t in templates]}, got structure '{programs.structure}'. "
        "Construct them for this kind of device."
    )
