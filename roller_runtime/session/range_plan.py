"""The plan of a model with dynamic sizes, and its kernels."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from roller_runtime.core.generalized_data import GeneralizedData
from roller_runtime.core.size_formulas import Formula
from roller_runtime.plan.execution_plan import Plan
from roller_runtime.plan.plan_json import plan_from_dict
from roller_runtime.plan.program_steps import ParallelGroup, Run, Step
from roller_runtime.plan.proven_kernels import ProvenKernels
from roller_runtime.session.cpu_kernel_loading import CpuKernelInterface

Sizes = Mapping[str, int]


@dataclass(frozen=True)
class RangeKernel:
    """A kernel with dynamic sizes.

    Parameters
    ----------
    code
        Code of the kernel, with the shapes for one choice of sizes.
    shapes
        Shapes of the arguments, in order, as functions of the sizes.
    packing
        Source of the function that packs constants.
    proven
        Results of proofs, which know the sizes that the kernel takes, for a kernel of a saved model.
    """

    code: CpuKernelInterface
    shapes: GeneralizedData
    library: bytes = field(repr=False)
    packing: str = field(default="", repr=False)
    proven: ProvenKernels | None = field(default=None, repr=False)

    @property
    def layout(self) -> tuple[Any, ...]:
        """Layout of constants; it is equal for kernels that can read the same arrays."""
        read = tuple(t.position for t in self.code.taken if t.role == "input" and t.position in self.code.constants)
        return self.packing, self.code.panels, self.code.constants, read

    def at(self, sizes: Sizes) -> CpuKernelInterface:
        """Return the code with the shapes at the given sizes."""
        pairs = zip(self.code.taken, self.shapes.at(sizes), strict=True)
        taken = tuple(replace(t, shape=tuple(shape)) for t, shape in pairs)
        if self.proven is not None:  # a kernel trusts its sizes, so a changed folder must not change them
            given = {t.position: t.shape for t in taken if t.role == "size"}
            if given and given != {n: (x,) for n, x in enumerate(self.proven.own_sizes(sizes).values())}:
                raise ValueError(f"sizes of '{self.code.name}'")
        return replace(self.code, taken=taken)


class KernelChooser(Protocol):
    """Chooses the kernels of a model with dynamic sizes."""

    def choose(self, key: str, sizes: Sizes) -> int:
        """Return the position of the kernel to run among those of a key."""

    def predicted(self, key: str, number: int, sizes: Sizes) -> float:
        """Return the predicted time, in seconds, of the kernel at a position."""

    def known_results(self) -> Mapping[str, ProvenKernels]:
        """Return the results of the proofs so far by key."""

    def prove_all(self, proofs: int | None) -> Mapping[str, ProvenKernels]:
        """Prove kernels at up to ``proofs`` combinations of sizes of each key, ``None`` for all; return the results."""


@dataclass(frozen=True)
class RangePlan:
    """A plan for all sizes.

    Parameters
    ----------
    general
        Result of :func:`~roller_runtime.plan.plan_json.plan_to_dict` as a function of the sizes; runs refer to keys of
        ``kernels``.
    name
        Name of the model.
    dtypes
        Dtypes of inputs and outputs.
    arena_bytes
        Memory of a call, in bytes; values have the same offsets at all sizes.
    ends
        Smallest and largest value of each size, divided by its step, like all sizes in the plan.
    derived
        Formulas for further sizes, in terms of those in ``ends`` and of earlier derived sizes.
    inputs, outputs
        Dimensions as numbers or names of sizes; ``None`` for an output dimension that is another function of sizes.
    kernels
        For each key, all kernels that can compute it.
    chooser
        Chooses among the kernels of a key.
    steps
        Steps above 1: calls may use only multiples of it.
    """

    general: GeneralizedData
    name: str
    dtypes: Mapping[str, str]
    arena_bytes: int
    ends: Mapping[str, tuple[int, int]]
    derived: Mapping[str, Formula]
    inputs: Mapping[str, tuple[int | str, ...]]
    outputs: Mapping[str, tuple[int | str | None, ...]]
    kernels: Mapping[str, tuple[RangeKernel, ...]]
    chooser: KernelChooser
    steps: Mapping[str, int] = field(default_factory=dict)

    @property
    def ranges(self) -> dict[str, tuple[int, int]]:
        """Smallest and largest value of each size in calls."""
        return {n: (low * self.steps.get(n, 1), high * self.steps.get(n, 1)) for n, (low, high) in self.ends.items()}

    def with_derived_sizes(self, sizes: Sizes) -> dict[str, int]:
        """Return all sizes in order, including derived sizes."""
        found = {n: int(sizes[n]) for n in self.ends}
        for name, formula in self.derived.items():
            found[name] = formula.at(found)
        return found

    def before_choice_at(self, sizes: Sizes) -> Plan:
        """Return the plan at the given sizes, without constants; runs refer to keys."""
        return plan_from_dict({**self.general.at(sizes), "constants": ()}, {}, self.name)

    @property
    def largest(self) -> Plan:
        """The plan at the largest sizes, without constants; runs refer to keys."""
        return self.before_choice_at(self.with_derived_sizes({n: high for n, (_, high) in self.ends.items()}))

    def at(self, sizes: Sizes, known: Mapping[str, int] | None = None) -> Plan:
        """Return the plan at the given sizes, without constants; runs refer to the chosen kernels.

        ``known`` contains the positions of kernels that are chosen already, by key.
        """
        plan, chosen = self.before_choice_at(sizes), dict(known or {})

        def choose_kernels(step: Step) -> Step:
            if isinstance(step, ParallelGroup):
                return replace(step, lanes=tuple(tuple(map(choose_kernels, lane)) for lane in step.lanes))
            if not isinstance(step, Run):
                return step
            if step.kernel not in chosen:
                chosen[step.kernel] = self.chooser.choose(step.kernel, sizes)
            return replace(step, kernel=variant_key(step.kernel, chosen[step.kernel]))

        return replace(plan, program=replace(plan.program, steps=tuple(map(choose_kernels, plan.program.steps))))


def variant_key(key: str, number: int) -> str:
    """Return the key of one of several kernels that compute ``key``."""
    return f"{key}/{number}"


def split_variant_key(variant: str) -> tuple[str, int]:
    """Split the result of :func:`variant_key`.

    Examples
    --------
    >>> split_variant_key(variant_key("k3", 1))
    ('k3', 1)
    """
    key, _, number = variant.rpartition("/")
    return key, int(number)
