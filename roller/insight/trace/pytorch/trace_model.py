"""Makes a trace: a copy of the model on the device, two modes, a few steps."""

from __future__ import annotations

import gc
import traceback
import warnings
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any
from weakref import WeakSet

import torch

from roller.errors import ModelError, RollerError, shown
from roller.hardware import DeviceSpec
from roller.insight.trace.options import PRECISIONS, DeviceRules, TraceOptions, capability_of
from roller.insight.trace.pytorch import (
    cpu_dispatch,
    known_values,
    model_copy,
    storage_kinds,
    training_step,
    unsupported_wrappers,
)
from roller.insight.trace.pytorch.call_count import (
    Call,
    boundaries,
    forward_of,
    is_enough,
    never_updated,
    said,
    traced_cycle,
)
from roller.insight.trace.pytorch.compat import writes_by_name
from roller.insight.trace.pytorch.data_dependent import Values
from roller.insight.trace.pytorch.device_mode import DeviceMode, answers
from roller.insight.trace.pytorch.dispatch_rules import Target
from roller.insight.trace.pytorch.host_tensors import Building
from roller.insight.trace.pytorch.operator_origin import OriginTracker
from roller.insight.trace.pytorch.operator_recorder import OperatorRecorder
from roller.insight.trace.pytorch.request_checks import check
from roller.insight.trace.pytorch.stacks import Registrations, Stacks, driver, project_of
from roller.insight.trace.pytorch.step_inputs import arguments, channels_last, leaves, moved, resized
from roller.insight.trace.retracer import Retracer, T
from roller.insight.trace.trace import Stack, Trace


@dataclass(frozen=True)
class Request:
    """Arguments of :func:`roller.trace`, as documented there."""

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


def retracer(request: Request, wrap: Callable[[Trace, Retracer[T]], T]) -> Retracer[T]:
    """Return what traces a request, under other options too."""
    check(request)
    first = TraceOptions(_batch(request), request.device, request.amp or "fp32", request.checkpoint)
    return Retracer(lambda options: _once(_changed(request, options)), first, wrap)


def _changed(request: Request, options: TraceOptions) -> Request:
    """Return a request under options: every tensor with the old batch on the axis of batches gets the new one."""
    old, new = _batch(request), options.batch
    parts = {}
    if new is not None and new != old:
        if old is None:
            raise ModelError("trace: batch: expected inputs with an axis of batches, got none. Pass a tensor with one.")
        parts = {n: resized(getattr(request, n), old, new, request.batch_axis) for n in ("inputs", "targets")}
    amp = PRECISIONS[options.amp or "fp32"]
    return replace(request, device=options.device, amp=amp, checkpoint=options.checkpoint or False, **parts)


@driver
def _once(request: Request) -> Trace:
    target = Target(capability_of(request.device), attention=request.attention)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        session = Session(target, request.share_nonzero)
        with errors("the model could not be built", session.origins), session.building():
            original = model_copy.built(request.model, session.values.note)
            session.registered = session.registrations.lines(original)
        with errors("the model could not be copied", session.origins):
            copied = model_copy.on_device(original)
            if request.channels_last:
                copied = copied.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        return _traced(request, session, original, copied)


