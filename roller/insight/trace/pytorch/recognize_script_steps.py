"""The state of a training script's trace, whose steps are recognized by optimizer steps and network calls.

A script does not have a step function to call, so the whole script runs. A step begins when a batch is fetched or a
network is called with gradients after an optimizer has stepped; it is complete when every optimizer has stepped.
"""

from __future__ import annotations

import gc
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import FrameType
from typing import Any

import torch

from roller.errors import ModelError
from roller.insight.trace.pytorch import decide_calls_to_trace, model_copy
from roller.insight.trace.pytorch.compat import without_torch_function
from roller.insight.trace.pytorch.script_data_loaders import FetchedBatches
from roller.insight.trace.pytorch.trace_model import TraceSession
from roller.insight.trace.pytorch.transform_step_inputs import iterate_tensors
from roller.insight.trace.trace import Operator, Trace

#: Note on a script that trains on the host.
ON_HOST = (
    "device: the script trains on the CPU. The step is that of a script which moves the model and each batch to the "
    "device."
)

#: Number of latest batches among which a batch of the step's size is looked for.
_LATEST = 64
#: Number of network calls without an optimizer update after which they are not a sign of training.
_IDLE_CALLS = 256


@dataclass(frozen=True)
class StepPart:
    """A part of a step: operators from the first batch or network call after an update up to the next part's start.

    Parameters
    ----------
    call
        The operators that ran, as one call.
    fetched
        Number of batches fetched from the step's loader before the part began.
    """

    call: decide_calls_to_trace.Call
    fetched: int


