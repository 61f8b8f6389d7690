"""Computes the stages of a response: a step's profile, comparisons, curve, memory remedies, hints and what-ifs."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from roller.errors import NoCandidateError, RollerError, did_you_mean, shown
from roller.hardware import DeviceSpec, list_specs, load_spec
from roller.insight.capture.script_tracer import trace_script
from roller.insight.forecast import Forecast
from roller.insight.step_profile.batch_lines_by_node import fit_lines_by_node
from roller.insight.step_profile.difference import ProfileDifference, difference
from roller.insight.step_profile.html_interval_columns import throughput_interval
from roller.insight.step_profile.lines import Line
from roller.insight.step_profile.profile_json import batch_curve_json_data, profile_from_json_data, profile_to_json_data
from roller.insight.step_profile.profiling import profile, profile_source_file_kind
from roller.insight.step_profile.step_profile import StepProfile
from roller.insight.trace.progress import Cancelled
from roller.insight.traced_step import TracedStep
from roller.insight.tracing import require_torch, trace_entry
from roller.server.hint_what_if_options import what_if_options_of_hint
from roller.server.memory_remedies import explain_out_of_memory
from roller.server.profile_request import ProfileRequest, StepOptions

#: Maximum number of a difference's lines to send; the rest are only counted.
_MOST_LINES = 200


def requested_stages(request: ProfileRequest, steps: dict[Any, Any]) -> Iterator[tuple[str, Callable[[], Any]]]:
    """Yield each requested stage with the function that computes its data."""
    asked = _StageComputer(request, steps)
    makers: Mapping[str, Callable[[], Any]] = {
        "profile": asked.profile_data, "difference": asked.difference_data, "devices": asked.forecasts_by_device,
        "curve": asked.curve_data, "fit": asked.out_of_memory_data, "hints": asked.hints_data,
        "whatif": asked.whatif_data,
    }  # fmt: skip
    yield from ((stage, makers[stage]) for stage in request.wanted if stage in makers)


class _StageComputer:
    """Computes the stages of one request."""

    def __init__(self, request: ProfileRequest, steps: dict[Any, Any]) -> None:
        self._request, self._options, self._kept = request, request.options, steps

    def _step(self) -> TracedStep:
        """Return the step for the request's options; the step is traced once for all requests."""
        found = self._kept.get("step")
        if found is None:
            require_torch("serve")
            request = self._request
            if profile_source_file_kind(request.entry) == "script":
                found = trace_script(request.entry, request.arguments, device=self._profiled_device_spec())
            else:
                found = trace_entry(request.entry, device=self._profiled_device_spec())
            self._kept["step"] = found
        options = self._options
        return found.at(
            batch=options.batch, device=self._profiled_device_spec(), amp=options.amp, checkpoint=options.checkpoint
        )

    def _profiled_device_spec(self) -> DeviceSpec:
        return self._load(self._options.devices[0][0])

    def _load(self, name: str) -> DeviceSpec:
        return load_spec(self._request.specs.get(name, name))

    def _profile(self) -> StepProfile:
        key = StepOptions(self._options.devices[:1], *_batch_amp_checkpoint(self._options))
        found = self._kept.get(key)
        if found is None:
            found = self._kept[key] = profile(
                self._step(), self._profiled_device_spec(), devices=self._options.devices[0][1]
            )
        return found

    def profile_data(self) -> dict[str, Any]:
        found = self._profile()
        try:
            balanced: float | None = found.balanced_batch()
        except NoCandidateError:
            balanced = None
        return {
            "profile": profile_to_json_data(found), "text": str(found), "label": found.label, "fits": found.fits,
            "balanced_batch": balanced, "split": found.split()._asdict(),
            "throughput_interval": throughput_interval(found),
            "intervals": [node.interval_s for node in found.root.walk()],
            "lines": [
                {
                    "file": x.file, "line": x.line, "wall_s": x.wall_s, "interval_s": _line_time_interval(x),
                    "held_bytes": x.total_held_bytes, "registered_bytes": x.registered_bytes,
                    "instances": [
                        {
                            "module": i.module, "wall_s": i.node.wall_s, "interval_s": i.node.interval_s,
                            "held_bytes": i.node.total_held_bytes,
                        }
                        for i in x.instances
                    ],
                }
                for x in found.lines
            ],
        }  # fmt: skip

    def difference_data(self) -> dict[str, Any] | None:
        before = self._request.before
        if before is None:
            return None
        return difference_json(difference(profile_from_json_data(before), self._profile(), self._request.moved))

    def forecasts_by_device(self) -> list[dict[str, Any]]:
        """Return the forecast of the step on each device, including the profiled one."""
        return [self._device_forecast_row(name, count) for name, count in self._options.devices]

    def _device_forecast_row(self, name: str, count: int) -> dict[str, Any]:
        options = self._options
        row: dict[str, Any] = {"device": name, "devices": count, "kind": "predicted"}
        try:
            spec = self._load(name)
            found: Forecast = self._step().forecast(
                spec, batch=options.batch, amp=options.amp, checkpoint=options.checkpoint, devices=count
            )
        except RollerError as error:
            return {**row, "error": str(error)}
        memory = found.memory
        return {
            **row, "kind": found.kind, "batch": found.batch, "iteration_s": found.iteration_s,
            "lower_s": found.lower_s, "upper_s": found.upper_s, "throughput_per_s": found.throughput,
            "throughput_interval": throughput_interval(found), "total_bytes": memory.total_bytes,
            "fits": memory.fits, "bound": found.bound, "out_of_memory": "" if memory.oom is None else str(memory.oom),
        }  # fmt: skip

    def curve_data(self) -> dict[str, Any]:
        found = self._profile()
        try:
            return self._curve_json(found)
        except Cancelled:
            raise
        except RollerError as error:  # e.g. a script without a DataLoader; the profile is valid without a curve
            return {"error": str(error)}

    def _curve_json(self, found: StepProfile) -> dict[str, Any]:
        curve = found.batch_curve()
        try:
            diminishing: int | None = curve.diminishing_from()
        except NoCandidateError:
            diminishing = None
        lines: list[list[float]] = []
        if curve.line is not None:
            count = self._options.devices[0][1]
            others = {
                batch: profile(self._step().at(batch=batch), self._profiled_device_spec(), devices=count)
                for batch in curve.line.batches if batch != found.batch
            }  # fmt: skip
            at = {**others, **({found.batch: found} if found.batch in curve.line.batches else {})}
            lines = fit_lines_by_node(found, at)
        return {
            "curve": batch_curve_json_data(curve), "diminishing_from": diminishing,
            "most_throughput": curve.most_throughput,
            "throughput_at_largest": curve.throughput_at_largest, "node_lines": lines,
        }  # fmt: skip

    def out_of_memory_data(self) -> dict[str, Any] | None:
        """Return the reason why the step does not fit, and what would make it fit; ``None`` if it fits."""
        return (
            None
            if self._profile().fits
            else explain_out_of_memory(self._step(), self._profiled_device_spec(), self._options)
        )

    def hints_data(self) -> dict[str, Any]:
        found = self._profile()
        if found.make_graph is None:
            return {"error": "hints: expected one device, got several. Choose one."}
        return {
            "hints": [{**hint.to_dict(), "options": what_if_options_of_hint(hint.change)} for hint in found.hints()]
        }

    def whatif_data(self) -> dict[str, Any] | None:
        """Return the combined effect of the chosen changes; ``None`` if none is chosen."""
        if not self._options.changes:
            return None
        from roller.insight.whatif.memory_effect import memory_effect
        from roller.insight.whatif.parse_what_if_scenarios import parse_what_if_option
        from roller.insight.whatif.predict import what_if

        found = self._profile()
        if found.make_graph is None:
            return {"error": "whatif: expected one device, got several. Choose one."}
        changes = [parse_what_if_option(text) for text in self._options.changes]
        check_what_if_devices(changes)
        graph = found.make_graph()
        answer, memory = what_if(graph, *changes), memory_effect(graph, changes, found.memory_of)
        return {
            **answer.to_dict(), "memory_delta_bytes": memory.delta_bytes, "memory_note": memory.reason,
            "total_bytes": None if memory.delta_bytes is None else found.total_bytes + memory.delta_bytes,
        }  # fmt: skip