def _traced(request: Request, session: Session, original: torch.nn.Module, copied: torch.nn.Module) -> Trace:
    learns = request.optimizer is not None or request.loss is not None
    amp = training_step.amp_dtype(request.amp)
    copied.train(learns)
    inputs, targets = moved(request.inputs), moved(request.targets)
    if request.channels_last:
        inputs = channels_last(inputs)
    again = model_copy.checkpointed(copied, request.checkpoint, session.origins) if learns else ()
    session.adopt(copied, inputs, targets)
    args, kwargs = arguments(inputs)
    call = lambda: copied(*args, **kwargs)  # noqa: E731
    with session.recording():
        with errors("the optimizer could not be made", session.origins):
            twins = dict(zip(map(id, original.parameters()), copied.parameters(), strict=True))
            optimizer = training_step.optimizer_of(request.optimizer, copied, twins)
        if learns:
            step = training_step.Step(
                request.loss, targets, amp, request.keep_gradients, request.accumulate, request.scale_loss
            )
            body = training_step.training(copied, call, optimizer, step)
        else:
            body = training_step.inference(call, amp)
        session.repeat(body, request.calls)
    return session.trace(
        {
            "mode": "training" if learns else "inference", "batch": _batch(request), "amp": request.amp,
            "checkpoint": list(again), "device": getattr(request.device, "name", request.device),
            "attention": request.attention, "accumulate": request.accumulate, "keep_gradients": request.keep_gradients,
            "channels_last": request.channels_last,
            "optimizer": None if optimizer is None else type(optimizer).__name__,
        }
    )  # fmt: skip


