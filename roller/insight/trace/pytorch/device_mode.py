"""Above autograd: every call of PyTorch is answered as on the device that is traced for.

A tensor of the device reads ``cuda``, or ``cpu`` where that is traced for, wherever Python asks; a device that is named
becomes ours; what PyTorch chooses by device inside of C++ (dropout, batch norm, attention, recurrent layers,
autocast) is chosen here by the device's rule.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from types import FunctionType
from typing import Any
from unittest.mock import patch

import torch
from torch.utils.checkpoint import checkpoint

from roller.insight.trace.pytorch import cpu_dispatch, cuda_stubs, host_tensors, known_values
from roller.insight.trace.pytorch.autocast import Autocast
from roller.insight.trace.pytorch.compat import (
    TorchFunctionMode,
    default_device,
    device_constructors,
    plain,
    unguarded,
    without_modes,
)
from roller.insight.trace.pytorch.data_dependent import Values
from roller.insight.trace.pytorch.dispatch_rules import REPLACED, Target, clip_gradients
from roller.insight.trace.pytorch.operator_origin import OriginTracker

_META = torch.device("meta")
#: Functions that make a tensor and take the default device.
_CONSTRUCTORS = frozenset(f.__name__ for f in device_constructors())


class DeviceMode(TorchFunctionMode):
    """Makes ``meta`` tensors those of the device while it is entered.

    Parameters
    ----------
    target
        What decides which kernels it runs.
    places
        Told of every result, so that backward knows where it comes from.
    values
        Told what is read past operators.
    """

    def __init__(self, target: Target, origins: OriginTracker, values: Values) -> None:
        super().__init__()
        self.target = target
        self.values = values
        self.origins = origins
        self.autocast = Autocast()
        self.host = target.type == "cpu"
        self.name = torch.device("cpu") if self.host else torch.device("cuda", 0)
        self._getters: Mapping[str, Any] = {
            "device": self.name, "is_cuda": not self.host, "is_cpu": self.host, "is_meta": False
        }  # fmt: skip
        self._replaced = cpu_dispatch.REPLACED if self.host else REPLACED

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Answer one call."""
        name = func.__name__
        if name == "__get__":
            value = func(*args)
            asked = getattr(getattr(func, "__self__", None), "__name__", "")
            return self._getters[asked] if asked in self._getters and args[0].is_meta else value
        if name == "__set__" and getattr(getattr(func, "__self__", None), "__name__", "") == "data":
            return self._set_data(func, *args)
        if name in ("__repr__", "__str__"):  # reads what a tensor is, not what it reads as
            with plain():
                return func(*args, **(kwargs or {}))
        kwargs = dict(kwargs) if kwargs else {}
        if isinstance(func, FunctionType):
            body = unguarded(func)
            if body is not None:
                with self:
                    return body(*args, **kwargs)
        args = self._ours(name, args, kwargs)
        result = self._answer(func, name, args, kwargs)
        self.origins.remember(result)
        return result

    def _answer(self, func: Any, name: str, args: Any, kwargs: Any) -> Any:
        if name in ("tolist", "numpy", "cuda", "cpu"):
            return self._moved(func, name, args, kwargs)
        if name == "pin_memory":  # of the host, and there in any case
            return args[0] if args[0].is_meta else args[0].clone()
        if name == "is_pinned":
            return not args[0].is_meta
        if name in ("tensor", "as_tensor", "scalar_tensor") and kwargs.get("device") == _META:
            return _told(func, args, kwargs)
        replaced = self._replaced.get(name)
        if torch.is_autocast_enabled("cuda"):
            func, args, kwargs = self.autocast.cast(func, name, args, kwargs)
        if replaced is not None:
            answer = replaced(self.target, func, args, kwargs)
            if answer is not NotImplemented:
                return answer
        return func(*args, **kwargs)

    def _moved(self, func: Any, name: str, args: Any, kwargs: Any) -> Any:
        tensor = args[0]
        if name == "cuda" or (name == "cpu" and self.host):
            return tensor.to(_META)
        if not tensor.is_meta:
            if name != "cpu" and host_tensors.is_unknown(tensor):
                self.values.read(tensor.dtype, f"{name}()")
            return func(*args, **kwargs)
        copied = tensor.detach().to("cpu") if name != "cpu" else tensor.to("cpu")
        return copied if name == "cpu" else self._moved(func, name, (copied, *args[1:]), kwargs)

    def _set_data(self, func: Any, tensor: torch.Tensor, value: torch.Tensor) -> None:
        """Give a tensor other memory, which may be the device's where its own was the host's."""
        if tensor.is_meta == value.is_meta:
            func(tensor, value)
            return
        with plain():
            twin = value.detach()
            if isinstance(tensor, torch.nn.Parameter):
                twin = torch.nn.Parameter(twin, tensor.requires_grad)
            torch.utils.swap_tensors(tensor, twin)

    def _ours(self, name: str, args: Any, kwargs: dict[str, Any]) -> Any:
        """Replace the devices a call names."""
        if "device" in kwargs and self._is_ours(kwargs["device"]):
            kwargs["device"] = _META
        if self.host and name in cpu_dispatch.FACTORIES and kwargs.get("device") is None:
            kwargs["device"] = _META
        if kwargs.get("device") is None and self._default() and name in _CONSTRUCTORS:
            kwargs["device"] = _META
        if kwargs.get("pin_memory"):
            kwargs["pin_memory"] = False
        strings = name in ("to", "Generator")
        if any(isinstance(arg, torch.device) or (strings and isinstance(arg, str)) for arg in args):
            return tuple(
                _META if (strings or isinstance(arg, torch.device)) and self._is_ours(arg) else arg for arg in args
            )
        return args

    def _default(self) -> bool:
        """Whether what names no device is made on ours, as ``torch.set_default_device`` has it."""
        device = default_device()
        return device is not None and self._is_ours(device)

    def _is_ours(self, device: Any) -> bool:
        """Whether a device that a call names is ours: a GPU's name always is, the host's where that is traced for."""
        if isinstance(device, torch.device):
            return device.type == "cuda" or (device.type == "cpu" and self.host)
        if isinstance(device, str):
            return self._is_ours(torch.device(device.split(":")[0]))
        return isinstance(device, int) and not isinstance(device, bool) and not self.host


