"""``roller.profile``: the profile of a training step, predicted for any device, measured or recorded."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal

from roller.errors import NoCandidateError, RollerError, shown
from roller.hardware import DeviceSpec
from roller.hardware.is_spec_calibrated import is_calibrated
from roller.insight.capture.idle_timeout import PATIENCE_S
from roller.insight.capture.script_tracer import trace_script
from roller.insight.cost.compiled import apply_policy_to_trace
from roller.insight.forecast import Forecast
from roller.insight.memory.largest_batch import device_capacity_bytes, largest_batch_on_device
from roller.insight.step.from_trace import from_trace
from roller.insight.step.replay import from_kineto
from roller.insight.step_profile.batch_curve import BatchCurve, BatchPoint, batch_curve
from roller.insight.step_profile.find_worthwhile_weight_padding import find_weight_paddings
from roller.insight.step_profile.measured_profile import measured_profile
from roller.insight.step_profile.memory_curve import memory_points_over_step
from roller.insight.step_profile.onnx_profile import profile_onnx
from roller.insight.step_profile.predicted_profile import trace_with_gradient_buckets, tree_of_forecast
from roller.insight.step_profile.profile_json import FORMAT, load_profile
from roller.insight.step_profile.recorded_profile import profile_of_recording
from roller.insight.step_profile.step_profile import StepProfile
from roller.insight.trace.entry_file_providers import is_script
from roller.insight.trace.trace import Operator, Trace
from roller.insight.trace.traces_by_affine_batch import TracesByBatch
from roller.insight.traced_step import TracedStep
from roller.insight.tracing import require_torch, trace_entry
from roller.runtime.cache_key import source_code_digest
from roller_runtime.core.files import open_regular_file

#: Kind of a file: an entry file with providers, a script without them, an ONNX model, a saved profile, or a recording
#: of PyTorch's profiler.
FileKind = Literal["entry", "script", "model", "profile", "recording"]
#: Default device of a profile.
DEVICE = "a100"
#: Maps a suffix to the default kind of a file; a Python file may also be a script, and a JSON file may be a profile.
_SUFFIXES: Mapping[str, FileKind] = {
    ".py": "entry", ".onnx": "model", ".json": "recording", ".json.gz": "recording"
}  # fmt: skip
#: Suffixes of files that can be profiled.
SUFFIXES = tuple(_SUFFIXES)
#: Number of hexadecimal digits that are kept of a digest.
_DIGITS = 16
#: Number of bytes at the start of a JSON file that are searched for its format.
_HEAD = 256
#: Number of computed batches in addition to the three of the line.
_BESIDE_LINE = 12
#: Kinds of storages whose bytes do not depend on the batch.
_FIXED = ("parameter", "gradient", "optimizer_state", "buffer", "workspace")


def profile(
    step: str | Path | TracedStep,
    device: str | DeviceSpec | None = None,
    *,
    batch: int | None = None,
    amp: str | None = None,
    checkpoint: bool | str | Sequence[str] | None = None,
    policy: str | None = None,
    devices: int = 1,
    calls: int | None = None,
    curve: bool = False,
    measure: bool = False,
    budget_s: float = 60.0,
    arguments: Sequence[str] = (),
    patience_s: float = PATIENCE_S,
) -> StepProfile:
    """Return the time and memory of a step by module and line.

    Parameters
    ----------
    step
        An entry file (:mod:`roller.insight.trace.pytorch.entry_file`), the result of :func:`roller.trace`, or a
        training script without providers (:func:`roller.insight.capture.script_tracer.trace_script` runs it): the step
        is predicted for a device. For an ONNX model, one inference is predicted. A recording of PyTorch's profiler and
        a file written by :func:`save_profile` keep their times.
    device
        A specification or its name; ``"a100"`` by default. Recordings, saved profiles and measurements do not take a
        device.
    batch, amp, checkpoint
        See :meth:`~roller.insight.traced_step.TracedStep.at`; by default, the step's own values.
    policy, devices
        See :func:`roller.insight.forecast.forecast`. By default, a model uses Roller's programs, and a step uses the
        kernels of PyTorch and its libraries.
    calls
        Number of calls to trace, for an entry file or a script; see :func:`roller.trace`.
    curve
        Whether to compute throughput and memory over the batch now, as needed before saving; otherwise
        ``batch_curve()`` computes them on demand. Three batches are traced, plus batch 1 if the search for the largest
        batch needs it. Other batches are derived from these, or traced if a size in the step is not affine in the
        batch.
    measure
        Whether to run an entry file's step on this machine's processor, in a separate process, for ``budget_s``
        seconds; ``device``, ``policy`` and ``devices`` then do not apply.
    budget_s
        Seconds of timing for ``measure``, after the recorded calls.
    arguments, patience_s
        For a training script: its arguments, and the seconds without progress towards training after which it is
        stopped.

    Raises
    ------
    ModelError
        If the step cannot be traced.
    ArtifactError
        If the recording or the profile cannot be read.
    RollerError
        If the device or policy is unknown, or an argument does not apply to the file.

    Examples
    --------
    >>> import pytest
    >>> torch = pytest.importorskip("torch")
    >>> from roller.insight.tracing import trace
    >>> step = trace(torch.nn.Linear(8, 4), torch.zeros(2, 8), optimizer="sgd")
    >>> found = profile(step, "a100")
    >>> found.source, found.total_bytes == sum(found.memory_parts.values()), found.heaviest()[-1].kind
    ('predicted', True, 'operator')
    """
    from roller.compile_arguments import spec_and_local_device

    if measure:
        if device is not None or policy is not None or devices != 1 or calls is not None:
            raise RollerError(
                "profile: measure: expected no device, devices, policy or calls: the step runs on this processor. "
                "Leave them out."
            )
        return _measure_profile(step, batch, amp, checkpoint, curve, budget_s)
    kind = None if isinstance(step, Trace) else profile_source_file_kind(step)
    if arguments and kind != "script":
        raise RollerError(
            f"profile: arguments: expected none but for a training script, got {shown(list(arguments))}. "
            f"Leave them out."
        )
    if not isinstance(step, Trace) and kind is not None and kind not in ("entry", "script"):
        several = devices if devices != 1 else None
        asked = {"devices": several, "amp": amp, "checkpoint": checkpoint, "calls": calls, "curve": curve or None}
        return _profile_of_file(Path(step), kind, device, batch, policy, asked)
    spec, policy = spec_and_local_device(device or DEVICE)[0], policy or "library"
    if isinstance(step, Trace):
        traced = step
    elif kind == "script":  # every trace runs the script again
        traced = trace_script(step, arguments, batch=batch, device=spec, calls=calls, patience_s=patience_s)
    else:
        traced = trace_entry(step, device=spec, calls=calls)
    chosen = traced.at(batch=batch, device=spec, amp=amp, checkpoint=checkpoint)
    name = Path(str(traced.options.get("entry") or "step")).name
    found = _profile_of_trace(chosen, spec, name, policy, devices)
    made = replace(
        found, make_curve=lambda: _batch_curve_of_trace(chosen, spec, found, policy, devices),
        make_graph=None if devices > 1 else lambda: from_trace(chosen, spec, policy=policy),
        memory_of=lambda change: chosen.memory_with(change, spec, devices=devices, policy=policy),
        find_pads=lambda graph: find_weight_paddings(graph, chosen, "roller" if policy == "roller" else "library"),
    )  # fmt: skip
    return replace(made, curve=made.batch_curve()) if curve else made


def profile_source_file_kind(path: str | Path) -> FileKind:
    """Return the kind of a file from its suffix, the beginning of its JSON, or the providers in its Python code."""
    name = Path(path).name.lower()
    kind = next((kind for suffix, kind in _SUFFIXES.items() if name.endswith(suffix)), None)
    if kind is None:
        raise RollerError(
            f"{path}: expected {', '.join(_SUFFIXES)}, got {shown(name)}. Name an entry file, an ONNX model, a "
            f"recording of PyTorch's profiler, or a profile."
        )
    try:
        with open_regular_file(path) as file:
            head = file.read(_HEAD)
    except OSError as error:
        raise RollerError(
            f"{path}: expected a file, got {_unreadable_file_text(error)}. Name one that can be read."
        ) from error
    if kind == "entry" and is_script(Path(path)):
        return "script"
    return "profile" if kind == "recording" and FORMAT.encode() in head else kind


def _unreadable_file_text(error: OSError) -> str:
    return "none" if isinstance(error, FileNotFoundError) else f"what cannot be read ({error.strerror})"


def _profile_of_file(
    path: Path, kind: FileKind, device: str | DeviceSpec | None, batch: int | None, policy: str | None,
    asked: Mapping[str, object],
) -> StepProfile:  # fmt: skip
    given = {**asked, **({} if kind == "model" else {"device": device, "batch": batch, "policy": policy})}
    for name, value in given.items():
        if value not in (None, False, "fp32"):
            raise RollerError(
                f"profile: {path}: expected no {name} with a {kind}, got {shown(getattr(value, 'name', value))}. Leave "
                f"it out, or name an entry file."
            )
    if kind == "model":
        return profile_onnx(path, device or DEVICE, batch=batch, policy=policy or "roller")
    if kind == "profile":
        return load_profile(path)
    return replace(profile_of_recording(path), make_graph=lambda: from_kineto(path))


def _measure_profile(
    step: str | Path | TracedStep, batch: int | None, amp: str | None, checkpoint: bool | str | Sequence[str] | None,
    curve: bool, budget_s: float,
) -> StepProfile:  # fmt: skip
    if isinstance(step, Trace) or (kind := profile_source_file_kind(step)) != "entry":
        got = "a trace" if isinstance(step, Trace) else f"a {kind}"
        raise RollerError(f"profile: measure: expected an entry file, which can run, got {got}. Name an entry file.")
    require_torch("profile")

    def one(size: int | None) -> StepProfile:
        return measured_profile(step, batch=size, amp=amp, checkpoint=checkpoint, budget_s=budget_s)

    found = one(batch)

    def make_curve() -> BatchCurve:
        def point_at(size: int) -> BatchPoint:
            again = found if size == found.batch else one(size)
            total = again.total_bytes
            held = sum(size for kind, size in again.memory_parts.items() if kind != "process")
            return BatchPoint(size, again.iteration_s, again.throughput, held, total, True)

        fixed = sum(found.memory_parts.get(kind, 0) for kind in _FIXED)
        return batch_curve(point_at, found.batch, _machine_memory_bytes(), fixed_bytes=fixed)

    made = replace(found, make_curve=make_curve)
    return replace(made, curve=made.batch_curve()) if curve else made


def _machine_memory_bytes() -> int:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):
        return 0  # the system does not report it


def _profile_of_trace(trace: TracedStep, spec: DeviceSpec, name: str, policy: str, devices: int) -> StepProfile:
    from roller.insight.forecast import forecast

    return profile_of_forecast(trace, forecast(trace, spec, policy=policy, devices=devices), spec, name)


def profile_of_forecast(trace: Trace, forecast: Forecast, spec: DeviceSpec, name: str = "step") -> StepProfile:
    """Return the profile of a trace's forecast."""
    if forecast.step.trace.options.get("is_compiled"):  # compilation changes operators and storages
        trace = forecast.step.trace
    root = tree_of_forecast(trace, forecast)
    took = root.wall_s
    scale = took / forecast.iteration_s if forecast.iteration_s else 1.0
    notes = forecast.notes
    if len(trace.unlike()) > 1:
        notes = (
            f"The last {len(trace.unlike())} steps differ; the profile is that of the longest one. Their mean takes "
            f"{1e3 * forecast.iteration_s:.3f} ms.",
            *notes,
        )
    return StepProfile(
        name, "predicted", spec.name, root, took, scale * forecast.lower_s, scale * forecast.upper_s, forecast.batch,
        forecast.samples or forecast.batch, forecast.devices, forecast.amp or "fp32", forecast.checkpoint,
        forecast.policy, forecast.bound, device_capacity_bytes(spec), forecast.memory.total_error_bytes,
        _out_of_memory_text(trace, forecast), memory_points_over_step(trace_with_gradient_buckets(trace,
            forecast.devices), spec),
        notes=notes,
        versions=_profile_versions(spec), is_calibrated=is_calibrated(spec),
        out_of_memory_at=_out_of_memory_line_name(trace,
                                                                                                            forecast),
    )  # fmt: skip


