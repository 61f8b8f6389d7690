"""Starts sessions with dynamic sizes from compiled kernels; saved ones start without this module."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence

from roller.artifact import KernelArtifact
from roller.core.anti_unification import general
from roller.core.formula_fitting import FormulaFitter
from roller.runtime.session.interface_of_artifact import interface_of_artifact
from roller.runtime.session.native_runner_build import load_or_build_runner_image
from roller_runtime.core.temporary_folders import ScratchLibraries
from roller_runtime.plan.execution_plan import Plan
from roller_runtime.session.cpu_kernel_loading import load_kernel
from roller_runtime.session.model_digest import ModelDigest, unknown_digest
from roller_runtime.session.native_runner import load_runner
from roller_runtime.session.range_constants import pack_all_layouts
from roller_runtime.session.range_plan import RangeKernel, RangePlan, Sizes, variant_key
from roller_runtime.session.range_session import RangeSession
from roller_runtime.session.save_ranges import RangeParts


def start_range_session(
    plan: RangePlan, largest: Plan, *, cores: int, doubt: str = "",
    artifacts: Mapping[str, KernelArtifact] | None = None, model_digest: ModelDigest = unknown_digest,
) -> RangeSession:  # fmt: skip
    """Load kernels and pack constants; return a session that runs a plan at all sizes of its ranges.

    Parameters
    ----------
    plan
        Steps, places and kernels.
    largest
        The plan at the largest sizes, with all constants.
    cores
        Number of threads per call, including the calling thread.
    doubt
        Reason why other programs may have disturbed the choice of kernels; empty if there is none.
    artifacts
        Programs, estimates and sources of kernels by variant key.
    model_digest
        Function that returns the SHA-256 of the model's file, for saved models.

    Raises
    ------
    LaunchError
        If a kernel cannot be loaded.
    """
    runner = load_runner(load_or_build_runner_image())
    runner.use_threads(cores)
    with ScratchLibraries() as scratch:
        loaded = {
            variant_key(key, n): load_kernel(k.code, k.library, runner.launch, scratch)
            for key, several in plan.kernels.items()
            for n, k in enumerate(several)
        }
    constants = pack_all_layouts(largest, plan.kernels, loaded)
    return RangeSession(RangeParts(plan, loaded, constants, cores, runner, doubt, artifacts or {}, model_digest))


def make_range_kernel(artifact_at: Callable[[Sizes], KernelArtifact], points: Sequence[Sizes]) -> RangeKernel:
    """Return a kernel with dynamic sizes from a function that returns its artifact at given ones."""
    artifacts = list(map(artifact_at, points))
    codes = list(map(interface_of_artifact, artifacts))
    shapes = general([[list(t.shape) for t in c.taken] for c in codes], FormulaFitter(points))
    pack = artifacts[-1].prepare
    return RangeKernel(
        codes[-1], shapes, artifacts[-1].binary or b"", "" if pack is None else _renumber_variables(pack.source)
    )


def output_dimensions(
    shapes: Mapping[str, Sequence[Sequence[int]]], points: Sequence[Sizes], ends: Collection[str],
    steps: Mapping[str, int] | None = None,
) -> dict[str, tuple[int | str | None, ...]]:  # fmt: skip
    """Return each output's dimensions as numbers or names of ``ends``; ``None`` for any other function of the sizes.

    ``shapes`` contains the shapes at all points.
    """

    def dim(values: Sequence[int]) -> int | str | None:
        if len(set(values)) == 1:
            return values[0]
        pairs = list(zip(points, values, strict=True))
        return next((n for n in ends if all(p[n] * (steps or {}).get(n, 1) == x for p, x in pairs)), None)

    return {name: tuple(map(dim, zip(*several, strict=True))) for name, several in shapes.items()}


def _renumber_variables(source: str) -> str:
    """Return ``source`` with its variables renumbered in order of appearance."""
    numbers: dict[str, int] = {}
    return re.sub(r"\b[a-z]+_\d+\b", lambda m: f"v{numbers.setdefault(m[0], len(numbers))}", source)
