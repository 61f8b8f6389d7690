"""Measures an entry file's step on this machine's processor: its operators one by one, and the whole unmodified step.

The step is recorded as in a trace, but on real tensors. It then runs without hooks in a loop of plain steps, which
gives the step time; between the blocks of the loop, one step times the operators.
"""

from __future__ import annotations

import statistics
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple
from unittest.mock import patch

import torch

from roller.errors import ModelError, RollerError, shown
from roller.hardware.detect_cpu_spec import read_cpuinfo
from roller.insight.trace.options import HOST, PRECISIONS, TraceOptions
from roller.insight.trace.process_peak_memory import reset_resident_peak, resident_peak_bytes
from roller.insight.trace.pytorch import decide_calls_to_trace, entry_file, model_copy, unsupported_wrappers
from roller.insight.trace.pytorch.device_dependent_dispatch import Target
from roller.insight.trace.pytorch.operator_origin import OriginTracker
from roller.insight.trace.pytorch.project_stack_frames import hide_callers_from_stacks
from roller.insight.trace.pytorch.timed_operators import Call, OperatorTimer, OriginMode, RealOperators, TimedRecorder
from roller.insight.trace.pytorch.trace_model import TraceSession
from roller.insight.trace.pytorch.transform_step_inputs import iterate_tensors, step_arguments
from roller.insight.trace.time_steps_until_stable import StepTiming, median_interval, time_steps
from roller.insight.trace.trace import Trace

#: See :func:`~roller.insight.trace.time_steps_until_stable.time_steps`.
Timer = Callable[..., StepTiming]
_PREDICT = "a prediction needs no such device: trace_entry(...).forecast('a100')"


class TimedOperator(NamedTuple):
    """Median time of an operator, in seconds, and the median's 95 % confidence interval.

    Both ends equal the median if the operator was timed once.
    """

    median_s: float
    lower_s: float
    upper_s: float


@dataclass(frozen=True)
class Measurement:
    """Measurements from one process; see :class:`roller.insight.measured_step.MeasuredStep`."""

    trace: Trace
    operators: tuple[TimedOperator, ...]
    steps: StepTiming
    notes: tuple[str, ...]
    process_peak_bytes: int
    machine: str

    @property
    def operator_s(self) -> tuple[float, ...]:
        """Median time of each operator, in seconds."""
        return tuple(operator.median_s for operator in self.operators)


class MeasuredSession(TraceSession):
    """State of a measurement: a trace on real tensors."""

    def __init__(self, folder: Path) -> None:
        super().__init__(Target(HOST), folder=folder)
        values: Any = RealOperators()
        self.values = values
        self.recorder = TimedRecorder(self.origins, values)
        self.device: Any = OriginMode(self.origins)

    def _device_functions(self) -> AbstractContextManager[None]:
        return nullcontext()

    @property
    def last_step_calls(self) -> int:
        """Number of calls in the last training step."""
        ends = [0, *decide_calls_to_trace.call_counts_at_step_ends(self.calls)]
        return ends[-1] - ends[-2]


@hide_callers_from_stacks
def measure_entry(path: str | Path, options: TraceOptions, budget_s: float) -> Measurement:
    """Measure an entry file's step in this process; this changes its globals, random state and memory."""

    def load_module(cuda: _CudaUseError) -> ModuleType:
        return entry_file.load_entry_file(Path(path), lambda what, origins: _translate_step_errors(what, origins, cuda))

    return _load_and_measure_module(load_module, str(path), options, budget_s, time_steps)


@hide_callers_from_stacks
def measure_module(
    module: ModuleType, name: str, options: TraceOptions, budget_s: float, timer: Timer = time_steps
) -> Measurement:
    """Measure the step of a module that has all providers and ``__file__``; see :func:`measure_entry`."""
    return _load_and_measure_module(lambda cuda: module, name, options, budget_s, timer)


def _load_and_measure_module(
    load_module: Callable[[_CudaUseError], ModuleType], name: str, options: TraceOptions, budget_s: float, timer: Timer
) -> Measurement:
    amp = PRECISIONS[options.amp or "fp32"]
    if amp == "fp16":
        raise ModelError(
            "measure: amp: expected fp32 or bf16 on a processor, got fp16. Choose one of them, or predict a GPU."
        )
    with warnings.catch_warnings(record=True) as raised, _refuse_cuda() as cuda:
        warnings.simplefilter("ignore")
        warnings.simplefilter("default", UserWarning)  # such as a warning that GPU autocast does nothing here
        module = load_module(cuda)
        session = MeasuredSession(Path(str(module.__file__)).parent)
        for sentence in getattr(module, "_roller_said", ()):
            session.values.add_note(sentence)
        with entry_file.apply_entry_defaults(module):
            found = _measure_providers(
                module, session, replace(options, amp=amp), budget_s, timer,
                lambda what: _translate_step_errors(what, session.origins, cuda),
            )  # fmt: skip
    said = dict.fromkeys(str(one.message).strip().split("\n")[0] for one in raised)
    notes = (*found.notes, *(f"PyTorch or the file warns: {text}" for text in said))
    return replace(found, trace=replace(found.trace, options={**found.trace.options, "entry": name}), notes=notes)


