"""Traces a model: copies it to the device and runs a few steps under the two modes."""

from __future__ import annotations

import gc
import warnings
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any
from weakref import WeakSet

import torch

from roller.errors import ModelError, shown
from roller.hardware import DeviceSpec
from roller.insight.trace.options import PRECISIONS, DeviceRules, TraceOptions, compute_capability_of
from roller.insight.trace.project_folder import find_project_folder
from roller.insight.trace.pytorch import (
    cpu_attention_lstm_dispatch,
    decide_calls_to_trace,
    known_values,
    model_copy,
    storage_kinds,
    training_step,
    transform_step_inputs,
    unsupported_wrappers,
)
from roller.insight.trace.pytorch.compat import is_in_place_name
from roller.insight.trace.pytorch.data_dependent_values import MetaOperators
from roller.insight.trace.pytorch.decide_calls_to_trace import is_trace_complete
from roller.insight.trace.pytorch.device_dependent_dispatch import Target
from roller.insight.trace.pytorch.device_mode import DeviceMode, patch_device_functions
from roller.insight.trace.pytorch.error_translation import translate_errors
from roller.insight.trace.pytorch.host_tensors import HostOperatorMode
from roller.insight.trace.pytorch.operator_origin import OriginTracker
from roller.insight.trace.pytorch.operator_recorder import OperatorRecorder
from roller.insight.trace.pytorch.project_stack_frames import Registrations, Stacks, hide_callers_from_stacks
from roller.insight.trace.pytorch.tf32_switches import operator_kinds_allowing_tf32
from roller.insight.trace.pytorch.trace_argument_checks import check_trace_arguments
from roller.insight.trace.pytorch.transform_step_inputs import iterate_tensors
from roller.insight.trace.retracer import Retracer, T
from roller.insight.trace.torch_release import TorchRelease
from roller.insight.trace.trace import Stack, Trace


@dataclass(frozen=True)
class Request:
    """Arguments of :func:`roller.trace`, which documents them."""

    model: Any
    inputs: Any
    optimizer: Any = None
    loss: Callable[..., Any] | None = None
    targets: tuple[Any, ...] = ()
    amp: str | None = None
    checkpoint: bool | str | Sequence[str] = False
    device: str | DeviceSpec | DeviceRules | None = None
    attention: str = "auto"
    calls: int | None = None
    keep_gradients: bool = False
    accumulate: int = 1
    scale_loss: bool = True
    channels_last: bool = False
    share_nonzero: float | None = None
    batch_axis: int = 0
    torch_release: str | None = None


def make_retracer(request: Request, wrap: Callable[[Trace, Retracer[T]], T]) -> Retracer[T]:
    """Check a request and return its retracer."""
    check_trace_arguments(request)
    first = TraceOptions(
        _batch_size(request), request.device, request.amp or "fp32", request.checkpoint, request.torch_release
    )
    return Retracer(lambda options: _trace_request(_apply_options(request, options)), first, wrap)


def _apply_options(request: Request, options: TraceOptions) -> Request:
    """Return a request with other options; tensors with the old batch size on the batch axis are resized."""
    old, new = _batch_size(request), options.batch
    parts = {}
    if new is not None and new != old:
        if old is None:
            raise ModelError("trace: batch: expected inputs with an axis of batches, got none. Pass a tensor with one.")
        parts = {
            n: transform_step_inputs.resize_batch(getattr(request, n), old, new, request.batch_axis)
            for n in ("inputs", "targets")
        }
    amp = PRECISIONS[options.amp or "fp32"]
    return replace(request, device=options.device, amp=amp, checkpoint=options.checkpoint or False,
                   torch_release=options.torch_release, **parts)  # fmt: skip


@hide_callers_from_stacks
def _trace_request(request: Request) -> Trace:
    release = TorchRelease.parse(request.torch_release)
    target = Target(compute_capability_of(request.device), attention=request.attention, release=release)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        session = TraceSession(target, request.share_nonzero)
        with translate_errors("the model could not be built", session.origins), session.building_model():
            original = model_copy.build_model_without_compile(request.model, session.values.add_note)
            session.registered = session.registrations.lines(original)
        with translate_errors("the model could not be copied", session.origins):
            copied = model_copy.copy_to_device(original)
            if request.channels_last:
                copied = copied.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        return _trace_steps(request, session, original, copied)


