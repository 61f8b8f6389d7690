"""Traces an entry file: three functions, written by the user, that return a model, a batch and a step.

``model_provider()`` returns the module, ``input_provider(batch_size=16)`` returns the inputs of one step, and
``iteration_provider(model)`` returns a function that runs a step on such inputs. A CUDA device in the file stands for
the traced device. The function names of DeepView and Skyline (``deepview_model_provider``) are also accepted.
"""

from __future__ import annotations

import importlib.util
import inspect
import os
import sys
import warnings
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from roller.errors import ModelError
from roller.hardware import DeviceSpec
from roller.insight.trace.entry_file_providers import PROVIDERS, bind_standard_provider_names, is_script
from roller.insight.trace.options import PRECISIONS, TraceOptions, compute_capability_of
from roller.insight.trace.pytorch import model_copy, training_step, unsupported_wrappers
from roller.insight.trace.pytorch.compat import default_device, without_torch_function
from roller.insight.trace.pytorch.device_dependent_dispatch import Target
from roller.insight.trace.pytorch.error_translation import translate_errors
from roller.insight.trace.pytorch.project_module_eviction import forget_modules_of_other_projects
from roller.insight.trace.pytorch.project_stack_frames import hide_callers_from_stacks
from roller.insight.trace.pytorch.tf32_switches import allow_tf32_only_for, operator_kinds_allowing_tf32, preserve_tf32
from roller.insight.trace.pytorch.trace_model import TraceSession
from roller.insight.trace.pytorch.transform_step_inputs import call_step, iterate_tensors, move_to_device
from roller.insight.trace.retracer import Retracer, T
from roller.insight.trace.torch_release import TorchRelease
from roller.insight.trace.trace import Trace


def make_retracer(
    path: str | Path,
    wrap: Callable[[Trace, Retracer[T]], T],
    *,
    batch: int | None = None,
    device: str | DeviceSpec | None = None,
    amp: str | None = None,
    checkpoint: bool | str | Sequence[str] = False,
    calls: int | None = None,
    torch_release: str | None = None,
) -> Retracer[T]:
    """Return the retracer for an entry file's step; see :func:`roller.insight.tracing.trace_entry`."""
    return make_retracer_of_module(
        load_entry_file(Path(path)), path, wrap, batch=batch, device=device, amp=amp, checkpoint=checkpoint,
        calls=calls, torch_release=torch_release,
    )  # fmt: skip


def make_retracer_of_module(
    module: ModuleType,
    path: str | Path,
    wrap: Callable[[Trace, Retracer[T]], T],
    *,
    batch: int | None = None,
    device: str | DeviceSpec | None = None,
    amp: str | None = None,
    checkpoint: bool | str | Sequence[str] = False,
    calls: int | None = None,
    torch_release: str | None = None,
) -> Retracer[T]:
    """Return the retracer for the step of a module that has all providers."""
    size = default_batch_size(module) if batch is None else batch
    first = TraceOptions(size, device, amp or "fp32", checkpoint, torch_release)
    lasting = weakref.WeakSet(v for v in vars(module).values() if isinstance(v, torch.nn.Module))
    return Retracer(lambda options: _trace_entry(module, path, options, calls, lasting), first, wrap)


@hide_callers_from_stacks
def _trace_entry(
    module: ModuleType, path: str | Path, options: TraceOptions, calls: int | None,
    lasting: weakref.WeakSet[torch.nn.Module],
) -> Trace:  # fmt: skip
    target = Target(compute_capability_of(options.device), release=TorchRelease.parse(options.torch_release))
    session = TraceSession(target, folder=Path(str(module.__file__)).parent)
    for sentence in getattr(module, "_roller_said", ()):
        session.values.add_note(sentence)
    precision = PRECISIONS[options.amp or "fp32"]
    with warnings.catch_warnings(), apply_entry_defaults(module):
        warnings.simplefilter("ignore")
        watched = session.registrations.watching()
        with session.recording_operators(), watched, translate_errors("model_provider failed", session.origins):
            model = session.move_to_device(
                model_copy.build_model_without_compile(module.model_provider, session.values.add_note), lasting
            )
            again = model_copy.checkpoint_modules(model, options.checkpoint or False, session.origins)
            session.name_storages(model)
        with session.recording_operators(), training_step.mixed_precision_step_context(precision) as around:
            with translate_errors("input_provider failed", session.origins):
                inputs = module.input_provider(batch_size=options.batch)
                with session.recorder.pause_recording():
                    check_batch_size(module, options.batch, inputs)
                with session.recorder.pause_recording(), without_torch_function():
                    inputs = move_to_device(inputs, copies=False)
                session.name_storages(model, inputs)
            with translate_errors("iteration_provider failed", session.origins), session.registrations.watching():
                step = module.iteration_provider(model)
                session.name_storages(model)  # with later additions
            session.registered = {**session.registered, **session.registrations.lines(model)}

            def run_step() -> None:
                with around():
                    call_step(step, inputs)

            session.run_steps(run_step, calls)
        model_copy.undo_checkpointing(model, again)
    return session.make_trace(
        {
            "mode": "entry", "entry": str(path), "batch": options.batch, "amp": precision, "checkpoint": list(again),
            "device": getattr(options.device, "name", options.device),
            "allocator": getattr(module, "_roller_allocator", ""),
        }
    )  # fmt: skip