def check_what_if_devices(changes: Sequence[Any]) -> None:
    """Raise an error unless all what-ifs name known devices: clients must not read files outside the project."""
    known = list_specs()
    for change in changes:
        for name in (getattr(change, field) for field, role in change.traced_with or () if role == "device"):
            if name not in known:
                meant = did_you_mean(name, known) or "."
                raise RollerError(f"whatif: device: expected a name, got {shown(name)}{meant}")


def _line_time_interval(line: Line) -> tuple[float, float] | None:
    """Return the interval of a line's time in seconds; ``None`` if it is unknown."""
    if not line.lower:
        return None
    lower, upper = (math.fsum(part.wall_s for part in end.values()) for end in (line.lower, line.upper))
    return lower, upper


def _batch_amp_checkpoint(options: StepOptions) -> tuple[int | None, str, bool]:
    return options.batch, options.amp, options.checkpoint


def difference_json(found: ProfileDifference) -> dict[str, Any]:
    """Return a difference as JSON-ready data: the totals, and the lines that changed."""
    rows = [x for x in found.lines if x.delta_s or x.delta_bytes or x.made_delta_s or x.made_delta_bytes]
    return {
        "before": {"iteration_s": found.before.iteration_s, "total_bytes": found.before.total_bytes},
        "delta_s": found.delta_s, "delta_bytes": found.delta_bytes, "kind": found.after.source,
        "more": max(0, len(rows) - _MOST_LINES),
        "lines": [
            {
                "name": x.name, "before_s": x.before_s, "after_s": x.after_s, "delta_s": x.delta_s,
                "before_bytes": x.before_bytes, "after_bytes": x.after_bytes, "delta_bytes": x.delta_bytes,
                "made_delta_s": x.made_delta_s, "made_delta_bytes": x.made_delta_bytes,
            }
            for x in rows[:_MOST_LINES]
        ],
    }  # fmt: skip