def _measure_providers(
    module: ModuleType, session: MeasuredSession, options: TraceOptions, budget_s: float, timer: Timer,
    errors: Callable[[str], AbstractContextManager[None]],
) -> Measurement:  # fmt: skip
    amp = options.amp
    batch = entry_file.default_batch_size(module) if options.batch is None else options.batch
    with session.recording_operators(), errors("model_provider failed"):
        with session.registrations.watching():
            model = model_copy.build_model_without_compile(module.model_provider, session.values.add_note)
        session.registered = session.registrations.lines(model)
        again = model_copy.checkpoint_modules(model, options.checkpoint or False, session.origins)
        session.name_storages(model)
    with session.recording_operators():
        with errors("input_provider failed"):
            inputs = module.input_provider(batch_size=batch)
            with session.recorder.pause_recording():
                entry_file.check_batch_size(module, batch, inputs)
            session.name_storages(model, inputs)
        with errors("iteration_provider failed"), session.registrations.watching():
            step = module.iteration_provider(model)
            session.name_storages(model)
        session.registered = {**session.registered, **session.registrations.lines(model)}
        _check_tensors_are_on_cpu(model, inputs)
        args, kwargs = step_arguments(step, inputs)
        around = nullcontext if amp is None else lambda: torch.autocast("cpu", dtype=torch.bfloat16)

        def run_step() -> None:
            with errors("a step failed"), around():
                step(*args, **kwargs)

        session.run_steps(run_step)
    trace = session.make_trace(
        {
            "mode": "entry", "batch": batch, "amp": amp, "checkpoint": list(again),
            "device": "cpu", "measured": True, "threads": torch.get_num_threads(), "processor": _processor_name(),
        }
    )  # fmt: skip
    for handle in session.hooks:
        handle.remove()
    model_copy.undo_checkpointing(model, again)
    untracked: Any = _NoOrigins()
    model_copy.checkpoint_modules(model, again, untracked)  # without tracking the module of each forward pass
    with errors("a step failed"), unsupported_wrappers.disable_compile(session.values.add_note):
        return _time_step_and_operators(trace, session, lambda: _call_step(step, args, kwargs, around), budget_s, timer)


@hide_callers_from_stacks
def _call_step(step: Any, args: Any, kwargs: Any, around: Callable[[], AbstractContextManager[Any]]) -> None:
    with around():
        step(*args, **kwargs)


def _time_step_and_operators(
    trace: Trace, session: MeasuredSession, run: Callable[[], None], budget_s: float, timer: Timer
) -> Measurement:
    cycle, last = session.cycle, session.last_step_calls
    recorded: list[tuple[list[Call], list[float]]] = []

    def run_cycle() -> None:
        for _ in range(cycle.calls):
            run()

    def time_operators() -> None:
        for _ in range(max(0, cycle.calls - last)):
            run()
        times = OperatorTimer(RealOperators())
        with times:
            for _ in range(last):
                run()
        recorded.append((times.calls, times.seconds))

    reset_resident_peak()
    steps = timer(run_cycle, steps_per_call=cycle.steps, budget_s=budget_s, between=time_operators)
    own: Any = session.recorder
    operators, notes = _operator_times_and_notes(trace, own.seconds[-len(trace.steady()) :], recorded)
    machine = f"{_processor_name()}, {torch.get_num_threads()} threads, PyTorch {torch.__version__}"
    said = (steps.note,) if steps.note else ()
    return Measurement(trace, operators, steps, (*trace.warnings, *notes, *said), resident_peak_bytes(), machine)