class ScriptSession(TraceSession):
    """State of a script's trace while the trace is made.

    Parameters
    ----------
    fetches
        Counter for the batches of the script's loaders.
    count
        Number of steps to trace; with ``None``, steps are traced until they repeat.
    when_complete
        Called inside the script when its steps are traced; does not return.
    arguments
        See :class:`~roller.insight.trace.pytorch.trace_model.TraceSession`.
    """

    def __init__(
        self,
        *arguments: Any,
        fetches: FetchedBatches,
        count: int | None,
        when_complete: Callable[[], Any],
        **named: Any,
    ) -> None:
        super().__init__(*arguments, **named)
        self.fetches, self._count, self._when_complete = fetches, count, when_complete
        self.origins.before_root_call = self._before_root_call
        self.networks: dict[str, torch.nn.Module] = {}
        self.moves_to_device = False
        #: Whether the script has run as far as necessary.
        self.is_complete = False
        self._idle_calls = 0
        self._parts: list[StepPart] = []
        self._first: int | None = None
        self._fetched = 0
        #: Numbers of operators and of batches that preceded the fetch of the latest batch.
        self._batch_begin: tuple[int, int] | None = None
        self._call_batch = 0

    @property
    def is_preparing(self) -> bool:
        """Whether the script may still begin to train; false after many network calls without an update."""
        return self._idle_calls < _IDLE_CALLS

    @property
    def has_updated(self) -> bool:
        """Whether an update has been made, even if no later operators have run."""
        return bool(self._parts) or (self._first is not None and bool(self.origins.stepped))

    def begin_batch(self) -> None:
        """Note that the script requests a batch, so that later operators do not belong to the previous update."""
        if self.origins.phase == "optimizer":
            self.origins.phase = "other"
        if self._first is not None and self.origins.stepped:
            self._end_step_part()
            self._begin_step_part()
        elif self._first is None:
            self._batch_begin = len(self.recorder.operators), self.fetches.count

    def _before_root_call(self, module: torch.nn.Module, inputs: Any) -> None:
        if next(module.parameters(), None) is None:  # a loss
            return
        self._idle_calls = 0 if self.origins.stepped else self._idle_calls + 1
        if self._first is not None and torch.is_grad_enabled() and self.origins.stepped:
            self._end_step_part()
        self._register_network(module)
        if self._first is None and torch.is_grad_enabled():
            self._begin_step_part()
        self.recorder.copied_kind = "input"
        for tensor in iterate_tensors(inputs):
            self.recorder.name_storage(tensor, "input")
            if tensor.dim() and not self._call_batch:
                self._call_batch = int(tensor.shape[0])

    def _begin_step_part(self) -> None:
        now = len(self.recorder.operators), self.fetches.count
        self._first, self._fetched = self._batch_begin or now
        self._batch_begin = None
        self._call_batch = 0
        self.recorder.iteration = len(self._parts)
        self.origins.phase = "other"
        self.origins.stepped.clear()

    def _end_step_part(self) -> None:
        """Close the open part; if the steps are complete, end the script."""
        assert self._first is not None
        with self.recorder.pause_recording():
            self._name_gradients_and_states()
        gc.collect()
        run = self.recorder.operators[self._first :]
        stepped = frozenset(map(self._index_of_optimizer, self.origins.stepped))
        self._parts.append(
            StepPart(
                decide_calls_to_trace.Call(self._first, decide_calls_to_trace.forward_hash(run), stepped), self._fetched
            )
        )
        self._first = None
        groups = _group_into_steps(self._parts, self._optimizer_indices_of_whole_step())
        self.calls = [call for call, _ in groups]
        enough = self._count and len(self.calls) >= self._count
        repeats = not self._count and decide_calls_to_trace.is_trace_complete(
            self.calls, self._optimizer_indices_of_whole_step()
        )
        if enough or repeats or len(self._parts) >= decide_calls_to_trace.MOST * (self._count or 1):
            self.is_complete = True
            self._when_complete()

    def _optimizer_indices_of_whole_step(self) -> frozenset[int]:
        """Return the indices of the optimizers in a whole step: all, or after many parts, those that ever stepped."""
        if len(self._parts) < decide_calls_to_trace.MOST:
            return self._indices_of_optimizers()
        return self._stepped_optimizers()

    def _stepped_optimizers(self) -> frozenset[int]:
        return frozenset().union(*(part.call.stepped for part in self._parts))

    def _register_network(self, module: torch.nn.Module) -> None:
        """Name a network and move it to the device if it is on the host."""
        if id(module) in self.names:
            return
        with without_torch_function():
            hosted = [p.device.type == "cpu" for p in module.parameters() if not torch.nn.parameter.is_lazy(p)]
        if hosted and all(hosted) and self.values.hosted:
            self.moves_to_device = True
            self.values.add_note(ON_HOST)
            with self.recorder.pause_recording(), model_copy.set_aside_lazy_parameters(module):
                module.to(torch.device("cuda", 0))
        name = (
            ""
            if self._is_network_of_all_optimizers(module)
            else _unique_name(_network_name_in_script(module, self), self.networks)
        )
        self.networks[name] = module
        self.name_storages(module, prefix=name)
        lines = self.registrations.lines(module)
        self.registered = {**self.registered, **{f"{name}.{k}" if name else k: v for k, v in lines.items()}}

    def _is_network_of_all_optimizers(self, module: torch.nn.Module) -> bool:
        """Return whether this is the first network and every optimizer updates only its parameters."""
        own = {id(parameter) for parameter in module.parameters()}
        updated = (p for o in self.origins.made for group in o.param_groups for p in group["params"])
        return not self.networks and all(id(parameter) in own for parameter in updated)

    def finish_last_step(self) -> bool:
        """Close the last step when the script has ended; return whether any step is complete."""
        self.is_complete = True
        if self._first is not None and self.origins.stepped:
            self._count = self._count or decide_calls_to_trace.MOST + 1  # nothing follows
            self._when_complete = lambda: None
            self._drop_after_last_update()
            self._end_step_part()
        if not self.calls and self._parts:  # not every optimizer has stepped
            self.calls = [call for call, _ in _group_into_steps(self._parts, self._stepped_optimizers())]
        return bool(self.calls)

    def _drop_after_last_update(self) -> None:
        """Drop the operators after the last update: an evaluation, or a failed part."""
        recorder = self.recorder
        recorder.stop_recording_frees()
        operators = recorder.operators
        while operators and operators[-1].phase != "optimizer":
            operators.pop()
        recorder.events[:] = [event for event in recorder.events if event.operator < len(operators)]
        made = {event.storage for event in recorder.events}
        for number in [number for number in recorder.storages if number not in made]:
            del recorder.storages[number]

    def make_script_trace(self, options: Mapping[str, Any]) -> Trace:
        """Return the trace of the recorded steps."""
        groups = _group_into_steps(self._parts, frozenset().union(*(call.stepped for call in self.calls)))
        starts = [call.first for call in self.calls]
        for operator in self.recorder.operators:
            object.__setattr__(operator, "iteration", max(0, sum(first <= operator.index for first in starts) - 1))
        last = self.recorder.operators[starts[-1] :]
        accumulate = self._count_last_step_batches([fetched for _, fetched in groups])
        return self.make_trace({
            **options,
            "mode": "script",
            "batch": self.batch or None,
            "accumulate": accumulate,
            "optimizer": ", ".join(_optimizer_names(self.origins.optimizers.values())),
            "networks": {name or "model": type(one).__qualname__ for name, one in self.networks.items()},
            "loss": _first_backward_line_name(last),
            "checkpoint": list(_recomputed_modules(last)),
        })  # fmt: skip

    @property
    def batch(self) -> int:
        """Number of samples per batch in the last step; 0 if unknown.

        A loader may have fetched further batches ahead, and the last batch of an epoch may be smaller.
        """
        sizes = self.fetches.sizes
        if not sizes or self._call_batch in sizes[-_LATEST:]:
            return self._call_batch
        return max(sizes[-2:])

    def _count_last_step_batches(self, fetched: Sequence[int]) -> int:
        """Return how many of the loader's batches the last step takes; ``fetched`` counts batches before each step."""
        return max(1, self.fetches.count - fetched[-1]) if self.fetches.count else 1


