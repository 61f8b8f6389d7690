"""Runs a whole, unchanged training script until its steps are traced; it runs on shapes, so nothing is trained.

This must be done in a separate process, since the script's modules stay loaded. Once the steps are complete, the
process has to end inside the script, whose ``except`` and ``finally`` blocks would otherwise run.
"""

from __future__ import annotations

import ast
import gc
import runpy
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from torch.nn.modules.module import register_module_parameter_registration_hook
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils import swap_tensors

from roller.errors import ModelError, shown
from roller.insight.trace.options import HOST, TraceOptions, compute_capability_of
from roller.insight.trace.project_folder import import_root_and_module
from roller.insight.trace.pytorch.compat import TorchFunctionMode, without_modes, without_torch_function
from roller.insight.trace.pytorch.device_dependent_dispatch import Target
from roller.insight.trace.pytorch.error_translation import translate_errors
from roller.insight.trace.pytorch.project_stack_frames import hide_callers_from_stacks
from roller.insight.trace.pytorch.recognize_script_steps import ScriptSession, no_training_error
from roller.insight.trace.pytorch.script_data_loaders import FetchedBatches
from roller.insight.trace.pytorch.transform_step_inputs import iterate_tensors
from roller.insight.trace.torch_release import TorchRelease
from roller.insight.trace.trace import Trace
from roller_runtime.core.files import read_text

_GENERATOR = torch.Generator
#: Type of the device on which a traced script trains.
_TRACED_DEVICE = "cuda"
_AMP = {torch.float16: "fp16", torch.bfloat16: "bf16"}
#: Functions that move tensors between host and device, or set one from the other.
_MOVES = frozenset(("to", "cuda", "cpu", "copy_", "__get__", "__set__", "numpy", "tolist", "item"))


@dataclass(frozen=True)
class Script:
    """A training script and its arguments, or a function in this process that runs in its place."""

    path: Path
    arguments: tuple[str, ...] = ()
    body: Callable[[], Any] | None = None


@dataclass
class ScriptObservations:
    """What the hooks observe in addition to operators."""

    amp: str | None = None
    scales_loss: bool = False
    #: Number of changes that optimizers have made to parameters on the host.
    changed: int = 0