def _told(func: Any, args: Any, kwargs: Any) -> Any:
    """Return a tensor of the device that is made of numbers, which are known."""
    made = func(*args, **kwargs)
    if made.is_meta and made.numel() <= known_values.MOST_FOLLOWED and not isinstance(args[0], torch.Tensor):
        with without_modes():
            try:
                known_values.know(made, func(*args, **{**kwargs, "device": "cpu"}).detach())
            except (TypeError, ValueError, RuntimeError):  # made of tensors of the device, or of a kind without numbers
                known_values.unknow(made)
    return made


@contextmanager
def answers(device: DeviceMode) -> Iterator[None]:
    """Answer the questions of ``torch.cuda`` as the device would, and collect what autocast has cast."""
    replies = cuda_stubs.replies(device.host, lambda: device.target.capability, device.values.note)
    homes = [(torch.cuda, replies), (torch.cuda.nvtx, cuda_stubs.nvtx_replies())]
    if hasattr(torch, "accelerator"):  # from PyTorch 2.6 on
        homes.append((torch.accelerator, cuda_stubs.accelerator_replies(device.host)))
    clear = torch.clear_autocast_cache

    def cleared() -> None:
        device.autocast.forget()
        clear()

    # What torch._dynamo finds in torch.cuda as it is loaded stays with it, so it must not find these answers.
    importlib.import_module("torch._dynamo.trace_rules").get_torch_obj_rule_map()
    with ExitStack() as stack:
        if not device.host:  # parameters that come to the device stay who they are, as on a GPU
            swaps = torch.__future__.get_swap_module_params_on_conversion()
            stack.callback(torch.__future__.set_swap_module_params_on_conversion, swaps)
            torch.__future__.set_swap_module_params_on_conversion(True)
        for place, said in homes:
            for name, reply in said.items():
                if hasattr(place, name):
                    stack.enter_context(patch.object(place, name, reply))
        for home in () if device.host else (torch.nn.utils, torch.nn.utils.clip_grad):
            stack.enter_context(patch.object(home, "clip_grad_norm_", clip_gradients))
        stack.enter_context(patch.object(torch, "clear_autocast_cache", cleared))
        stack.enter_context(patch.object(torch.Tensor, "record_stream", lambda *_: None))
        # It would compare devices that were read above and below this mode.
        defaults = inspect.unwrap(checkpoint).__kwdefaults__
        stack.enter_context(patch.dict(defaults, {"determinism_check": "none"}))
        yield
