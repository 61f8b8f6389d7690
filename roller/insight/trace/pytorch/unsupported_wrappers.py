"""Names wrappers of models and optimizers that cannot be traced, and what to write instead."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch

from roller.errors import ModelError

#: Package whose code fails -> what it is for, and what to write instead.
_PLAIN = "Pass the plain model, and ask for several devices, e.g. -d 2xa100: what they exchange is added to the step."
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
                      "Leave torch.compile out: the step is priced as eager."),
}  # fmt: skip


#: Said of a step that is compiled.
EAGER = (
    "torch.compile: the step is traced and priced as eager. Compiled kernels are fused, so time and memory differ: "
    "activations may be kept or computed again."
)


def plain_model(model: torch.nn.Module, said: Callable[[str], None]) -> torch.nn.Module:
    """Return a model without what ``torch.compile`` puts around it, and say so.

    Raises
    ------
    ModelError
        It is spread over devices.
    """
    for path, part in model.named_modules():
        for base in type(part).__mro__:
            home = next((name for name in _WAYS if _within(base.__module__, name)), None)
            if home is not None and home != "torch._dynamo":
                raise ModelError(_sentence(f"{base.__name__} of {home}" + (f" in {path}" if path else ""), home))
    inner = model.__dict__.get("_modules", {}).get("_orig_mod")
    if isinstance(inner, torch.nn.Module) or getattr(model, "_compiled_call_impl", None) is not None:
        said(EAGER)
    return inner if isinstance(inner, torch.nn.Module) else model


@contextmanager
def eager(said: Callable[[str], None], foreign: Callable[[str], bool] | None = None) -> Iterator[None]:
    """Let ``torch.compile`` give back what it is given, and say so unless a file that is ``foreign`` calls it."""

    def compiled(model: Any = None, **options: Any) -> Any:
        if model is None:
            return lambda given: compiled(given, **options)
        if foreign is None or not foreign(sys._getframe(1).f_code.co_filename):
            said(EAGER)
        if isinstance(model, torch.nn.Module):
            object.__setattr__(model, "_orig_mod", model)  # what a compiled module calls the one within
        return model

    with patch.object(torch, "compile", compiled):
        yield


def blamed(error: BaseException, line: str) -> ModelError | None:
    """Return what to say of an error that comes from such code, at the user's line; ``None``: it is another one."""
    names = [frame.f_globals.get("__name__", "") for frame, _ in traceback.walk_tb(error.__traceback__)]
    # Frames of what is compiled stand around much that is not; who raises says it.
    raised = (type(error).__module__, *names[-1:])
    if isinstance(error, ModuleNotFoundError):
        names.append(error.name or "")
    for home in _WAYS:
        if any(_within(name, home) for name in (raised if home == "torch._dynamo" else names)):
            return ModelError(_sentence(f"{home}{line}", home))
    return None


def _within(module: Any, package: str) -> bool:
    return isinstance(module, str) and (module == package or module.startswith(f"{package}."))


def _sentence(found: str, home: str) -> str:
    what, instead = _WAYS[home]
    return f"trace: expected a model of one device that runs in PyTorch's own kernels, got {found}: {what}. {instead}"