def _group_into_steps(
    parts: Sequence[StepPart], needed: frozenset[int]
) -> list[tuple[decide_calls_to_trace.Call, int]]:
    """Return whole steps (parts until every needed optimizer has stepped), with the batch count before each."""
    found: list[tuple[decide_calls_to_trace.Call, int]] = []
    open_parts: list[StepPart] = []
    for part in parts:
        open_parts.append(part)
        stepped = frozenset().union(*(one.call.stepped for one in open_parts))
        if needed <= stepped:
            first = open_parts[0]
            forward = hash(tuple(one.call.forward for one in open_parts))
            found.append((decide_calls_to_trace.Call(first.call.first, forward, stepped), first.fetched))
            open_parts = []
    return found


def _network_name_in_script(module: torch.nn.Module, session: TraceSession) -> str:
    """Return a network's name in the innermost script frame that names it; otherwise, the name of its class."""
    frame: FrameType | None = inspect.currentframe()
    while frame is not None:
        if not session.origins.stacks.is_foreign(frame.f_code.co_filename):
            scopes = [frame.f_locals, frame.f_globals]
            scopes += [one._modules for one in frame.f_locals.values() if isinstance(one, torch.nn.Module)]
            for scope in scopes:
                for name, value in list(scope.items()):
                    if value is module and not name.startswith("_") and name != "self":
                        return name
        frame = frame.f_back
    return type(module).__name__.lower()


def _unique_name(name: str, taken: Mapping[str, Any]) -> str:
    found, number = name, 2
    while found in taken:
        found, number = f"{name}{number}", number + 1
    return found


def _optimizer_names(optimizers: Any) -> list[str]:
    return [type(optimizer).__name__ for optimizer in optimizers]


def _first_backward_line_name(operators: Sequence[Operator]) -> str:
    """Return ``"file:line"`` of the innermost frame of the first backward operator; ``""`` if there is none."""
    found = next((o for o in operators if o.phase == "backward" and o.source is not None), None)
    return "" if found is None or found.source is None else f"{found.source[0]}:{found.source[1]}"


def _recomputed_modules(operators: Sequence[Operator]) -> tuple[str, ...]:
    """Return the outermost modules that checkpointing recomputes."""
    found: list[str] = []
    for path in sorted({operator.module for operator in operators if operator.recomputed}):
        if not any(path == one or path.startswith(f"{one}.") for one in found):
            found.append(path)
    return tuple(found)


def no_training_error(script: str, how: str) -> ModelError:
    """Return the error for a script in which no optimizer steps."""
    return ModelError(
        f"{script}: expected a script that trains, got {how} without a step of an optimizer. Pass the arguments with "
        f"which it trains after --, or give it more time: --patience 60."
    )