def _trace_steps(request: Request, session: TraceSession, original: torch.nn.Module, copied: torch.nn.Module) -> Trace:
    learns = request.optimizer is not None or request.loss is not None
    amp = training_step.amp_dtype(request.amp)
    copied.train(learns)
    inputs, targets = (
        transform_step_inputs.move_to_device(request.inputs),
        transform_step_inputs.move_to_device(request.targets),
    )
    if request.channels_last:
        inputs = transform_step_inputs.to_channels_last(inputs)
    again = model_copy.checkpoint_modules(copied, request.checkpoint, session.origins) if learns else ()
    session.name_storages(copied, inputs, targets)
    args, kwargs = transform_step_inputs.split_arguments(inputs)
    call = lambda: copied(*args, **kwargs)  # noqa: E731
    with session.recording_operators():
        with translate_errors("the optimizer could not be made", session.origins):
            twins = dict(zip(map(id, original.parameters()), copied.parameters(), strict=True))
            optimizer = training_step.make_optimizer_for_copied_model(request.optimizer, copied, twins)
        if learns:
            step = training_step.Step(
                request.loss, targets, amp, request.keep_gradients or not session.target.release.drops_gradients,
                request.accumulate, request.scale_loss,
            )  # fmt: skip
            body = training_step.make_training_step(copied, call, optimizer, step)
        else:
            body = training_step.make_inference_step(call, amp)
        session.run_steps(body, request.calls)
    return session.make_trace(
        {
            "mode": "training" if learns else "inference", "batch": _batch_size(request), "amp": request.amp,
            "checkpoint": list(again), "device": getattr(request.device, "name", request.device),
            "attention": request.attention, "accumulate": request.accumulate, "keep_gradients": request.keep_gradients,
            "channels_last": request.channels_last,
            "optimizer": None if optimizer is None else type(optimizer).__name__,
        }
    )  # fmt: skip


