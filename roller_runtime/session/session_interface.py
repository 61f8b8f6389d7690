"""The interface of all sessions: signatures and three styles of calls."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

from roller_runtime.core.unpicklable import Unpicklable
from roller_runtime.errors import ArtifactError, LaunchError, counted
from roller_runtime.plan.execution_plan import Plan
from roller_runtime.session.call_metrics import CallMeter
from roller_runtime.session.caller_arrays import Feeds, TensorDescription, describe_value
from roller_runtime.session.saved_artifacts import doubt_of_artifact
from roller_runtime.session.session_metrics import SessionMetrics

if TYPE_CHECKING:
    from roller_runtime.session.session_profile import Profile


class ModelCalls(Unpicklable, ABC):
    """A model that is ready to run; several threads may call it. Copying is not supported.

    Attributes
    ----------
    plan
        Steps and the memory plan.
    """

    plan: Plan
    artifacts: Mapping[str, Any]
    other_way: ClassVar[str] = "Save it with save(folder) and load it with load_model; threads may share it."
    #: Whether a call waits for another device.
    waits_for_device: ClassVar[bool] = False
    _meter: CallMeter

    @property
    @abstractmethod
    def feeds(self) -> Feeds:
        """Validation of callers' arrays."""

    @property
    @abstractmethod
    def said(self) -> Mapping[str, tuple[float | None, str]]:
        """Predicted seconds and bottleneck by kernel key."""

    @abstractmethod
    def time_steps(self, feeds: Mapping[str, Any], count: int) -> Mapping[int, float]:
        """Return each step's median time over at least ``count`` calls, in seconds by ``id``, lanes included."""

    def profile(self, feeds: Mapping[str, Any] | None = None, *, repeats: int = 20) -> Profile:
        """Time whole calls and every step.

        Parameters
        ----------
        feeds
            Arrays by name; random ones if ``None``.
        repeats
            Minimum number of timed calls, both whole and step by step, after a few warm-up calls.

        Returns
        -------
        Profile
            Predicted and measured seconds, share, bottleneck, and computed nodes of each step.

        Raises
        ------
        LaunchError
            If ``repeats`` is not positive or a feed does not fit.
        """
        from roller_runtime.session.session_profile import profile_session  # calls do not need its imports

        return profile_session(self, feeds, repeats)

    @abstractmethod
    def _call(self, inputs: list[Any], out: Any, on_device: bool) -> list[Any]:
        """Run on validated arrays; return all outputs in order."""

    @property
    def name(self) -> str:
        """Name of the model."""
        return self.plan.program.name or "model"

    @property
    def inputs(self) -> tuple[TensorDescription, ...]:
        """Names, shapes and dtypes of the inputs, in order."""
        program = self.plan.program
        return tuple(describe_value(program, n) for n in program.inputs)

    @property
    def outputs(self) -> tuple[TensorDescription, ...]:
        """Names, shapes and dtypes of the outputs, in order."""
        program = self.plan.program
        return tuple(describe_value(program, n) for n in program.outputs)

    def get_inputs(self) -> list[TensorDescription]:
        """Return :attr:`inputs`, as in ONNX Runtime."""
        return list(self.inputs)

    def get_outputs(self) -> list[TensorDescription]:
        """Return :attr:`outputs`, as in ONNX Runtime."""
        return list(self.outputs)

    def run(self, *arguments: Any, out: Any = None, on_device: bool = False) -> Any:
        """Run the model.

        Parameters
        ----------
        *arguments
            A mapping of names to arrays yields a dict of all outputs. Arrays in the order of the inputs yield the
            output or a tuple of outputs. Output names (or ``None`` for all) and a mapping, as in ONNX Runtime's
            ``run(output_names, feeds)``, yield a list. Arrays are NumPy arrays or host-memory objects with
            ``__dlpack__`` and are copied only if strided; a GPU also takes CuPy and torch arrays on the device without
            a copy through the host.
        out
            Arrays to write into: one (for a single output), a sequence in order, or a mapping by name.
        on_device
            Whether results stay on the GPU, as CuPy arrays or, if an input is a torch tensor on the GPU, as torch
            tensors. They are ordered after the caller's current stream and not synchronized; CuPy gets bfloat16 as
            bits. This has no effect on a processor.

        Returns
        -------
        dict, list, array or tuple of arrays
            Outputs, NumPy arrays by default; none shares memory with an input.

        Raises
        ------
        LaunchError
            If an input is missing, is unknown, or has a different shape or dtype, or if an array of ``out`` does not
            fit.
        """
        return self._meter.measure(self._run, arguments, out, on_device)

    __call__ = run

    def _run(self, arguments: Sequence[Any], out: Any = None, on_device: bool = False) -> Any:
        """Run the model without counting the call; see :meth:`run`."""
        if len(arguments) == 1 and isinstance(arguments[0], Mapping):
            made = self._call(self.feeds.arrays_by_name(arguments[0]), out, on_device)
            return dict(zip(self.plan.program.outputs, made, strict=True))
        if len(arguments) in (2, 3) and _is_output_name_list(arguments[0]) and isinstance(arguments[1], Mapping):
            if len(arguments) == 3 and arguments[2] is not None:
                raise LaunchError(f"{self.name}: a session has no run options. Leave them away.")
            chosen = arguments[0] or self.plan.program.outputs
            numbers = [self.feeds.output_index_of_name(name) for name in chosen]
            made = self._call(self.feeds.arrays_by_name(arguments[1]), out, on_device)
            return [made[n] for n in numbers]
        made = self._call(self.feeds.arrays_by_position(arguments), out, on_device)
        return made[0] if len(made) == 1 else tuple(made)

    @cached_property
    def doubt(self) -> str:
        """Reason why other programs may have disturbed the choice of kernels; empty if none is known.

        A loaded session knows it only if its folder contains the sources of its kernels.
        """
        try:
            several = [text for text in map(doubt_of_artifact, self.artifacts.values()) if text]
        except ArtifactError as err:  # the folder was changed or removed since it was loaded: metrics must not fail
            return f"unknown, because the folder's sources cannot be read: {err}"
        return f"{several[0]} ({len(several)} of {counted(len(self.artifacts), 'kernel')})" if several else ""

    def metrics(self) -> SessionMetrics:
        """Return the number of calls and failures, durations, memory, and doubt about the choice of kernels.

        Any thread may ask at any time; calls do not wait for it. Counting adds less than 1 us to a call.
        """
        counts = self._meter.metrics()
        return SessionMetrics(counts.failures, counts.in_progress, counts.latency, self.name, doubt=self.doubt)


def describe_signature(session: ModelCalls) -> str:
    """Return a text description of a session's inputs and outputs, with ``?`` for unknown dimensions."""

    def one(end: TensorDescription) -> str:
        dims = "?" if end.shape is None else ", ".join("?" if d is None else str(d) for d in end.shape)
        return f"{end.name} [{dims}]"

    return " -> ".join(", ".join(map(one, ends)) for ends in (session.inputs, session.outputs))


def _is_output_name_list(value: Any) -> bool:
    """Return whether ``value`` is ``None`` or a list of output names, like the first argument in ONNX Runtime."""
    return value is None or (isinstance(value, (list, tuple)) and all(isinstance(n, str) for n in value))
