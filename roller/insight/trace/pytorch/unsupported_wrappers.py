"""Detects model and optimizer wrappers that cannot be traced, and suggests alternatives."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch

from roller.errors import ModelError

_PLAIN = "Pass the plain model, and ask for several devices, e.g. -d 2xa100: what they exchange is added to the step."
#: Maps each package that cannot be traced to its purpose and the alternative.
_WAYS = {
    "torch.distributed": ("devices that train together, which a trace runs as one", _PLAIN),
    "torch.nn.parallel": ("devices that train together, which a trace runs as one", _PLAIN),
    "deepspeed": ("devices that train together, which a trace runs as one", _PLAIN),
    "fairscale": ("devices that train together, which a trace runs as one", _PLAIN),
    "megatron": ("devices that train together, which a trace runs as one", _PLAIN),
    "horovod": ("devices that train together, which a trace runs as one", _PLAIN),
    "torchao": ("kernels of its own, which a trace does not follow",
                "Use the model without them, and an optimizer of torch.optim, e.g. AdamW."),
    "bitsandbytes": ("kernels of its own, which a trace does not follow",
                     "Use the model without them, and an optimizer of torch.optim, e.g. AdamW."),
    "apex": ("kernels of its own, which a trace does not follow",
             "Use what torch has of the same kind, e.g. torch.optim.AdamW(fused=True)."),
    "torch._dynamo": ("code that is compiled as it runs, which a trace does not follow",
                      "Leave torch.compile out, and ask for the policy 'compiled'."),
}  # fmt: skip


#: Notes on a compiled module, on a compiled function, and on a call that generates no kernels.
COMPILED = (
    "torch.compile: compiled modules are traced as eager, and priced on a GPU as the compiler fuses them; a loss "
    "outside of them and a processor are priced as eager."
)
EAGER = (
    "torch.compile: a compiled function is traced and priced as eager. Compiled kernels are fused, so time and memory "
    "differ: activations may be kept or computed again. Compile the module instead."
)
NO_KERNELS = (
    "torch.compile: a call that is disabled, or whose backend is not 'inductor', is traced and priced as eager: which "
    "kernels another backend runs is not described."
)
#: Attribute of a compiled module that contains its mode.
_MODE = "_roller_compile_mode"


def compile_modes_by_module_path(model: torch.nn.Module, prefix: str = "") -> dict[str, str]:
    """Return the paths of compiled modules, each with its mode."""
    return {path: vars(m)[_MODE] for path, m in model.named_modules(prefix=prefix) if _MODE in vars(m)}


def _compile_mode(options: Mapping[str, Any]) -> str:
    """Return the mode of a call to ``torch.compile``; ``""`` if the call generates no kernels."""
    if options.get("disable") or (options.get("backend") or "inductor") != "inductor":
        return ""
    captures = (options.get("options") or {}).get("triton.cudagraphs")  # settings of this mode
    return "reduce-overhead" if captures else str(options.get("mode") or "default")


def _mode_of_compiled_call(call: Any) -> str:
    """Return the mode of a callable made by ``torch.compile``; ``""`` if it generates no kernels."""
    config = getattr(call, "get_compiler_config", lambda: None)()  # Inductor's mode only
    return "" if config is None else _compile_mode({"options": config})


def _mark_compiled(model: torch.nn.Module, mode: str) -> None:
    # past Module.__setattr__: the model must look as before
    object.__setattr__(model, _MODE, mode)


def unwrap_compiled(model: torch.nn.Module, said: Callable[[str], None]) -> torch.nn.Module:
    """Return a model without the wrapper of ``torch.compile``, adding a note; raise an error for other wrappers."""
    for path, part in model.named_modules():
        for base in type(part).__mro__:
            home = next((name for name in _WAYS if _is_in_package(base.__module__, name)), None)
            if home is not None and home != "torch._dynamo":
                raise ModelError(
                    _unsupported_wrapper_text(f"{base.__name__} of {home}" + (f" in {path}" if path else ""), home)
                )
    inner = model.__dict__.get("_modules", {}).get("_orig_mod")
    found = inner if isinstance(inner, torch.nn.Module) else model
    call = model.forward if found is inner else getattr(model, "_compiled_call_impl", None)
    if call is not None:
        mode = vars(found).get(_MODE) or _mode_of_compiled_call(call)
        said(COMPILED if mode else NO_KERNELS)
        if mode:
            _mark_compiled(found, mode)
    return found


@contextmanager
def disable_compile(said: Callable[[str], None], foreign: Callable[[str], bool] | None = None) -> Iterator[None]:
    """Make ``torch.compile`` return its argument, with a note unless a ``foreign`` file calls it."""

    def return_uncompiled(model: Any = None, **options: Any) -> Any:
        if model is None:
            return lambda given: return_uncompiled(given, **options)
        method = getattr(model, "__self__", None)  # of module.compile(): its own call
        module = method if isinstance(method, torch.nn.Module) else model
        mode = _compile_mode(options)
        if foreign is None or not foreign(sys._getframe(1).f_code.co_filename):
            said(NO_KERNELS if not mode else COMPILED if isinstance(module, torch.nn.Module) else EAGER)
        if isinstance(module, torch.nn.Module) and mode:
            _mark_compiled(module, mode)
        if isinstance(model, torch.nn.Module):
            object.__setattr__(model, "_orig_mod", model)  # a compiled module's name for the inner module
        return model

    with patch.object(torch, "compile", return_uncompiled):
        yield


def explain_wrapper_error(error: BaseException, line: str) -> ModelError | None:
    """Return the error to raise for an exception in a package that cannot be traced; ``None`` for other exceptions."""
    names = [frame.f_globals.get("__name__", "") for frame, _ in traceback.walk_tb(error.__traceback__)]
    # Frames of compiled code surround much other code, so only the raising frame counts.
    raised = (type(error).__module__, *names[-1:])
    if isinstance(error, ModuleNotFoundError):
        names.append(error.name or "")
    for home in _WAYS:
        if any(_is_in_package(name, home) for name in (raised if home == "torch._dynamo" else names)):
            return ModelError(_unsupported_wrapper_text(f"{home}{line}", home))
    return None


def _is_in_package(module: Any, package: str) -> bool:
    return isinstance(module, str) and (module == package or module.startswith(f"{package}."))


def _unsupported_wrapper_text(found: str, home: str) -> str:
    what, instead = _WAYS[home]
    return f"trace: expected a model of one device that runs in PyTorch's own kernels, got {found}: {what}. {instead}"