#: Environment variables that configure the caching allocator; PyTorch 2.9 and later use the first one.
_ALLOCATOR_VARIABLES = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")


@contextmanager
def isolate_allocator_settings(module: ModuleType) -> Iterator[None]:
    """Store the allocator settings that an entry file makes while it is loaded, then restore the previous ones."""
    before = {name: os.environ.pop(name, None) for name in _ALLOCATOR_VARIABLES}
    try:
        yield
        module._roller_allocator = next(  # type: ignore[attr-defined]
            filter(None, (os.environ.get(name) for name in _ALLOCATOR_VARIABLES)), ""
        )
    finally:
        for name, value in before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value


@contextmanager
def apply_entry_defaults(module: ModuleType) -> Iterator[None]:
    """Set an entry file's default dtype, device and TF32 switches, and restore the previous ones at the end."""
    before = (torch.get_default_dtype(), default_device())
    dtype, device = getattr(module, "_roller_defaults", before)
    try:
        torch.set_default_dtype(dtype)
        if device != before[1]:
            torch.set_default_device(device)
        with preserve_tf32():
            allow_tf32_only_for(getattr(module, "_roller_tf32", operator_kinds_allowing_tf32()))
            yield
    finally:
        torch.set_default_dtype(before[0])
        if default_device() != before[1]:
            torch.set_default_device(before[1])


def default_batch_size(module: ModuleType) -> int:
    """Return the default batch size of ``input_provider``."""
    return int(inspect.signature(module.input_provider).parameters["batch_size"].default)


def check_batch_size(module: ModuleType, batch: int | None, inputs: Any) -> None:
    """Raise an error if ``input_provider`` ignores the batch size, since the throughput would then be wrong."""
    usual, shapes = default_batch_size(module), [tuple(t.shape) for t in iterate_tensors(inputs)]
    if batch in (None, usual) or not shapes:
        return
    if shapes == [tuple(t.shape) for t in iterate_tensors(module.input_provider(batch_size=usual))]:
        raise ModelError(
            f"{module.__file__}: input_provider: expected inputs of {batch} samples, got the shapes of {usual}: "
            f"{', '.join(map(str, shapes[:4]))}. Use batch_size in their shapes, or ask for no other batch."
        )


class _UncachedLoader(SourceFileLoader):
    """Loader that ignores the bytecode cache, which may belong to an older file with the same second and size."""

    def get_code(self, fullname: str) -> Any:
        """Compile the file and return its code."""
        path = self.get_filename(fullname)
        return self.source_to_code(self.get_data(path), path)


def load_entry_file(path: Path, errors: Callable[..., AbstractContextManager[None]] = translate_errors) -> ModuleType:
    """Return the module of an entry file, which has all providers; ``errors`` translates exceptions from loading it."""
    if not path.is_file():
        raise ModelError(f"{path}: expected an entry file, got none. Pass the path of a Python file.")
    path = path.absolute()  # the file may change the working directory
    name = f"_roller_entry_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path, loader=_UncachedLoader(name, str(path)))
    if spec is None or spec.loader is None:
        raise ModelError(f"{path}: expected a Python file, got one of another kind. Pass a file that ends in .py.")
    module = importlib.util.module_from_spec(spec)
    _check_providers(path)
    sys.path.insert(0, str(path.parent))
    sys.modules[spec.name] = module  # where data classes look for their annotations
    try:
        session = TraceSession(Target())
        forget_modules_of_other_projects(path.parent, session.origins.stacks.is_foreign)
        compiles = unsupported_wrappers.disable_compile(session.values.add_note, session.origins.stacks.is_foreign)
        defaults = apply_entry_defaults(module)
        with (
            errors("the entry file could not be loaded", session.origins),
            compiles,
            defaults,
            isolate_allocator_settings(module),
        ):
            spec.loader.exec_module(module)
            module._roller_tf32 = operator_kinds_allowing_tf32()  # type: ignore[attr-defined]
            module._roller_defaults = (torch.get_default_dtype(), default_device())  # type: ignore[attr-defined]
    finally:
        sys.path.remove(str(path.parent))
    module._roller_said = tuple(session.values.warnings)  # type: ignore[attr-defined]
    bind_standard_provider_names(module, path)
    return module


def _check_providers(path: Path) -> None:
    """Raise an error if a file is a program without providers; if it were run, a training script would train."""
    if is_script(path):
        raise ModelError(
            f"{path}: expected an entry file, got a program that defines none of {', '.join(PROVIDERS)}. "
            f"Write these functions (docs/guides/training.md), profile it as a script: roller profile {path.name}, or "
            f"record a profile of it: roller record {path.name}."
        )
