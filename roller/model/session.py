"""A model that runs: feeds in, outputs out, in any number of threads at a time."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from roller.artifact import KernelArtifact
from roller.backends.cpu import threads
from roller.backends.cpu.launcher import runtime_of_pools
from roller.errors import LaunchError, ModelError
from roller.model.binding import Bound, bind, wakes_threads
from roller.model.constants import Constants, prepare, without_constants
from roller.model.feeds import Described, Feeds, described
from roller.model.frames import Frame
from roller.model.kernels import KernelCode, LoadedKernel, load_kernel
from roller.model.native import NativeFrame, tables
from roller.model.plan import Plan
from roller.model.runner import Runner, build_runner, load_runner

if TYPE_CHECKING:
    from roller.model.profile import Profile


class Session:
    """A whole model on this machine's processor.

    Calls are re-entrant: every call has a frame of its own, taken from a pool.

    Parameters
    ----------
    plan
        See :func:`roller.model.memory.plan`; with all constants of its program.
    artifacts
        A CPU kernel by every key the plan's steps name.
    cores
        Threads a call may use, the caller among them.
    native
        Whether steps run without Python; ``False`` is slower and computes the same.
    consume
        Whether the constants are taken out of the plan's program, each as soon as it is packed, so that weights are not
        in memory twice: the plan, its program and what they were made from are of no more use then.

    Raises
    ------
    LaunchError
        Where a kernel cannot be loaded here.
    ModelError
        Where plan and kernels do not fit.
    BuildError
        Where the native runner has to be compiled and there is no C compiler.
    """

    def __init__(
        self,
        plan: Plan,
        artifacts: Mapping[str, KernelArtifact],
        *,
        cores: int,
        native: bool = True,
        consume: bool = False,
    ) -> None:
        runner = load_runner(build_runner()) if native else None
        launch = runner.launch if runner is not None else None
        kernels = {key: load_kernel(KernelCode.of(a), a.binary or b"", launch) for key, a in artifacts.items()}
        if runner is not None:
            runner.use_threads(cores)
        else:
            threads.ready(cores, runtime_of_pools)
        self._start(plan, kernels, prepare(plan, kernels, consume), cores, runner, artifacts)

    @classmethod
    def restored(
        cls,
        plan: Plan,
        kernels: Mapping[str, LoadedKernel],
        constants: Constants,
        cores: int,
        runner: Runner | None,
        artifacts: Mapping[str, KernelArtifact],
    ) -> Session:
        """Return a session whose kernels are loaded and whose constants are packed."""
        session = cls.__new__(cls)
        session._start(plan, kernels, constants, cores, runner, artifacts)
        return session

    def _start(
        self,
        plan: Plan,
        kernels: Mapping[str, LoadedKernel],
        constants: Constants,
        cores: int,
        runner: Runner | None,
        artifacts: Mapping[str, KernelArtifact],
    ) -> None:
        if cores < 1:
            raise ModelError(f"{plan.program.name}: cores: expected at least 1, got {cores}.")
        #: The plan; its program holds no constants, since those that are packed are read in that form only.
        self.plan = without_constants(plan)
        self.cores = cores
        self.kernels, self.constants = kernels, constants
        #: Kernels by key, with their programs, estimates and sources; empty where a model was saved without.
        self.artifacts = artifacts
        self._feeds = Feeds(plan.program)
        self.runner = runner
        self._begin(bind(plan, kernels, constants))

    def _begin(self, steps: tuple[Bound, ...]) -> None:
        #: The plan's steps with their kernels and memory.
        self.steps = steps
        #: Whether a call wakes other threads: without that it starts none.
        self._wakes = self.cores > 1 and any(wakes_threads(step) for step in steps)
        self._threads = self.cores if self._wakes else 1
        self._tables = tables(steps, len(self.plan.program.inputs))
        self._most_frames = max(2, len(threads.processors()))
        # The first call finds its memory at hand; other threads' calls make theirs.
        self._frames: list[Frame] = [self._frame()]

    @property
    def name(self) -> str:
        """Of the model."""
        return self._feeds.name

    @property
    def inputs(self) -> tuple[Described, ...]:
        """Names, shapes and dtypes of what a call takes, in order."""
        program = self.plan.program
        return tuple(described(program.values[n]) for n in program.inputs)

    @property
    def outputs(self) -> tuple[Described, ...]:
        """Names, shapes and dtypes of what a call gives, in order."""
        program = self.plan.program
        return tuple(described(program.values[n]) for n in program.outputs)

    def get_inputs(self) -> list[Described]:
        """Return :attr:`inputs` under the name ONNX Runtime has for it."""
        return list(self.inputs)

    def get_outputs(self) -> list[Described]:
        """Return :attr:`outputs` under the name ONNX Runtime has for it."""
        return list(self.outputs)

    def run(self, *arguments: Any, out: Any = None) -> Any:
        """Run the model.

        Parameters
        ----------
        *arguments
            What is fed decides what comes back. One mapping of names to arrays: a dict of all outputs. Arrays in
            the order of the inputs: the output, or a tuple of them. Names of outputs (or ``None`` for all of them) and
            a mapping, as for ONNX Runtime's ``run(output_names, feeds)``: a list. Arrays are NumPy or
            anything with ``__dlpack__`` in host memory, and are not copied unless strided.
        out
            Arrays to write into: one (of a single output), a sequence in order, or a mapping by name.

        Returns
        -------
        dict, list, numpy.ndarray or tuple of numpy.ndarray
            Outputs; no array of them shares memory with an input.

        Raises
        ------
        LaunchError
            Where an input is missing, unknown or of another shape or dtype, or an ``out`` does not fit.
        """
        if len(arguments) == 1 and isinstance(arguments[0], Mapping):
            made = self._call(self._feeds.named(arguments[0]), out)
            return dict(zip(self.plan.program.outputs, made, strict=True))
        if len(arguments) in (2, 3) and _names(arguments[0]) and isinstance(arguments[1], Mapping):
            if len(arguments) == 3 and arguments[2] is not None:
                raise LaunchError(f"{self.name}: a session has no run options. Leave them away.")
            chosen = arguments[0] or self.plan.program.outputs
            numbers = [self._feeds.number(name) for name in chosen]
            made = self._call(self._feeds.named(arguments[1]), out)
            return [made[n] for n in numbers]
        made = self._call(self._feeds.positional(arguments), out)
        return made[0] if len(made) == 1 else tuple(made)

    __call__ = run

    def profile(self, feeds: Mapping[str, Any] | None = None, *, repeats: int = 20) -> Profile:
        """Time every step: predicted and measured seconds, share, bottleneck, and the nodes it stands for.

        Parameters
        ----------
        feeds
            Arrays by name; random ones when ``None``.
        repeats
            Calls that are timed; two more come before them.

        Returns
        -------
        Profile

        Raises
        ------
        LaunchError
            Where ``repeats`` is not positive, or a feed does not fit.
        """
        from roller.model.profile import profile_session

        return profile_session(self, feeds, repeats)

    def run_timed(self, feeds: Mapping[str, Any], seconds: dict[int, float]) -> dict[str, np.ndarray]:
        """Run as :meth:`run` does, and note what every step takes by the ``id`` of its bound step."""
        made = self._call(self._feeds.named(feeds), None, seconds)
        return dict(zip(self.plan.program.outputs, made, strict=True))

    def _call(self, inputs: list[np.ndarray], out: Any, seconds: dict[int, float] | None = None) -> list[np.ndarray]:
        """Run on checked arrays; return all outputs in order."""
        outputs = self._feeds.made() if out is None else self._feeds.given(out, inputs)
        try:
            frame = self._frames.pop()  # at once, whatever other threads do
        except IndexError:
            frame = self._frame()
        try:
            if self._wakes and self.runner is None:
                threads.ready(self.cores, runtime_of_pools)
            frame.run(inputs, outputs, seconds)
        finally:
            if len(self._frames) < self._most_frames:  # a burst of threads leaves no memory behind
                self._frames.append(frame)
        return outputs

    def save(self, folder: str | os.PathLike[str], *, sources: bool = True) -> Path:
        """Write the model for :func:`roller.load_model`; the folder appears whole or not at all.

        Parameters
        ----------
        folder
            Must not exist, or be empty.
        sources
            Whether programs, estimates and sources of the kernels go with it, for people.

        Raises
        ------
        ArtifactError
            Where the folder holds something or cannot be written.
        """
        from roller.model.saved import save_session

        return save_session(self, folder, sources=sources)

    def _frame(self) -> Frame:
        if self.runner is None:
            return Frame(self.steps, self.plan.arena_bytes)
        count = len(self._feeds.inputs) + len(self._feeds.outputs)
        return NativeFrame(self.steps, self.plan.arena_bytes, self._tables, self.runner, count, self._threads)

    def __repr__(self) -> str:
        """Name, inputs and outputs on one line."""
        ends = (", ".join(f"{d.name} {list(d.shape)}" for d in ends) for ends in (self.inputs, self.outputs))
        return f"<Session {self.name}: {' -> '.join(ends)}, {self.cores} cores>"


def _names(value: Any) -> bool:
    """Whether a first argument names outputs, as ONNX Runtime has it."""
    return value is None or (isinstance(value, (list, tuple)) and all(isinstance(n, str) for n in value))
