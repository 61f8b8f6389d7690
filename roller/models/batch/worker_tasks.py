"""Tasks of a batch as plain data, for processes on this machine, an executor, or another machine.

Every task contains all it needs, can be pickled, and accesses neither the cache nor the caller.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from roller.artifact import KernelArtifact
from roller.errors import BuildError
from roller.expr import TensorExpr
from roller.hardware import DeviceSpec
from roller.tile import RProgram

if TYPE_CHECKING:
    from roller.compiler.autotune import Selection
    from roller.compiler.autotune.prove_on_emulator import ProofVerdict
    from roller.construction.constructor import Candidate
    from roller.runtime.candidate_records import Record
    from roller.runtime.check import Oracle
    from roller.runtime.check_and_time_candidates import ProfilerSession
    from roller.templates.common.options import ConstructOptions

#: Time, in seconds, spent per kernel on finding quiet windows; short, because a model has many kernels.
_PATIENCE_S = 0.5


class WorkerTask(Protocol):
    """Protocol of a task; ``runs_kernels`` indicates whether it runs unchecked code that may corrupt its process."""

    runs_kernels: ClassVar[bool]

    def run(self) -> Any:
        """Run the task and return its result; an exception is the reason for its failure."""


def run_task(task: WorkerTask, code: str | None = None) -> Any:
    """Run a task; raise an error if ``code``, the digest of the caller's sources, differs from the local one."""
    if code is not None:
        from roller.runtime.cache_key import source_code_digest

        if source_code_digest() != code:
            raise BuildError("worker: expected the caller's version of roller, got another one. Install the same.")
    return task.run()


def preload_task_modules() -> None:
    """Import the modules for builds, references and checks, so that forked processes inherit them."""
    import numpy.ma  # noqa: F401 - here and below: for forked processes

    import roller.backends.periodic_inputs
    import roller.compiler.pipeline
    import roller.runtime.check_and_time_cpu_kernels  # noqa: F401


@dataclass(frozen=True)
class ConstructTask:
    """Construct the candidates of an expression; the result includes the positions of the candidates built first."""

    runs_kernels: ClassVar[bool] = False

    expression: TensorExpr
    spec: DeviceSpec
    options: ConstructOptions
    how: Selection

    def run(self) -> tuple[tuple[Candidate, ...], tuple[int, ...]]:
        """Construct the candidates."""
        from roller.compiler.autotune import positions_to_try_first
        from roller.construction.constructor import construct_candidates

        found = construct_candidates(self.expression, self.spec, self.options)
        return found, positions_to_try_first(found, self.spec, self.options, self.how)


@dataclass(frozen=True)
class BuildTask:
    """Lower one program; build it if ``binary``, that is, if a toolchain for its language is installed."""

    runs_kernels: ClassVar[bool] = False

    program: RProgram
    estimate: Mapping[str, Any]
    expression: TensorExpr
    spec: DeviceSpec
    binary: bool

    def run(self) -> KernelArtifact:
        """Lower and build the program."""
        from roller.backends.build import build
        from roller.compiler.pipeline import lower

        artifact = replace(lower(self.program, self.expression, self.spec), estimate=dict(self.estimate))
        return build(artifact) if self.binary else artifact


@dataclass(frozen=True)
class ProveTask:
    """Run a kernel for an absent GPU on the emulator, within a time limit in seconds."""

    runs_kernels: ClassVar[bool] = True

    artifact: KernelArtifact
    spec: DeviceSpec
    seconds: float

    def run(self) -> ProofVerdict:
        """Run the proof."""
        from roller.compiler.autotune.prove_on_emulator import prove
        from roller.compiler.pipeline import lower

        return prove(self.artifact, self.seconds, lower=partial(lower, spec=self.spec), workers=1)


@dataclass(frozen=True)
class ReferenceTask:
    """Compute the float64 reference on random inputs (``periodic`` for GPUs), also at tile edges of ``programs``."""

    runs_kernels: ClassVar[bool] = False

    expression: TensorExpr
    seed: int
    periodic: bool
    programs: tuple[RProgram, ...] = ()

    def run(self) -> Oracle:
        """Evaluate the reference."""
        from roller.backends.periodic_inputs import periodic_inputs
        from roller.runtime.check import Oracle
        from roller.runtime.random_inputs import random_inputs

        inputs: Any = (periodic_inputs if self.periodic else random_inputs)(self.expression, self.seed)
        oracle = Oracle(self.expression, inputs, self.seed)
        oracle.cover(self.programs, inputs)
        return oracle


@dataclass(frozen=True)
class CheckAndTimeTask:
    """Check built kernels of one expression; time the correct ones if ``timed``.

    Parameters
    ----------
    artifacts
        Built kernels by candidate id, the best prediction first.
    device
        ``"cuda:0"``, ``"rocm:0"``, ``"null:..."``; empty for the processor.
    rotating_bytes
        Total size, in bytes, of rotating copies of constants while a processor's kernels are timed.
    """

    runs_kernels: ClassVar[bool] = True

    expression: TensorExpr
    spec: DeviceSpec
    artifacts: Mapping[str, KernelArtifact]
    timed: bool
    seed: int
    reference: Oracle | None
    device: str = ""
    rotating_bytes: int = 0

    def run(self, session: ProfilerSession | None = None) -> dict[str, Record]:
        """Check and time the kernels, on ``session`` if given."""
        if self.device:
            from roller.backends.parse_device_names import architectures_match, parse_device_name
            from roller.runtime.check_and_time_candidates import DeviceBench

            with DeviceBench(
                self.expression, parse_device_name(self.device), self.seed, self.reference, session
            ) as bench:
                arch, positions_to_try_first = bench.properties().arch, self.spec.target.get("arch", "")
                if arch and not architectures_match(arch, positions_to_try_first):
                    raise BuildError(
                        f"profiling: expected a device of '{positions_to_try_first}', got {self.device} of '{arch}'."
                    )
                return bench.profile(self.artifacts, self.timed)
        self._require_same_processor()
        from roller.runtime.check_and_time_cpu_kernels import CpuBench

        seed, rotating = self.seed, self.rotating_bytes
        here = CpuBench(self.expression, seed, self.reference, rotating, patience_s=_PATIENCE_S)
        return here.profile(self.artifacts, self.timed)

    def _require_same_processor(self) -> None:
        """Raise an error if this processor's instruction set or number of cores differs from the caller's."""
        from roller.hardware import load_spec

        here = load_spec("cpu")
        if (here.target.get("mcpu"), here.units) != (self.spec.target.get("mcpu"), self.spec.units):
            raise BuildError(
                f"profiling: expected a worker on '{self.spec.target.get('mcpu')}' with {self.spec.units} cores, got "
                f"'{here.target.get('mcpu')}' with {here.units}. Give the resource cpu_slot to workers that are alike."
            )
