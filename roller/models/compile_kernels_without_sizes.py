"""Kernels of a model over ranges that depend on no size: compiled and cached like those of a model of fixed shapes."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from roller.artifact import KernelArtifact
from roller.hardware import DeviceSpec
from roller.models.batch.compile_kernels import compile_kernels
from roller.models.batch.kernel_jobs import BatchSettings, BatchTarget
from roller.models.compiled_model import count_kernel_runs
from roller.models.graph.order_steps_for_weight_reuse import bytes_between_reads
from roller.runtime.cache import KernelCache
from roller.runtime.session.interface_of_artifact import interface_of_artifact
from roller_runtime.core.generalized_data import GeneralizedData
from roller_runtime.plan.program_steps import Program
from roller_runtime.session.range_plan import RangeKernel


@dataclass(frozen=True)
class KernelsWithoutSizes:
    """Compiles the kernels of a program that depend on no size.

    Parameters
    ----------
    spec
        This machine's processor, with all its cores.
    settings
        Options of the kernels, and the number of threads per call.
    cache
        The cache of kernels; ``None`` if it is not used.
    """

    spec: DeviceSpec
    settings: BatchSettings
    cache: KernelCache | None

    def compile(self, program: Program, keys: Collection[str]) -> dict[str, KernelArtifact]:
        """Return a kernel for each key; raise ``NoCandidateError`` if one has none."""
        batch = compile_kernels(
            {key: program.kernels[key] for key in keys}, BatchTarget(self.spec, here=True), self.settings,
            uses=count_kernel_runs(program.steps), passing=bytes_between_reads(program), cache=self.cache,
        )  # fmt: skip
        batch.raise_if_any_failed(program.name, self.spec.name)
        return dict(batch.artifacts)


def as_range_kernels(artifacts: Mapping[str, KernelArtifact]) -> dict[str, tuple[RangeKernel, ...]]:
    """Return the only kernel for each key, with the same shapes at all sizes."""
    found: dict[str, tuple[RangeKernel, ...]] = {}
    for key, artifact in artifacts.items():
        code, pack = interface_of_artifact(artifact), artifact.prepare
        shapes = GeneralizedData([list(t.shape) for t in code.taken])
        found[key] = (RangeKernel(code, shapes, artifact.binary or b"", "" if pack is None else pack.source),)
    return found