def _operator_times_and_notes(
    trace: Trace, own_s: Sequence[float], recorded: Sequence[tuple[list[Call], list[float]]]
) -> tuple[tuple[TimedOperator, ...], tuple[str, ...]]:
    """Return the time of each operator in the last step (over the timed steps that also run it), and notes on it."""
    wanted: list[Call] = [(o.name, o.input_shapes) for o in trace.steady()]
    whole = [seconds for calls, seconds in recorded if calls == wanted]
    if len(whole) == len(recorded):
        return tuple(map(_summarize_operator_times, zip(*whole, strict=True))), ()
    found, missing = list[TimedOperator](), 0
    for n, (call, own) in enumerate(zip(wanted, own_s, strict=True)):
        same = [seconds[n] for calls, seconds in recorded if n < len(calls) and calls[n] == call]
        missing += not same
        found.append(_summarize_operator_times(same or [own]))
    return tuple(found), (
        f"operators: {len(recorded) - len(whole)} of {len(recorded)} timed steps run other operators or shapes than "
        f"the recorded step. {missing} of {len(wanted)} operators are timed once, in the recorded step.",
    )


def _summarize_operator_times(seconds: Sequence[float]) -> TimedOperator:
    return TimedOperator(statistics.median(seconds), *median_interval(seconds))


class _NoOrigins:
    """Stands in for an origin tracker when nothing is tracked."""

    def enter_module(self, path: str) -> AbstractContextManager[None]:
        return nullcontext()


def _check_tensors_are_on_cpu(model: torch.nn.Module, inputs: Any) -> None:
    """Raise an error if a tensor is not on the processor, since its operators would run outside the timing."""
    found = {t.device.type for t in (*model.parameters(), *model.buffers(), *iterate_tensors(inputs))} - {"cpu"}
    if found:
        raise ModelError(
            f"measure: expected tensors on the processor, got some on {shown(sorted(found)[0])}, which is not measured "
            f"yet. Name no device in the file, or predict: {_PREDICT}."
        )


class _CudaUseError:
    """The error that the step's use of CUDA raised, if any."""

    error: BaseException | None = None


@contextmanager
def _refuse_cuda() -> Iterator[_CudaUseError]:
    """Make the first use of CUDA fail: with PyTorch's own error if CUDA is unavailable, else with an explanation."""
    initialize, cuda = torch.cuda._lazy_init, _CudaUseError()

    def refuse() -> None:
        if torch.cuda.is_available():
            cuda.error = ModelError(
                "measure: expected a step on the processor, got one on a GPU: measured on a GPU is not supported yet. "
                f"Hide the GPUs (CUDA_VISIBLE_DEVICES=) for a device-neutral file, or predict: {_PREDICT}."
            )
            raise cuda.error
        try:
            initialize()
        except BaseException as error:
            cuda.error = error  # the file may catch it and go on without
            raise

    with patch.object(torch.cuda, "_lazy_init", refuse):
        yield cuda


@contextmanager
def _translate_step_errors(what: str, origins: OriginTracker, cuda: _CudaUseError) -> Iterator[None]:
    """Translate any exception in the user's code to a ``ModelError`` that names the user's line."""
    try:
        yield
        if origins.stopped is not None:
            raise origins.stopped
    except RollerError:
        raise
    except (Exception, SystemExit) as error:  # noqa: BLE001 - the user's code, or PyTorch's in it
        frames = traceback.extract_tb(error.__traceback__)
        own = next((f for f in reversed(frames) if not origins.stacks.is_foreign(f.filename)), None)
        line = "" if own is None else f" at {own.filename}:{own.lineno}"
        if error is cuda.error:
            raise ModelError(
                f"measure: expected a step on a device that is here, got a call of CUDA{line}, which this machine does "
                f"not have. Choose the device by torch.cuda.is_available() in the file, or predict: {_PREDICT}."
            ) from None
        wrapped = unsupported_wrappers.explain_wrapper_error(error, line)
        if wrapped is not None:
            raise wrapped from None
        text = str(error).strip().splitlines()
        raise ModelError(
            f"measure: expected a step that runs, got {type(error).__name__}{line}: "
            f"{text[0] if text else 'no message'} ({what}). Run the file by itself."
        ) from None


def _processor_name() -> str:
    info = read_cpuinfo(Path("/"))
    return info.model or info.part or "processor"


def measurement_json_without_trace(found: Measurement) -> Mapping[str, Any]:
    """Return all of a measurement except its trace, as JSON-ready data."""
    return {
        "operators": found.operators, "median_s": found.steps.median_s, "lower_s": found.steps.lower_s,
        "upper_s": found.steps.upper_s, "is_stable": found.steps.is_stable, "samples_s": found.steps.samples_s,
        "notes": found.notes, "process_peak_bytes": found.process_peak_bytes, "machine": found.machine,
    }  # fmt: skip
