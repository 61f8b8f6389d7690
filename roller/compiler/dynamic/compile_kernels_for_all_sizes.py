"""The kernels of a model for all sizes: a few per expression, chosen by the sizes that the expression depends on."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from roller.artifact import KernelArtifact
from roller.compiler.dynamic.dynamic_size_box import SizeBox, Sizes
from roller.compiler.dynamic.kernel_choice import PricedKernel, RangeKernel, fastest_proven_kernel
from roller.compiler.dynamic.relevant_sizes import RelevantSizes, relevant_sizes
from roller.compiler.dynamic.symbolic_programs import SymbolicExpr
from roller.compiler.dynamic.symbolic_search import (
    SearchEffort,
    SearchRequest,
    build_and_check,
    choose_kernels,
    construct_and_price_all,
    find_shares,
)
from roller.hardware import DeviceSpec
from roller.templates.common.options import ConstructOptions
from roller_runtime.core.fork_safe_lock import ForkSafeLock

#: Effort per kernel of a model: less than for a single operator, since a model has many.
EFFORT = SearchEffort(each=3, cover=4, built=5, enough=3, budget_s=0.01, patience_s=0.1, timed_at=8, longest_s=0.02,
                exact=False, worth=0.002, most_built=18, most_kept=14, worth_of_model=0.0005, rivals=2)  # fmt: skip


@dataclass(frozen=True)
class SymbolicKernels:
    """The kernels of one expression."""

    own: RelevantSizes  #: The expression and the sizes it depends on
    priced: tuple[PricedKernel, ...]  #: The kernels and their times
    spec: DeviceSpec
    doubt: str = ""  #: Reason why the choice may be wrong, if the timing was disturbed; otherwise empty
    _chosen: dict[tuple[int, ...], int] = field(default_factory=dict, compare=False, repr=False)
    _lock: ForkSafeLock = field(default_factory=ForkSafeLock, compare=False, repr=False)

    @property
    def kernels(self) -> tuple[RangeKernel, ...]:
        """The kernels."""
        return tuple(j.kernel for j in self.priced)

    @property
    def known_choices(self) -> dict[tuple[int, ...], int]:
        """Results of :meth:`best` so far, by all values of :attr:`own`'s sizes."""
        with self._lock:
            return dict(self._chosen)

    def best(self, sizes: Sizes) -> int:
        """Return the position of the fastest kernel proven correct at a model's sizes; the result is cached."""
        own = self.own.at(sizes)
        key = tuple(own.values())
        with self._lock:
            if key not in self._chosen:
                self._chosen[key] = fastest_proven_kernel(self.priced, self.own.expression.at(own), own, self.spec)
            return self._chosen[key]

    def artifact_at(self, number: int, sizes: Sizes) -> KernelArtifact:
        """Return the artifact of a kernel at a model's sizes."""
        own = self.own.at(sizes)
        return self.kernels[number].at(own, self.own.expression.at(own))

    def predicted(self, number: int, sizes: Sizes) -> float:
        """Return the predicted time of a kernel at a model's sizes, in seconds."""
        program = self.priced[number].kernel.program
        return float(
            self.spec.traits.module_for("compiler.dynamic").predicted([program], self.own.at(sizes), self.spec)[0]
        )


def compile_symbolic(
    expressions: Mapping[str, tuple[SymbolicExpr, tuple[str, ...]]], points: Sequence[Sizes], box: SizeBox,
    spec: DeviceSpec, options: ConstructOptions, passing_bytes: Mapping[str, int] | None = None,
    progress: Callable[[str, int, int, str], None] = lambda phase, done, total, label: None,
    uses: Mapping[str, int] | None = None,
) -> dict[str, SymbolicKernels]:  # fmt: skip
    """Compile expressions for all sizes of a box on this machine's CPU; ``uses`` counts the steps of each."""
    known = passing_bytes or {}
    questions = {
        key: SearchRequest(relevant_sizes(e, points, box, options), names, known.get(key, 0))
        for key, (e, names) in expressions.items()
    }
    progress("construct", 0, len(questions), "")
    searches = construct_and_price_all(questions, spec, options, EFFORT)
    find_shares(searches, uses or {})
    progress("build", 0, len(questions), "")
    build_and_check(searches, spec, EFFORT, 0, passing_bytes is not None)
    found = {}
    for done, (key, s) in enumerate(searches.items()):
        progress("time", done, len(searches), s.question.name)
        priced, doubt = choose_kernels(s, spec, EFFORT, 0, passing_bytes is not None)
        found[key] = SymbolicKernels(s.question.own, tuple(priced), spec, doubt)
    return found
