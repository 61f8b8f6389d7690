"""The profile of one training step: one type for predictions, measurements and recordings."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from types import MappingProxyType
from typing import Literal, NamedTuple

from roller.errors import ArtifactError, NoCandidateError, RollerError, shown
from roller.insight.step.graph import StepGraph
from roller.insight.step_profile.batch_curve import BatchCurve
from roller.insight.step_profile.find_worthwhile_weight_padding import PaddedWeights
from roller.insight.step_profile.lines import Line, lines_of_tree
from roller.insight.step_profile.node import Node
from roller.insight.step_profile.what_if_hints import Hint, hints
from roller.insight.whatif.memory_effect import MemoryOf
from roller_runtime.core.display import seconds_text

#: Origin of a profile's times: a model of the device, a run on this machine, or a recording of PyTorch's profiler.
Source = Literal["predicted", "measured", "recorded"]
Label = Literal["predicted", "calibrated", "measured", "recorded"]
Metric = Literal["time", "memory"]
_MIB = 1 << 20


class MemoryPoint(NamedTuple):
    """Memory at one moment of the step.

    Parameters
    ----------
    at
        Index of the operator in the step, or seconds since the start of a recording.
    allocated_bytes, reserved_bytes
        Bytes that the allocator has allocated and reserved.
    kinds
        Bytes requested by kind of storage; empty if unknown.
    holders
        Largest memory holders at this moment, in descending order: maps kind, module and line of the allocation to
        requested bytes. Empty if unknown.
    """

    at: float
    allocated_bytes: int
    reserved_bytes: int
    kinds: Mapping[str, int]
    holders: Mapping[str, int] = MappingProxyType({})


class Split(NamedTuple):
    """Bytes of weights and activations at the peak of total memory."""

    weights_bytes: int
    activations_bytes: int

    @property
    def more(self) -> str:
        """``"weights"`` or ``"activations"``, whichever is larger."""
        return "weights" if self.weights_bytes >= self.activations_bytes else "activations"


@dataclass(frozen=True)
class StepProfile:
    """Time and memory of one training step, as a tree.

    Parameters
    ----------
    name
        Name of the entry file, the model or the recording.
    device
        Name of the device; ``""`` if a recording does not contain it.
    root
        The step; its descendants are lines and modules, then operators, kernels and tensors. The times of children add
        up to their parent's time within 1e-9 s, and their bytes add up exactly.
    iteration_s, lower_s, upper_s
        Time of one step and its interval: the time minus and plus the expected error, or the range of measurements.
    batch, samples
        Number of samples per call and per update on each device; 0 if unknown.
    devices, amp, checkpoint, policy
        See :class:`~roller.insight.forecast.Forecast`.
    bound
        What limits the step: ``"device"``, ``"launches"`` or ``"links"``; ``""`` if unknown.
    capacity_bytes
        Memory of the device in bytes; 0 if unknown.
    out_of_memory
        Why the step does not fit, with the failing line; ``""`` if it fits. If it does not, memory is counted up to the
        failure.
    categories
        Seconds by category, if a recording has categories.
    curve
        Throughput and memory over the batch; ``None`` if not requested.
    notes
        Sentences about declared defaults and omitted parts.
    is_stable
        Whether the measurement was undisturbed; if not, only the interval is known.
    is_calibrated
        Whether predicted times use rates measured on the device itself.
    versions
        Versions that affect the figures: ``"roller"``, a digest of its sources; ``"device"``, a digest of the
        specification; and ``"torch"``, the PyTorch version. Empty if a file does not contain them.
    out_of_memory_at
        ``"file:line"`` of the operator that ran out of memory; ``""`` if unknown.
    """

    name: str
    source: Source
    device: str
    root: Node = field(repr=False)
    iteration_s: float
    lower_s: float
    upper_s: float
    batch: int = 0
    samples: float = 0.0
    devices: int = 1
    amp: str = "fp32"
    checkpoint: tuple[str, ...] = ()
    policy: str = ""
    bound: str = ""
    capacity_bytes: int = 0
    total_error_bytes: int = 0
    out_of_memory: str = ""
    memory_curve: tuple[MemoryPoint, ...] = field(default=(), repr=False)
    categories: Mapping[str, float] = field(default_factory=dict)
    curve: BatchCurve | None = field(default=None, repr=False)
    notes: tuple[str, ...] = ()
    versions: Mapping[str, str] = field(default_factory=dict)
    is_stable: bool = True
    is_calibrated: bool = False
    #: Computes the batch curve, if the step can be profiled again.
    make_curve: Callable[[], BatchCurve] | None = field(default=None, repr=False, compare=False)
    #: Builds the graph of the step, for what-ifs.
    make_graph: Callable[[], StepGraph] | None = field(default=None, repr=False, compare=False)
    #: Traces the step again, for the memory of what-ifs.
    memory_of: MemoryOf | None = field(default=None, repr=False, compare=False)
    #: Finds weights in the step's graph that padding would speed up.
    find_pads: Callable[[StepGraph], tuple[PaddedWeights, ...]] | None = field(default=None, repr=False, compare=False)
    out_of_memory_at: str = ""

    def __repr__(self) -> str:
        return str(self)

    def __str__(self) -> str:
        disturbed = "" if self.is_stable else "disturbed: "
        apart = ""
        if self.upper_s > self.lower_s:
            apart = f" ({disturbed}{seconds_text(self.lower_s)} to {seconds_text(self.upper_s)})"
        count = f"{self.devices}x" if self.devices > 1 else ""
        of = f" of {self.capacity_bytes / _MIB:.0f}" if self.capacity_bytes else ""
        parts = [
            f"{self.name}: {self.label} on {count}{self.device or 'an unnamed device'}",
            f"batch {self.batch}{' per device' * (self.devices > 1)}" * bool(self.batch),
            self.amp * (self.amp != "fp32"),
            f"{seconds_text(self.iteration_s)} {self._step_or_inference}{apart}",
            f"{self.throughput:.1f} samples/s" * bool(self.throughput),
            f"{self.total_bytes / _MIB:.0f}{of} MiB" * bool(self.total_bytes),
            f"bound by the {self.bound}" * bool(self.bound),
        ]
        return ", ".join(filter(None, parts)) + "."

    @property
    def label(self) -> Label:
        """Label for all figures: ``source``, or ``"calibrated"`` for a calibrated prediction."""
        return "calibrated" if self.source == "predicted" and self.is_calibrated else self.source

    @property
    def _step_or_inference(self) -> str:
        trains = {"backward", "optimizer"} & set(self.root.seconds)
        return "a step" if trains or self.source == "recorded" else "an inference"

    @property
    def total_bytes(self) -> int:
        """Peak memory of the process in bytes, which is the sum over the tree."""
        return self.root.total_held_bytes

    @property
    def memory_parts(self) -> Mapping[str, int]:
        """Parts of ``total_bytes``: requested bytes by kind, then rounding, cached bytes, context and page rounding."""
        return self.root.held_bytes

    @property
    def fits(self) -> bool:
        """Whether the step fits on the device."""
        return not self.out_of_memory

    @property
    def throughput(self) -> float:
        """Samples per second over all devices; 0 if the batch is unknown or the step does not fit."""
        return self.devices * self.samples / self.iteration_s if self.fits and self.iteration_s else 0.0

    @cached_property
    def lines(self) -> tuple[Line, ...]:
        """Every line that has an operator or a parameter, or that calls such a line, sorted by file and line number."""
        return lines_of_tree(self.root)

    def line(self, name: str) -> Line:
        """Return a line by ``"file:line"``.

        Raises
        ------
        RollerError
            If the line has neither an operator nor a parameter.
        """
        for found in self.lines:
            if found.name == name:
                return found
        files = ", ".join(dict.fromkeys(found.file for found in self.lines)) or "none"
        raise RollerError(
            f"profile: expected a line with an operator or a parameter, got {shown(name)}. Files with such lines: "
            f"{files}."
        )

    def heaviest(self, metric: Metric = "time") -> tuple[Node, ...]:
        """Return the path from the step to an operator along the nodes with the most time or memory.

        Parameters
        ----------
        metric
            ``"time"``: wall time. ``"memory"``: bytes at the peak of total memory; the path may then end at tensors, or
            at memory outside tensors.

        Raises
        ------
        RollerError
            If ``metric`` is neither of these.
        """
        if metric not in ("time", "memory"):
            raise RollerError(f"profile: heaviest: expected 'time' or 'memory', got {shown(metric)}. Choose one.")
        found = [self.root]
        while found[-1].children and found[-1].kind != "operator":
            children = found[-1].children
            found.append(max(children, key=lambda n: n.wall_s if metric == "time" else n.total_held_bytes))
        return tuple(found)

    def split(self) -> Split:
        """Return the bytes that weights and saved activations take at the peak of total memory."""
        held = self.root.held_bytes
        return Split(held.get("parameter", 0), held.get("activation", 0))

    def balanced_batch(self) -> float:
        """Return the batch at which activations take up as many bytes as weights.

        This is the size of the weights divided by the size of the activations per sample. Activations are measured at
        their own peak, since few are left if total memory peaks during the update.

        Raises
        ------
        NoCandidateError
            If the batch is unknown, or the step has no activations.
        """
        weights, at_peak = self.split()
        activations = max([at_peak, *(point.kinds.get("activation", 0) for point in self.memory_curve)])
        if not self.batch or not activations:
            raise NoCandidateError(
                f"profile: balanced_batch: expected a batch and activations, got batch {self.batch} and "
                f"{activations} bytes. Profile a training step with a batch size."
            )
        return weights * self.batch / activations

    def diminishing_from(self) -> int:
        """Return the smallest batch at which doubling the batch raises throughput by less than a tenth.

        Raises
        ------
        NoCandidateError
            If neither the line nor the computed batches contain such a batch, or there is no curve.
        """
        return self.batch_curve().diminishing_from()

    def batch_curve(self) -> BatchCurve:
        """Return throughput and memory over the batch, computed on demand.

        Raises
        ------
        NoCandidateError
            If the profile was saved without its curve, or the step cannot be profiled again.
        """
        if self.curve is not None:
            return self.curve
        if self.make_curve is None:
            raise NoCandidateError(
                f"profile: expected a step that can be profiled at other batches, got a {self.source} profile without "
                f"its curve. Make it of an entry file: roller profile FILE --curve."
            )
        return self._computed_curve

    @cached_property
    def _computed_curve(self) -> BatchCurve:
        assert self.make_curve is not None
        return self.make_curve()

    def hints(self, per_hour: float | None = None) -> tuple[Hint, ...]:
        """Return the predicted effects of applicable what-ifs by descending gain, then the effects of padding weights.

        Parameters
        ----------
        per_hour
            Hourly price of one device; with it, hints have a price unless the step does not fit.

        Raises
        ------
        NoCandidateError
            If the profile does not have a graph, since it was saved or measured, or describes a model or several
            devices.
        RollerError
            If too much of the recording's time is unexplained.
        """
        if self.make_graph is None:
            raise NoCandidateError(
                f"profile: hints: expected a step that is traced or recorded, on one device, got a {self.source} "
                f"profile without its graph. A saved profile has none: write its hints with roller profile train.py "
                f"--json --hints > profile.json, or name the entry file."
            )
        graph = self.make_graph()
        pads = () if self.find_pads is None else self.find_pads(graph)
        found = hints(graph, memory_of=self.memory_of, pads=pads)
        if self.label == "calibrated":
            found = tuple(hint.label_calibrated() for hint in found)
        if per_hour is None or not self.fits:
            return found
        before_s = self._hints_baseline_s(found)
        return tuple(hint.with_price(per_hour, self.samples, before_s) for hint in found)

    def _hints_baseline_s(self, found: tuple[Hint, ...]) -> float:
        """Return the baseline time for hints; for a recording, this is the median step, not the mean."""
        own = next((hint.iteration_s - hint.delta_s for hint in found if not hint.not_asked), self.iteration_s)
        return self.iteration_s if math.isclose(own, self.iteration_s, rel_tol=1e-9) else own

    def _repr_html_(self) -> str:
        from roller.insight.step_profile.profile_html_page import profile_html_for_notebook

        return profile_html_for_notebook(self)

    def check(self) -> None:
        """Check that the parts of the tree add up to the whole.

        Raises
        ------
        ArtifactError
            If a node differs from the sum of its children.
        """
        parts: list[tuple[str, float, int]] = [("step", self.iteration_s - self.root.wall_s, 0)]
        for node in self.root.walk():
            if node.children:
                apart_s = node.wall_s - math.fsum(child.wall_s for child in node.children)
                held = node.total_held_bytes - sum(child.total_held_bytes for child in node.children)
                parts.append((node.name, apart_s, held))
        for name, apart_s, held in parts:
            if abs(apart_s) > 1e-9 or held:
                raise ArtifactError(
                    f"profile: {shown(name)}: expected the sum of its parts, got {apart_s:g} s and {held} bytes more. "
                    f"The file was changed by hand; profile the step again."
                )
