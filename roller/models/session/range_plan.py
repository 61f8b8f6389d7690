"""The plan of a model whose calls choose sizes, and its kernels."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from roller.core.anti_unification import General
from roller.core.formulas import Formula
from roller.models.graph.plan import Plan
from roller.models.graph.plan_data import plan_from_dict
from roller.models.graph.steps import ParallelGroup, Run, Step
from roller.models.session.kernels import KernelCode

Sizes = Mapping[str, int]


@dataclass(frozen=True)
class RangeKernel:
    """A kernel that takes sizes.

    Parameters
    ----------
    code
        What runs it, its shapes those of some sizes.
    shapes
        Shapes of what it takes, in order, for all sizes.
    library
        Its bytes.
    packing
        What packs its constants, as text: equal where two pack alike.
    """

    code: KernelCode
    shapes: General
    library: bytes = field(repr=False)
    packing: str = field(default="", repr=False)

    @property
    def layout(self) -> tuple[Any, ...]:
        """How it reads its constants: equal where two kernels can read the same arrays."""
        read = tuple(t.position for t in self.code.taken if t.role == "input" and t.position in self.code.constants)
        return self.packing, self.code.panels, self.code.constants, read

    def at(self, sizes: Sizes) -> KernelCode:
        """Return the code with the shapes of some sizes."""
        pairs = zip(self.code.taken, self.shapes.at(sizes), strict=True)
        return replace(self.code, taken=tuple(replace(t, shape=tuple(shape)) for t, shape in pairs))


@dataclass(frozen=True)
class RangePlan:
    """A plan of all sizes.

    Parameters
    ----------
    general
        Its data (:func:`~roller.models.graph.plan_data.plan_to_dict`); its runs name the kernels of ``kernels``.
    largest
        The plan of the largest sizes, with all constants.
    ends
        Least and largest of every size.
    derived
        Sizes that follow from these, and from each other in their order.
    inputs, outputs
        Dimensions of every input, and of every output: numbers, and names of sizes; ``None`` where an output's is
        another function of them.
    kernels
        By key, all that may compute it.
    choose
        Position in ``kernels`` of what computes a key at some sizes.
    predict
        Predicted seconds there of what is at a position.
    """

    general: General
    largest: Plan
    ends: Mapping[str, tuple[int, int]]
    derived: Mapping[str, Formula]
    inputs: Mapping[str, tuple[int | str, ...]]
    outputs: Mapping[str, tuple[int | str | None, ...]]
    kernels: Mapping[str, tuple[RangeKernel, ...]]
    choose: Callable[[str, Sizes], int]
    predict: Callable[[str, int, Sizes], float]

    def whole(self, sizes: Sizes) -> dict[str, int]:
        """Return sizes in their order, with all that follow from them."""
        found = {n: int(sizes[n]) for n in self.ends}
        for name, formula in self.derived.items():
            found[name] = formula.at(found)
        return found

    def at(self, sizes: Sizes) -> Plan:
        """Return the plan of some sizes, without constants; its runs name kernel and choice."""
        plan = plan_from_dict({**self.general.at(sizes), "constants": ()}, {}, self.largest.program.name)
        chosen: dict[str, int] = {}

        def named(step: Step) -> Step:
            if isinstance(step, ParallelGroup):
                return replace(step, lanes=tuple(tuple(map(named, lane)) for lane in step.lanes))
            if not isinstance(step, Run):
                return step
            if step.kernel not in chosen:
                chosen[step.kernel] = self.choose(step.kernel, sizes)
            return replace(step, kernel=variant_key(step.kernel, chosen[step.kernel]))

        return replace(plan, program=replace(plan.program, steps=tuple(map(named, plan.program.steps))))


def variant_key(key: str, number: int) -> str:
    """Return the key of one of the kernels that compute what ``key`` names."""
    return f"{key}/{number}"


def key_and_number(variant: str) -> tuple[str, int]:
    """Return what :func:`variant_key` was made from.

    Examples
    --------
    >>> key_and_number(variant_key("k3", 1))
    ('k3', 1)
    """
    key, _, number = variant.rpartition("/")
    return key, int(number)