class Session:
    """One trace in the making.

    Parameters
    ----------
    target
        What decides which kernels the device runs.
    share_nonzero
        Share of a mask that is taken as true.
    folder
        Of the user's code: paths of stacks are relative to the project that contains it.
    """

    def __init__(self, target: Target, share_nonzero: float | None = None, folder: Path | None = None) -> None:
        self.target = target
        stacks = Stacks(project_of(folder or Path.cwd()))
        self.registrations = Registrations(stacks)
        self.registered: Mapping[str, Stack] = {}
        self.names: dict[int, str] = {}
        self.parameters: dict[str, torch.nn.Parameter] = {}
        self.origins = OriginTracker(self.names, stacks)
        self.origins.before_update = self._adopt_learning
        hosted = target.type != "cpu"
        self.values = Values(share_nonzero, self._where, None if hosted else cpu_dispatch.RULES, hosted=hosted)
        self.recorder = OperatorRecorder(self.origins, self.values, name=target.type)
        self.device = DeviceMode(target, self.origins, self.values)
        self.calls: list[Call] = []
        self._optimizers: dict[int, int] = {}
        self._hooked: dict[int, tuple[str, torch.Tensor]] = {}

    def taken(self, model: torch.nn.Module, lasting: WeakSet[torch.nn.Module]) -> torch.nn.Module:
        """Move a model to the device, as a trainer does; one that outlives the trace is copied.

        Parameters
        ----------
        model
            On the host, on the device, or in parts on both.
        lasting
            Models that another trace will find; this one is one of them from now on.
        """
        self.registered = self.registrations.lines(model)
        if not self.values.hosted or model in lasting:
            return model_copy.on_device(model)
        lasting.add(model)
        with self.recorder.quiet(), model_copy.lazy_apart(model):
            return model.to(torch.device("cuda", 0))

    def adopt(self, model: torch.nn.Module, inputs: Any = (), targets: Any = ()) -> None:
        """Give names to all that exists before the first step."""
        self.names.update({id(module): path for path, module in model.named_modules()})
        self.parameters.update(model.named_parameters())
        for name, held in self.parameters.items():
            if not torch.nn.parameter.is_lazy(held):
                self._adopt_parameter(name, held)
                known_values.unknow(held)  # it is trained, so no branch can depend on what it starts as
        for name, buffer in model.named_buffers():
            self.recorder.name(buffer, "buffer", name)
        for tensor in leaves((inputs, targets)):
            self.recorder.name(tensor, "input")

    @contextmanager
    def building(self) -> Iterator[None]:
        """Run what makes a model on the host, and write nothing down."""
        with ExitStack() as stack:
            stack.enter_context(unsupported_wrappers.eager(self.values.note))
            if self.values.hosted:
                stack.enter_context(answers(self.device))
            stack.enter_context(Building())
            stack.enter_context(self.registrations.watching())
            if self.values.hosted:
                stack.enter_context(self.device)
            yield

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Write down all that runs."""
        # What lived before is set aside, so that the collections between steps look at what the steps made alone.
        collected, ours = gc.isenabled(), not gc.get_freeze_count()
        gc.disable()
        if ours:
            gc.freeze()
        try:
            with (
                self.origins.watching(), unsupported_wrappers.eager(self.values.note), answers(self.device),
                self.recorder, self.device,
            ):  # fmt: skip
                yield
        finally:
            if ours:
                gc.unfreeze()
            if collected:
                gc.enable()

    @driver
    def repeat(self, body: Callable[[], Any], count: int | None = None) -> None:
        """Run a step ``count`` times; by default until all optimizers have stepped and the calls repeat."""
        if count is not None and (not isinstance(count, int) or isinstance(count, bool) or count < 1):
            raise ModelError(f"trace: calls: expected a whole number of at least 1, got {shown(count)}. Raise it.")
        while len(self.calls) < count if count else not is_enough(self.calls, self._numbers()):
            first = len(self.recorder.operators)
            self.recorder.iteration = len(self.calls)
            self.origins.phase = "other"
            self.origins.stepped.clear()
            with errors("a step failed", self.origins):
                body()
            self._gradients()
            gc.collect()
            run = self.recorder.operators[first:]
            self.calls.append(Call(first, forward_of(run), frozenset(map(self._number, self.origins.stepped))))

    def _number(self, key: int) -> int:
        return self._optimizers.setdefault(key, len(self._optimizers))

    def _numbers(self) -> frozenset[int]:
        """Return the numbers of all optimizers there are."""
        return frozenset(self._number(id(optimizer)) for optimizer in self.origins.made)

    def _adopt_parameter(self, name: str, parameter: torch.Tensor) -> None:
        self.recorder.name(parameter, "parameter", name)
        if parameter.requires_grad and id(parameter) not in self._hooked:
            # A step may drop its gradients before it ends, so each is named as soon as it is there.
            parameter.register_post_accumulate_grad_hook(partial(self._accumulated, name))
            self._hooked[id(parameter)] = name, parameter

    def _adopt_learning(self, optimizer: torch.optim.Optimizer) -> None:
        """Name what an optimizer updates, in the model or not, and its gradients, which a step may have set itself."""
        names = {id(p): name for name, p in self.parameters.items()}
        for parameter in (p for group in optimizer.param_groups for p in group["params"]):
            if self.values.hosted and parameter.device.type == "cpu":
                self.values.note(
                    f"optimizer: {type(optimizer).__name__} updates parameters on the host. What the host computes for "
                    f"it is not in the time; copies to the device and back are."
                )
            if id(parameter) not in self._hooked:
                name = names.get(id(parameter), f"parameter {len(self._hooked)} of {type(optimizer).__name__}")
                self._adopt_parameter(name, parameter)
            else:
                name = self._hooked[id(parameter)][0]
            self._accumulated(name, parameter)

    def _accumulated(self, name: str, parameter: torch.Tensor) -> None:
        if parameter.grad is not None:
            self.recorder.name(parameter.grad, "gradient", name)

    def _gradients(self) -> None:
        for name, parameter in self.parameters.items():
            if parameter.grad is not None:
                self.recorder.name(parameter.grad, "gradient", name)
        names = {id(parameter): name for name, parameter in self.parameters.items()}
        for optimizer in self.origins.optimizers.values():
            for key, state in optimizer.state.items():
                for tensor in leaves(state):
                    self.recorder.name(tensor, "optimizer_state", names.get(id(key), ""))

    def trace(self, options: Mapping[str, Any]) -> Trace:
        """Return what was written down."""
        recorder = self.recorder
        recorder.close()
        cycle, ends = traced_cycle(self.calls, self._numbers()), boundaries(self.calls)
        names = {self._number(id(optimizer)): type(optimizer).__name__ for optimizer in self.origins.made}
        for sentence in said(self.calls, cycle, names, self._numbers()):
            self.values.note(sentence)
        if options["mode"] == "entry" and not names and self._learns_without_update():
            self.values.note(never_updated(len(self.calls)))
        starts = [0, *ends[:-1]]
        for operator in recorder.operators[self.calls[0].first :]:
            step = bisect_right(starts, operator.iteration) - 1
            object.__setattr__(operator, "iteration", step)
        libraries = _libraries(self.target, recorder)
        return Trace(
            tuple(recorder.operators),
            tuple(recorder.events),
            storage_kinds.classify_storages(recorder.operators, recorder.events, recorder.storages),
            (*(self.calls[n].first for n in starts), len(recorder.operators)),
            {
                **options,
                "accumulate": options.get("accumulate", 1) * cycle.accumulate,
                "unlike_steps": cycle.steps,
                "calls": len(self.calls),
                "capability": list(self.target.sm),
                "capability_matters": self.target.matters,
                "libraries": libraries,
            },
            tuple(self.values.warnings),
            self.registered,
        )

    def _learns_without_update(self) -> bool:
        """Whether parameters got gradients, and nothing wrote to a parameter."""
        storages, run = self.recorder.storages, self.recorder.operators[self.calls[0].first :]
        targets = {t.storage for o in run if writes_by_name(o.name) for t in o.outputs}
        written = {held.kind for number, held in storages.items() if number in targets}
        return "parameter" not in written and any(held.kind == "gradient" for held in storages.values())

    def _where(self) -> str:
        place = self.origins.here()
        return self.origins.stacks.whole(place.stack[-1]) if place.stack else place.module or "trace"


def _libraries(target: Target, recorder: OperatorRecorder) -> list[str]:
    """Return the libraries that keep memory on the device."""
    if target.type == "cpu":
        return []
    convolves = any("convolution" in operator.name or "cudnn" in operator.name for operator in recorder.operators)
    return ["cublas", "cudnn"] if target.cudnn and convolves else ["cublas"]


@contextmanager
def errors(what: str, origins: OriginTracker) -> Iterator[None]:
    """Turn whatever a model raises into one clear error, at the user's line."""
    try:
        yield
        if origins.stopped is not None:
            raise origins.stopped
    except RollerError:
        raise
    except (Exception, SystemExit) as error:  # noqa: BLE001 - the user's code, or PyTorch's in it; it may end all, too
        if origins.stopped is not None:
            raise origins.stopped from None
        frames = traceback.extract_tb(error.__traceback__)
        own = next((f for f in reversed(frames) if not origins.stacks.is_foreign(f.filename)), None)
        line = "" if own is None else f" at {own.filename}:{own.lineno}"
        wrapped = unsupported_wrappers.blamed(error, line)
        if wrapped is not None:
            raise wrapped from None
        text = str(error).strip().splitlines()
        if text and "does not support bfloat16" in text[0]:  # what autocast says below compute capability 8.0
            raise ModelError(
                f"trace: amp: expected fp16 or fp32, got bf16{line}: the device has no bfloat16 of its own, and what "
                "PyTorch emulates is not priced. Use float16, or a device of compute capability 8.0 or later."
            ) from None
        if isinstance(error, ModuleNotFoundError):
            raise ModelError(
                f"trace: expected packages that are installed here, got none called {shown(error.name)}{line} "
                f"({what}). Install it, or leave it out."
            ) from None
        raise ModelError(
            f"trace: expected a model that runs on shapes, got {type(error).__name__}{line}: "
            f"{text[0] if text else 'no message'} ({what}). Run the step once on the CPU; if it works there, "
            f"what it reads of values must not decide shapes."
        ) from None


def _batch(request: Request) -> int | None:
    """Return the size of the batch: that of the first tensor that has its axis."""
    sizes = (t.shape[request.batch_axis] for t in leaves(request.inputs) if t.dim() > request.batch_axis)
    return next(map(int, sizes), None)