def _profile_versions(spec: DeviceSpec) -> dict[str, str]:
    torch = sys.modules.get("torch")
    found = {
        "roller": source_code_digest(("roller/insight", "roller/perf", "roller/templates"))[:_DIGITS],
        "device": spec.content_key[:_DIGITS],
    }
    return found if torch is None else {**found, "torch": str(torch.__version__)}


def _out_of_memory_text(trace: Trace, forecast: Forecast) -> str:
    memory = forecast.memory
    if memory.oom is None:
        return ""
    operator, line = _out_of_memory_operator(trace, forecast), _out_of_memory_line_name(trace, forecast)
    if operator is None:
        return f"before the first operator: {memory.oom}"
    return f"{operator.name} of {operator.phase}{f' at {line}' if line else ''}: {memory.oom}"


def _out_of_memory_line_name(trace: Trace, forecast: Forecast) -> str:
    operator = _out_of_memory_operator(trace, forecast)
    return "" if operator is None or operator.source is None else f"{operator.source[0]}:{operator.source[1]}"


def _out_of_memory_operator(trace: Trace, forecast: Forecast) -> Operator | None:
    number = forecast.memory.oom_operator
    return None if number is None or not 0 <= number < len(trace.operators) else trace.operators[number]


def _batch_curve_of_trace(
    trace: TracedStep, spec: DeviceSpec, found: StepProfile, policy: str, devices: int
) -> BatchCurve:
    if not found.batch:
        raise NoCandidateError("profile: batch_curve: expected a step with a batch, got none. Give its inputs a batch.")

    from roller.insight.forecast import forecast

    traces = TracesByBatch(lambda batch: trace.at(batch=batch, device=spec))

    def point_at(batch: int) -> BatchPoint:
        one = forecast(traces.at(batch), spec, policy=policy, devices=devices)
        memory, peak = one.memory, one.memory.peak_operator
        operators = one.step.trace.operators
        return BatchPoint(
            batch, one.iteration_s, one.throughput, memory.peak.allocated_bytes, memory.total_bytes, memory.fits,
            one.bound, operators[peak].phase if 0 <= peak < len(operators) else "",
        )  # fmt: skip

    def largest() -> int:
        try:

            def held(batch: int) -> Trace:
                return trace_with_gradient_buckets(
                    apply_policy_to_trace(traces.at(batch), policy, on_gpu=spec.traits.blocks), devices
                )

            return largest_batch_on_device(held, spec).batch if found.capacity_bytes else 0
        except NoCandidateError:  # not even one sample fits, or the device has no limit
            return 0

    fixed = sum(found.memory_parts.get(kind, 0) for kind in _FIXED)
    curve = batch_curve(
        point_at, found.batch, found.capacity_bytes, fixed_bytes=fixed, largest=largest,
        others=lambda most: _powers_of_two_up_to_largest(found.batch, most),
    )  # fmt: skip
    others = {p.batch for p in curve.computed} - set(traces.traced_batches)
    traced = ", ".join(map(str, traces.traced_batches))
    note = f"Traced at batch {traced}{'; other batches follow from those' if others else ''}."
    return replace(curve, notes=(*curve.notes, note))


def _powers_of_two_up_to_largest(batch: int, largest: int) -> list[int]:
    """Return at most twelve powers of two up to the largest batch, preferring those from the step's batch upwards."""
    most = largest or 4 * batch
    powers = [n for n in (1 << k for k in range(31)) if n <= most]
    above = sum(n >= batch for n in powers)
    first = len(powers) - max(above, _BESIDE_LINE)
    return powers[max(0, first) :][:_BESIDE_LINE]