class TraceSession:
    """State of one trace while the trace is made.

    Parameters
    ----------
    target
        Properties that decide which kernels the device runs.
    share_nonzero
        Share of a mask's elements that is taken as true.
    folder
        Folder of the user's code; paths in stacks are relative to the project that contains it.
    """

    def __init__(self, target: Target, share_nonzero: float | None = None, folder: Path | None = None) -> None:
        self.target = target
        stacks = Stacks(find_project_folder(folder or Path.cwd()))
        self.registrations = Registrations(stacks)
        self.registered: Mapping[str, Stack] = {}
        self.names: dict[int, str] = {}
        self.parameters: dict[str, torch.nn.Parameter] = {}
        self.origins = OriginTracker(self.names, stacks)
        self.origins.before_update = self._name_optimizer_parameters
        hosted = target.type != "cpu"
        rules = None if hosted else cpu_attention_lstm_dispatch.RULES
        self.values = MetaOperators(share_nonzero, self._current_location, rules, hosted=hosted)
        self.recorder = OperatorRecorder(self.origins, self.values, name=target.type)
        self.device = DeviceMode(target, self.origins, self.values)
        self.calls: list[decide_calls_to_trace.Call] = []
        self.compiled: dict[str, str] = {}
        self._optimizers: dict[int, int] = {}
        self._hooked: dict[int, tuple[str, torch.Tensor]] = {}
        #: Handles of the hooks on parameters.
        self.hooks: list[Any] = []
        #: Kinds of operators that the steps may compute in TF32; ``None`` before the first step.
        self.tf32: list[str] | None = None

    def move_to_device(self, model: torch.nn.Module, lasting: WeakSet[torch.nn.Module]) -> torch.nn.Module:
        """Move a model to the device, as a trainer does; a model in ``lasting``, which outlives the trace, is copied.

        The model is added to ``lasting``.
        """
        self.registered = self.registrations.lines(model)
        if not self.values.hosted or model in lasting:
            return model_copy.copy_to_device(model)
        lasting.add(model)
        with self.recorder.pause_recording(), model_copy.set_aside_lazy_parameters(model):
            return model.to(torch.device("cuda", 0))

    def name_storages(self, model: torch.nn.Module, inputs: Any = (), targets: Any = (), prefix: str = "") -> None:
        """Name the parameters, buffers and inputs that exist before the first step; ``prefix`` is the model's path."""
        self.names.update({id(module): path for path, module in model.named_modules(prefix=prefix)})
        self.compiled.update(unsupported_wrappers.compile_modes_by_module_path(model, prefix))
        self.parameters.update(model.named_parameters(prefix))
        for name, held in self.parameters.items():
            if not torch.nn.parameter.is_lazy(held):
                self._name_parameter(name, held)
                known_values.discard_known_value(held)  # it is trained, so no branch may depend on its initial values
        for name, buffer in model.named_buffers(prefix):
            self.recorder.name_storage(buffer, "buffer", name)
        for tensor in iterate_tensors((inputs, targets)):
            self.recorder.name_storage(tensor, "input")

    @contextmanager
    def building_model(self) -> Iterator[None]:
        """Return a context in which a model is built on the host without recording."""
        with ExitStack() as stack:
            stack.enter_context(unsupported_wrappers.disable_compile(self.values.add_note))
            if self.values.hosted:
                stack.enter_context(patch_device_functions(self.device))
            stack.enter_context(HostOperatorMode())
            stack.enter_context(self.registrations.watching())
            if self.values.hosted:
                stack.enter_context(self.device)
            yield

    @contextmanager
    def recording_operators(self) -> Iterator[None]:
        """Return a context in which operators are recorded."""
        # Older objects are frozen, so that collections between steps only traverse the steps' objects.
        collected, ours = gc.isenabled(), not gc.get_freeze_count()
        gc.disable()
        if ours:
            gc.freeze()
        try:
            with (
                self.origins.install_tracking_hooks(), unsupported_wrappers.disable_compile(self.values.add_note),
                self._device_functions(), self.recorder, self.device,
            ):  # fmt: skip
                yield
        finally:
            if ours:
                gc.unfreeze()
            if collected:
                gc.enable()

    def _device_functions(self) -> AbstractContextManager[None]:
        return patch_device_functions(self.device)

    @hide_callers_from_stacks
    def run_steps(self, body: Callable[[], Any], count: int | None = None) -> None:
        """Run a step ``count`` times; by default, until all optimizers have stepped and the calls repeat."""
        if count is not None and (not isinstance(count, int) or isinstance(count, bool) or count < 1):
            raise ModelError(f"trace: calls: expected a whole number of at least 1, got {shown(count)}. Raise it.")
        while len(self.calls) < count if count else not is_trace_complete(self.calls, self._indices_of_optimizers()):
            first = len(self.recorder.operators)
            self.recorder.iteration = len(self.calls)
            self.origins.phase = "other"
            self.origins.stepped.clear()
            with translate_errors("a step failed", self.origins):
                body()
            self._name_gradients_and_states()
            gc.collect()
            run = self.recorder.operators[first:]
            stepped = frozenset(map(self._index_of_optimizer, self.origins.stepped))
            self.calls.append(decide_calls_to_trace.Call(first, decide_calls_to_trace.forward_hash(run), stepped))
        self.tf32 = operator_kinds_allowing_tf32()

    def _index_of_optimizer(self, key: int) -> int:
        return self._optimizers.setdefault(key, len(self._optimizers))

    def _indices_of_optimizers(self) -> frozenset[int]:
        """Return the indices of all optimizers."""
        return frozenset(self._index_of_optimizer(id(optimizer)) for optimizer in self.origins.made)

    def _name_parameter(self, name: str, parameter: torch.Tensor) -> None:
        self.recorder.name_storage(parameter, "parameter", name)
        if parameter.requires_grad and id(parameter) not in self._hooked:
            # A step may drop its gradients before it ends, so each is named as soon as it is accumulated.
            handle = parameter.register_post_accumulate_grad_hook(partial(self._name_gradient, name))
            self.hooks.append(handle)
            self._hooked[id(parameter)] = name, parameter

    def _name_optimizer_parameters(self, optimizer: torch.optim.Optimizer) -> None:
        """Name the parameters that an optimizer updates and their gradients, which a step may have set itself."""
        names = {id(p): name for name, p in self.parameters.items()}
        for parameter in (p for group in optimizer.param_groups for p in group["params"]):
            if self.values.hosted and parameter.device.type == "cpu":
                self.values.add_note(
                    f"optimizer: {type(optimizer).__name__} updates parameters on the host. What the host computes for "
                    f"it is not in the time; copies to the device and back are."
                )
            if id(parameter) not in self._hooked:
                name = names.get(id(parameter), f"parameter {len(self._hooked)} of {type(optimizer).__name__}")
                self._name_parameter(name, parameter)
            else:
                name = self._hooked[id(parameter)][0]
            self._name_gradient(name, parameter)

    def _name_gradient(self, name: str, parameter: torch.Tensor) -> None:
        if parameter.grad is not None:
            self.recorder.name_storage(parameter.grad, "gradient", name)

    def _name_gradients_and_states(self) -> None:
        for name, parameter in self.parameters.items():
            self._name_gradient(name, parameter)
        names = {id(parameter): name for name, parameter in self.parameters.items()}
        for optimizer in self.origins.optimizers.values():
            for key, state in optimizer.state.items():
                for tensor in iterate_tensors(state):
                    self.recorder.name_storage(tensor, "optimizer_state", names.get(id(key), ""))

    @property
    def cycle(self) -> decide_calls_to_trace.Cycle:
        """The repeating calls at the end of the trace."""
        return decide_calls_to_trace.repeating_or_last_half_cycle(self.calls, self._indices_of_optimizers())

    def make_trace(self, options: Mapping[str, Any]) -> Trace:
        """Return the trace of the recorded operators and events."""
        recorder = self.recorder
        recorder.stop_recording_frees()
        cycle, ends = self.cycle, decide_calls_to_trace.call_counts_at_step_ends(self.calls)
        names = {self._index_of_optimizer(id(optimizer)): type(optimizer).__name__ for optimizer in self.origins.made}
        for sentence in decide_calls_to_trace.cycle_notes(self.calls, cycle, names, self._indices_of_optimizers()):
            self.values.add_note(sentence)
        if options["mode"] == "entry" and not names and self._has_gradients_without_update():
            self.values.add_note(decide_calls_to_trace.no_update_note(len(self.calls)))
        starts = [0, *ends[:-1]]
        for operator in recorder.operators[self.calls[0].first :]:
            step = bisect_right(starts, operator.iteration) - 1
            object.__setattr__(operator, "iteration", step)
        if release := str(self.target.release):
            self.values.add_note(
                f"operators and memory are those of PyTorch {release}; convolutions are priced as cuDNN "
                f"{9 if self.target.release.has_cudnn_9 else 8} runs them, other kernels as today's libraries do."
            )
        libraries = _libraries_with_memory(self.target, recorder)
        return Trace(
            tuple(recorder.operators),
            tuple(recorder.events),
            storage_kinds.classify_storages(recorder.operators, recorder.events, recorder.storages),
            (*(self.calls[n].first for n in starts), len(recorder.operators)),
            {
                **options,
                "accumulate": options.get("accumulate", 1) * cycle.calls_per_step,
                "unlike_steps": cycle.steps,
                "calls": len(self.calls),
                "capability": list(self.target.sm),
                "capabilities_alike": [list(one) for one in sorted(self.target.alike)],
                "libraries": libraries,
                "tf32": operator_kinds_allowing_tf32() if self.tf32 is None else self.tf32,
                "torch_release": str(self.target.release),
                **({"compiled": _compiled_modules_option(self.compiled)} if self.compiled else {}),
            },
            tuple(self.values.warnings),
            self.registered,
        )

    def _has_gradients_without_update(self) -> bool:
        """Return whether parameters received gradients but no operator wrote to a parameter."""
        storages, run = self.recorder.storages, self.recorder.operators[self.calls[0].first :]
        targets = {t.storage for o in run if is_in_place_name(o.name) for t in o.outputs}
        written = {held.kind for number, held in storages.items() if number in targets}
        return "parameter" not in written and any(held.kind == "gradient" for held in storages.values())

    def _current_location(self) -> str:
        place = self.origins.current_origin()
        return f"{place.stack[-1].file}:{place.stack[-1].line}" if place.stack else place.module or "trace"


def _libraries_with_memory(target: Target, recorder: OperatorRecorder) -> list[str]:
    """Return the libraries that hold memory on the device."""
    if target.type == "cpu":
        return []
    convolves = any("convolution" in operator.name or "cudnn" in operator.name for operator in recorder.operators)
    return ["cublas", "cudnn"] if target.cudnn and convolves else ["cublas"]


def _batch_size(request: Request) -> int | None:
    """Return the batch size, taken from the first tensor that has the batch axis; ``None`` if no tensor has it."""
    sizes = (t.shape[request.batch_axis] for t in iterate_tensors(request.inputs) if t.dim() > request.batch_axis)
    return next(map(int, sizes), None)


def _compiled_modules_option(compiled: Mapping[str, str]) -> dict[str, Any]:
    """Return the compiled modules as a trace option: paths, the most common mode and, if modes differ, every mode."""
    modes = list(compiled.values())
    own = {"modes": modes} if len(set(modes)) > 1 else {}
    return {"modules": list(compiled), "mode": max(modes, key=modes.count), **own}
