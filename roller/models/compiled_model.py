"""The result of compiling a model: a plan, kernels by key, and a record of how each kernel was obtained."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from roller.artifact import KernelArtifact
from roller.compiler.autotune.prove_on_emulator import stored_proof_text
from roller.errors import ArtifactError, LaunchError, counted
from roller.hardware import DeviceSpec
from roller.models.batch.batch_result import BatchResult
from roller.models.batch.kernel_jobs import BatchTarget
from roller.models.batch.launch_forecast import LaunchForecast
from roller.models.options import SECONDS
from roller.models.session.start_session import start_session
from roller_runtime.core.display import html_table, one_line_repr, seconds_text, truncate_text
from roller_runtime.core.unpicklable import Unpicklable
from roller_runtime.core.validation import validate_number
from roller_runtime.core.validation import validate_path as path_of
from roller_runtime.plan.execution_plan import Plan
from roller_runtime.plan.program_steps import Step, iterate_kernel_runs
from roller_runtime.session.cpu_session import Session
from roller_runtime.session.model_digest import ModelDigest, unknown_digest
from roller_runtime.storage.verified_container import check_output_folder

if TYPE_CHECKING:
    from roller.models.session.gpu_bundle import Expected
    from roller.models.session.gpu_session import GpuSession

#: Maximum number of characters of a step's label in a table.
MOST_LABEL = 70


@dataclass(frozen=True)
class CompiledModel(Unpicklable):
    """A model with all its kernels: :meth:`session` runs it here, :meth:`save` writes a folder for another machine.

    Parameters
    ----------
    plan
        Steps and the memory plan.
    artifacts
        Compiled kernels by kernel key.
    spec
        Device that the kernels were constructed for.
    target
        Device that the kernels run on.
    batch
        Result of the batch compilation.
    seconds
        Compile time by stage, in seconds.
    layouts
        Values whose channels are stored in blocks, with the predicted gain, as text.
    launches
        Kernel launches in a call on a GPU, with the call's predicted time; ``None`` for other devices.
    unproved_s
        Maximum time, in seconds, that saving spends on proofs of kernels for an absent GPU; 0 if these ran during
        compilation or are disabled.
    again
        Function that compiles the model again with a given time limit for proofs, in seconds; ``None`` if kernels are
        checked on their device.
    model_digest
        Function that returns the SHA-256 of the model's file, for saved models.
    """

    other_way: ClassVar[str] = "Save it with save(folder), and load it with roller.load_model(folder)."

    plan: Plan
    artifacts: Mapping[str, KernelArtifact]
    spec: DeviceSpec
    target: BatchTarget
    batch: BatchResult
    seconds: Mapping[str, float]
    layouts: str = ""
    launches: LaunchForecast | None = None
    unproved_s: float = 0.0
    again: Callable[[float], CompiledModel] | None = field(default=None, compare=False, repr=False)
    model_digest: ModelDigest = field(default=unknown_digest, compare=False, repr=False)

    def __repr__(self) -> str:
        """Return the model, the device and the numbers of kernels and steps on one line."""
        name = self.plan.program.name or "model"
        kernels = counted(len(self.artifacts), "kernel")
        steps = counted(len(self.plan.program.steps), "step")
        return one_line_repr("CompiledModel", f"{name} for {self.spec.name}: {kernels} in {steps}")

    def _repr_html_(self) -> str:
        """Return a table of kernels for a notebook, with the largest predicted share first."""
        rows = (
            (row["runs"], seconds_text(row["predicted_s"]), seconds_text(row["measured_s"]), row["origin"],
             truncate_text(row["label"], MOST_LABEL))
            for row in self.rows
        )  # fmt: skip
        return html_table(repr(self)[1:-1], ("runs", "predicted", "measured", "origin", "kernel"), rows)

    @property
    def runs_here(self) -> bool:
        """Whether this machine has the device."""
        return self.target.here

    def session(self, *, consume: bool = False) -> Session | GpuSession:
        """Return a session that runs the model on this machine.

        Parameters
        ----------
        consume
            Whether this model may lose its weights: on a processor, each weight is released once it is packed, so that
            memory never holds both forms of all weights.

        Raises
        ------
        LaunchError
            If the device is not one of this machine.
        """
        if not self.runs_here:
            raise LaunchError(
                f"{self.plan.program.name}: compiled for '{self.spec.name}', which is no device of this machine. Save "
                "it, and load the folder (roller.load_model) where the device is; or compile for 'cpu' or 'cuda:0'."
            )
        if not self.spec.traits.discrete:
            return start_session(
                self.plan, self.artifacts, cores=self.spec.units, consume=consume, model_digest=self.model_digest
            )
        from roller.models.session.gpu_device import open_device
        from roller.models.session.gpu_session import GpuSession

        device = open_device(self.target.device, self.spec.target["arch"])
        return GpuSession(self.plan, self.artifacts, device, built_for=self.spec.name, target=self.spec.target)

    def run(self, *arguments: Any, **options: Any) -> Any:
        """Run the model once in a new session; keep a :meth:`session` for repeated calls.

        Raises
        ------
        LaunchError
            If the device is not one of this machine.
        """
        return self.session().run(*arguments, **options)

    def proved(self, seconds: float) -> CompiledModel:
        """Prove the kernels correct, within a time limit; return the model with wrong kernels replaced.

        Only replacements for wrong kernels are lowered.

        Parameters
        ----------
        seconds
            Time limit, in seconds, for all proofs together, including earlier ones.

        Raises
        ------
        NoCandidateError
            If all candidates of a kernel are wrong.
        """
        if self.again is None or not seconds:
            return self
        made = self.again(seconds)
        same = (k for k, a in made.artifacts.items() if k in self.artifacts and a.program == self.artifacts[k].program)
        origins = {**made.batch.origins, **{k: self.batch.origins[k] for k in same}}
        return replace(made, batch=replace(made.batch, origins=origins), unproved_s=0.0)

    def save(
        self, folder: str | os.PathLike[str], expected: Sequence[Expected] = (), *, prove_s: float | None = None
    ) -> Path:
        """Write the model to a folder, from which it runs without a compiler.

        :func:`roller.load_model` loads it on a machine that has the device. For a GPU, the folder is a bundle that
        ``python -m roller.models.session.bundle run`` checks, times and profiles on that machine.

        Parameters
        ----------
        folder
            Folder that does not exist or is empty.
        expected
            Inputs and the outputs that a GPU must reproduce from them; see
            :func:`roller.models.onnxruntime_reference.make_random_expected_outputs`.
        prove_s
            Time limit, in seconds, for running kernels for an absent GPU on the emulator before they are written; by
            default 120 if :func:`roller.compile_model` was given no setting for proofs, otherwise 0.

        Raises
        ------
        ArtifactError
            If the folder is not empty or cannot be written.
        NoCandidateError
            If all candidates of a kernel are wrong.
        """
        target = path_of(folder, "folder", error=ArtifactError)
        if not self.spec.traits.discrete:
            session = self.session()
            assert isinstance(session, Session)
            return session.save(target)
        from roller.models.session.gpu_bundle import write_bundle

        check_output_folder(target)  # before any work goes into it
        given = prove_s is not None
        made = self.proved(validate_number(prove_s, "prove_s", expected=SECONDS) if given else self.unproved_s)
        write_bundle(
            target, made.plan, made.artifacts, device=self.spec.name, target=self.spec.target, expected=expected
        )
        return target

    @cached_property
    def rows(self) -> tuple[dict[str, Any], ...]:
        """One row per kernel, with the largest predicted share first.

        Keys: ``key``, ``label`` (of the first step that runs the kernel), ``runs`` per call, ``predicted_s`` and
        ``measured_s`` per run, ``share_s`` (predicted seconds over all runs), ``bottleneck``, ``origin``, and
        ``proved``, the result of the kernel's proof.
        """
        from roller_runtime.session.session_profile import distinct_label_by_outputs

        labels: dict[str, str] = {}
        told_apart = distinct_label_by_outputs(iterate_kernel_runs(self.plan.program.steps))
        for run in iterate_kernel_runs(self.plan.program.steps):
            alone, parted = run.label, told_apart[run.outputs]
            if run.kernel in self.artifacts and alone != parted:  # a node of several kernels: which one this is
                axes = " ".join(f"{a.name}={a.extent}" for a in self.artifacts[run.kernel].expression.axes)
                parted = f"{alone} [{axes}]{parted.removeprefix(alone)}"
            labels.setdefault(run.kernel, parted)
        uses = count_kernel_runs(self.plan.program.steps)
        rows = [
            {
                "key": key,
                "label": labels.get(key, a.expression.name),
                "runs": uses[key],
                "predicted_s": a.estimate["seconds"],
                "measured_s": a.measured_s,
                "share_s": uses[key] * a.estimate["seconds"],
                "bottleneck": a.estimate["bottleneck"],
                "origin": self.batch.origins[key],
                "proved": stored_proof_text(a) or None,
            }
            for key, a in self.artifacts.items()
        ]
        return tuple(sorted(rows, key=lambda row: (-float(row["share_s"]), str(row["key"]))))


def count_kernel_runs(steps: Iterable[Step]) -> Counter[str]:
    """Return how many times each kernel runs in a call, by key."""
    return Counter(run.kernel for run in iterate_kernel_runs(steps))