class ScriptRunner:
    """Traces the steps of a script.

    Parameters
    ----------
    script
        The script, or the function that runs in its place.
    options
        Batch size and device.
    calls
        Number of steps to trace; with ``None``, steps are traced until they repeat.
    finish
        Called inside the script with the trace; ends the process.
    """

    def __init__(
        self, script: Script, options: TraceOptions, calls: int | None, finish: Callable[[Trace], Any]
    ) -> None:
        capability = compute_capability_of(options.device)
        if capability == HOST:
            raise ModelError(
                f"{script.path}: expected a GPU for a training script, got the CPU. Name a GPU, or write the "
                f"providers of an entry file: roller init."
            )
        self._script, self._options, self._finish = script, options, finish
        #: Called when the script shows a sign of preparing to train: a parameter is made, a batch is fetched.
        self.sign: Callable[[], None] = lambda: None
        #: Returns the last line that the script wrote to standard error.
        self.last_words: Callable[[], str] = str
        self.seen = ScriptObservations()
        self.fetches = FetchedBatches(options.batch, self._begin_batch)
        release = TorchRelease.parse(options.torch_release)
        self.session = ScriptSession(
            Target(capability, release=release), folder=script.path.absolute().parent, fetches=self.fetches,
            count=calls, when_complete=self._hand_over_trace,
        )  # fmt: skip
        if script.body is not None:  # its optimizers may have been made before
            self.session.origins.made.update(o for o in gc.get_objects() if issubclass(type(o), torch.optim.Optimizer))

    def run(self) -> Trace:
        """Run the script to its end and return the trace of its steps."""
        session = self.session
        with (
            warnings.catch_warnings(),
            session.recording_operators(),
            self._install_hooks(),
            session.registrations.watching(),
        ):
            warnings.simplefilter("ignore")
            try:
                with translate_errors(f"{self._script.path.name} failed", session.origins):
                    self._run_script()
            except ModelError as error:
                self._handle_script_error(error)
            if not session.finish_last_step():
                raise no_training_error(str(self._script.path), "its end")
            return self._trace()

    def _handle_script_error(self, error: ModelError) -> None:
        """Raise an error if the script exits with an error status, or fails before an update; note a later failure."""
        cause = error.__context__
        if isinstance(cause, SystemExit):
            if cause.code not in (None, 0):
                said = f", after {shown(words)}," if (words := self.last_words()) else ""
                raise no_training_error(
                    str(self._script.path), f"its end with status {shown(cause.code)}{said}"
                ) from None
        elif not self.session.has_updated or cause is None:
            raise error
        else:
            self.session.values.add_note(
                f"script: it failed after an update, which is profiled: {type(cause).__name__}: {str(cause)[:200]}"
            )

    @hide_callers_from_stacks
    def _run_script(self) -> None:
        if self._script.body is not None:
            self._script.body()
            return
        path = self._script.path
        sys.argv, sys.path[0] = [str(path), *self._script.arguments], str(path.absolute().parent)
        levels = _relative_import_depth(path)
        if not levels:
            runpy.run_path(str(path), run_name="__main__")
            return
        root, module = import_root_and_module(path, levels)  # as python -m does
        sys.path[0] = str(root)
        runpy.run_module(module, run_name="__main__")

    def _begin_batch(self) -> None:
        self.sign()
        self.session.begin_batch()

    def _hand_over_trace(self) -> None:
        self._finish(self._trace())

    def _trace(self) -> Trace:
        wanted, got = self._options.batch, self.session.batch
        if wanted is not None and (got != wanted or not self.fetches.sizes):
            what = f"one of {got}" if self.fetches.sizes else "no DataLoader whose batch could be changed"
            raise ModelError(
                f"{self._script.path}: batch: expected a loader that gives {wanted} samples, got {what}. "
                f"Pass the script's own argument for it after --."
            )
        return self.session.make_script_trace({
            "entry": str(self._script.path), "arguments": list(self._script.arguments), "amp": self.seen.amp,
            "scales_loss": self.seen.scales_loss, "changed_parameters": self.seen.changed,
            "device": getattr(self._options.device, "name", self._options.device),
        })  # fmt: skip

    def _refuse_distributed(self, *_: Any, **__: Any) -> None:
        raise ModelError(
            f"{self._script.path}: expected a script that trains on one device, got one that starts a group of "
            f"processes (torch.distributed). Pass the arguments for one device after --, and ask for several, e.g. "
            f"-d 2xa100: what they exchange is added to the step."
        )

    @contextmanager
    def _install_hooks(self) -> Iterator[None]:
        origins, before = self.session.origins, self.session.origins.before_update
        versions: dict[int, list[int]] = {}

        def before_update(optimizer: torch.optim.Optimizer) -> None:
            before(optimizer)
            versions[id(optimizer)] = _write_counts_of_host_parameters(optimizer)

        def after_update(optimizer: torch.optim.Optimizer, *_: Any) -> None:
            known = versions.pop(id(optimizer), [])
            self.seen.changed += sum(
                a != b for a, b in zip(known, _write_counts_of_host_parameters(optimizer), strict=False)
            )

        origins.before_update = before_update
        handle = register_optimizer_step_post_hook(after_update)
        enter, scale, move = torch.autocast.__enter__, torch.amp.GradScaler.scale, torch.nn.Module.to
        load = torch.load

        def note_autocast(context: Any) -> Any:
            if context._enabled and context.device == _TRACED_DEVICE:
                self.seen.amp = _AMP.get(context.fast_dtype, self.seen.amp)
            return enter(context)

        def note_scaling(scaler: Any, outputs: Any) -> Any:
            self.seen.scales_loss |= scaler.is_enabled()
            return scale(scaler, outputs)

        def move_to(module: Any, *args: Any, **kwargs: Any) -> Any:  # its parser knows no GPU by number here
            return move(module, *(torch.device("cuda", x) if type(x) is int else x for x in args), **kwargs)

        def load_on_host(file: Any, map_location: Any = None, *args: Any, **kwargs: Any) -> Any:
            # A file's values stay real on the host, as the values of data do.
            with without_modes(), without_torch_function():
                return load(file, "cpu", *args, **kwargs)

        with ExitStack() as stack:
            stack.callback(handle.remove)
            stack.callback(register_module_parameter_registration_hook(lambda *_: self.sign()).remove)
            stack.enter_context(self.fetches.watching())
            for home, name, value in (
                (torch.autocast, "__enter__", note_autocast), (torch.amp.GradScaler, "scale", note_scaling),
                (torch.nn.Module, "to", move_to), (torch, "save", lambda *_, **__: None), (torch, "load", load_on_host),
                (torch.distributed, "init_process_group", self._refuse_distributed), (torch, "Generator",
                                                                                      _HostGenerator),
            ):  # fmt: skip
                if hasattr(home, name):  # a build of PyTorch may have no torch.distributed
                    stack.enter_context(patch.object(home, name, value))
            stack.enter_context(_MoveToDeviceMode(self.session))
            yield


def _relative_import_depth(path: Path) -> int:
    """Return the largest number of leading dots in a file's relative imports; 0 without any, or if parsing fails."""
    try:
        nodes = ast.walk(ast.parse(read_text(path)))
    except (OSError, ValueError, SyntaxError, RecursionError):  # running it raises a better error
        return 0
    return max((node.level for node in nodes if isinstance(node, ast.ImportFrom)), default=0)


class _AnyGenerator(type(_GENERATOR)):  # type: ignore[misc]
    def __instancecheck__(cls, instance: Any) -> bool:
        return isinstance(instance, _GENERATOR)


class _HostGenerator(_GENERATOR, metaclass=_AnyGenerator):  # type: ignore[misc, valid-type]
    """A random generator on the host, whatever device is named, since this build of PyTorch may support no other."""

    def __new__(cls, device: Any = "cpu") -> _HostGenerator:
        return super().__new__(cls, "cpu")  # type: ignore[no-any-return]


class _MoveToDeviceMode(TorchFunctionMode):
    """Moves a host tensor to the device if a call also has a device tensor, for scripts that move no tensors."""

    def __init__(self, session: ScriptSession) -> None:
        super().__init__()
        self._session = session

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run one call to PyTorch."""
        if self._session.moves_to_device and getattr(func, "__name__", "") not in _MOVES:
            with without_torch_function():
                found = list(iterate_tensors((args, kwargs), depth=0))
                hosted = [t for t in found if not t.is_meta and t.dim()] if any(t.is_meta for t in found) else []
            for tensor in hosted:
                moved = tensor.detach().to(torch.device("cuda", 0))
                with without_torch_function():
                    swap_tensors(tensor, moved.requires_grad_(tensor.requires_grad))
        return func(*args, **(kwargs or {}))


def _write_counts_of_host_parameters(optimizer: torch.optim.Optimizer) -> list[int]:
    """Return the number of writes to each of an optimizer's parameters that are on the host."""
    with without_torch_function():
        held = (p for group in optimizer.param_groups for p in group["params"])
        return [p._version for p in held if not p.is_meta]
