"""Function mode above autograd that makes calls to PyTorch behave as on the traced device.

A device tensor reports ``cuda``, or ``cpu`` if the CPU is traced. In arguments, the traced device is replaced with
``meta``. PyTorch's device-dependent C++ dispatch (dropout, batch norm, attention, recurrent layers, autocast) follows
the device's rules.
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
from torch.optim import optimizer
from torch.utils import _foreach_utils
from torch.utils.checkpoint import checkpoint

from roller.insight.trace.pytorch import cpu_attention_lstm_dispatch, cuda_stubs, host_tensors, known_values
from roller.insight.trace.pytorch.autocast import Autocast
from roller.insight.trace.pytorch.compat import (
    TorchFunctionMode,
    default_device,
    device_constructors,
    without_modes,
    without_override_check,
    without_torch_function,
)
from roller.insight.trace.pytorch.data_dependent_values import MetaOperators
from roller.insight.trace.pytorch.device_dependent_dispatch import REPLACED, Target
from roller.insight.trace.pytorch.operator_origin import OriginTracker

_META = torch.device("meta")
#: Functions that create a tensor on the default device.
_CONSTRUCTORS = frozenset(f.__name__ for f in device_constructors())


class DeviceMode(TorchFunctionMode):
    """Makes ``meta`` tensors behave like device tensors while the mode is active.

    Parameters
    ----------
    target
        Properties that decide which kernels the device runs.
    origins
        Tracker that stores the origin of each result in the autograd graph.
    values
        Provider of defaults for values that are read.
    """

    def __init__(self, target: Target, origins: OriginTracker, values: MetaOperators) -> None:
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
        #: Indices of the GPUs that the program has named.
        self._numbers: set[int] = set()
        self._replaced = cpu_attention_lstm_dispatch.REPLACED if self.host else REPLACED

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run one call as on the device."""
        name = func.__name__
        if name == "__get__":
            value = func(*args)
            asked = getattr(getattr(func, "__self__", None), "__name__", "")
            return self._getters[asked] if asked in self._getters and args[0].is_meta else value
        if name == "__set__" and getattr(getattr(func, "__self__", None), "__name__", "") == "data":
            return self._set_data(func, *args)
        if name in ("__repr__", "__str__"):  # needs the real device of a tensor
            with without_torch_function():
                return func(*args, **(kwargs or {}))
        kwargs = dict(kwargs) if kwargs else {}
        if isinstance(func, FunctionType):
            body = without_override_check(func)
            if body is not None:
                with self:
                    return body(*args, **kwargs)
        args = self._replace_devices(name, args, kwargs)
        result = self._dispatch(func, name, args, kwargs)
        self.origins.store_in_autograd_graph(result)
        return result

    def _dispatch(self, func: Any, name: str, args: Any, kwargs: Any) -> Any:
        if name in ("tolist", "numpy", "cuda", "cpu"):
            return self._run_device_conversion(func, name, args, kwargs)
        if name == "pin_memory":  # of a host tensor, which stays there
            return args[0] if args[0].is_meta else args[0].clone()
        if name == "is_pinned":
            return not args[0].is_meta
        if name in ("tensor", "as_tensor", "scalar_tensor") and kwargs.get("device") == _META:
            return _make_tensor_with_known_values(func, args, kwargs)
        replaced = self._replaced.get(name)
        if torch.is_autocast_enabled("cuda"):
            func, args, kwargs = self.autocast.cast_arguments(func, name, args, kwargs)
        if replaced is not None:
            answer = replaced(self.target, func, args, kwargs)
            if answer is not NotImplemented:
                return answer
        return func(*args, **kwargs)

    def _run_device_conversion(self, func: Any, name: str, args: Any, kwargs: Any) -> Any:
        tensor = args[0]
        if name == "cuda" or (name == "cpu" and self.host):
            for device in (*args[1:2], kwargs.get("device")):
                self._is_traced_device(device)  # counts the GPUs
            return tensor.to(_META)
        if not tensor.is_meta:
            if name != "cpu" and host_tensors.has_unknown_values(tensor):
                self.values.default_for_unknown_value(tensor.dtype, f"{name}()")
            return func(*args, **kwargs)
        copied = tensor.detach().to("cpu") if name != "cpu" else tensor.to("cpu")
        return copied if name == "cpu" else self._run_device_conversion(func, name, (copied, *args[1:]), kwargs)

    def _set_data(self, func: Any, tensor: torch.Tensor, value: torch.Tensor) -> None:
        """Set a tensor's data, which may be on the host while the tensor is on the device, or the reverse."""
        if tensor.is_meta == value.is_meta:
            func(tensor, value)
            return
        with without_torch_function():
            twin = value.detach()
            if isinstance(tensor, torch.nn.Parameter):
                twin = torch.nn.Parameter(twin, tensor.requires_grad)
            torch.utils.swap_tensors(tensor, twin)

    def _replace_devices(self, name: str, args: Any, kwargs: dict[str, Any]) -> Any:
        """Replace the traced device in a call's arguments with ``meta``."""
        if "device" in kwargs and self._is_traced_device(kwargs["device"]):
            kwargs["device"] = _META
        if self.host and name in cpu_attention_lstm_dispatch.FACTORIES and kwargs.get("device") is None:
            kwargs["device"] = _META
        if kwargs.get("device") is None and self._is_traced_device_the_default() and name in _CONSTRUCTORS:
            kwargs["device"] = _META
        if kwargs.get("pin_memory"):
            kwargs["pin_memory"] = False
        strings = name in ("to", "Generator")
        if any(isinstance(arg, torch.device) or (strings and isinstance(arg, str)) for arg in args):
            return tuple(
                _META if (strings or isinstance(arg, torch.device)) and self._is_traced_device(arg) else arg
                for arg in args
            )
        return args

    def _is_traced_device_the_default(self) -> bool:
        """Return whether ``torch.set_default_device`` names the traced device."""
        device = default_device()
        return device is not None and self._is_traced_device(device)

    def _is_traced_device(self, device: Any) -> bool:
        """Return whether a device is the traced one (any GPU, or the host if it is traced); count named GPUs."""
        if isinstance(device, str):
            kind, _, number = device.partition(":")
            device = torch.device(kind, int(number)) if number.isdigit() else torch.device(kind)
        if isinstance(device, torch.device):
            if device.type == "cuda" and device is not self.name:  # traced tensors report ``self.name``
                self._note_use_of_gpu(device.index or 0)
            return device.type == "cuda" or (device.type == "cpu" and self.host)
        is_number = isinstance(device, int) and not isinstance(device, bool) and not self.host
        if is_number:
            self._note_use_of_gpu(device)
        return is_number

    def _note_use_of_gpu(self, number: int) -> None:
        self._numbers.add(number)
        if len(self._numbers) == 2:
            self.values.add_note(
                "device: the program uses several GPUs. It is profiled as if one GPU held and computed everything; "
                "copies between GPUs are left out."
            )


def _make_tensor_with_known_values(func: Any, args: Any, kwargs: Any) -> Any:
    """Return a device tensor created from numbers, which become its known values if it is small."""
    made = func(*args, **kwargs)
    if made.is_meta and made.numel() <= known_values.MOST_FOLLOWED and not isinstance(args[0], torch.Tensor):
        with without_modes():
            try:
                known_values.set_known_value(made, func(*args, **{**kwargs, "device": "cpu"}).detach())
            except (TypeError, ValueError, RuntimeError):  # made of device tensors, or of a kind without numbers
                known_values.discard_known_value(made)
    return made


@contextmanager
def patch_device_functions(device: DeviceMode) -> Iterator[None]:
    """Patch ``torch.cuda`` and other device functions of PyTorch to describe the traced device."""
    replies = cuda_stubs.cuda_function_stubs(device.host, lambda: device.target.capability, device.values.add_note)
    homes = [(torch.cuda, replies), (torch.cuda.nvtx, cuda_stubs.nvtx_stubs())]
    if hasattr(torch, "accelerator"):  # from PyTorch 2.6 on
        homes.append((torch.accelerator, cuda_stubs.accelerator_stubs(device.host)))
    clear = torch.clear_autocast_cache

    def clear_both_caches() -> None:
        device.autocast.clear_cache()
        clear()

    # torch._dynamo keeps the functions of torch.cuda that it finds when it is loaded, so it is loaded before the patch.
    importlib.import_module("torch._dynamo.trace_rules").get_torch_obj_rule_map()
    with ExitStack() as stack:
        if not device.host:  # parameters that are moved to the device keep their identity, as on a GPU
            swaps = torch.__future__.get_swap_module_params_on_conversion()
            stack.callback(torch.__future__.set_swap_module_params_on_conversion, swaps)
            torch.__future__.set_swap_module_params_on_conversion(True)
        for place, said in homes:
            for name, reply in said.items():
                if hasattr(place, name):
                    stack.enter_context(patch.object(place, name, reply))
        # Clipping asks C++ for the devices of gradients, which are those below this mode.
        release = device.target.release
        groups = release.groups_optimizers
        supported = [*_foreach_utils._get_foreach_kernels_supported_devices(), "meta"] if groups else []
        if not groups:
            stack.enter_context(patch.object(optimizer, "_get_foreach_kernels_supported_devices", lambda: supported))
        stack.enter_context(patch.object(_foreach_utils, "_get_foreach_kernels_supported_devices", lambda: supported))
        stack.enter_context(patch.object(torch, "clear_autocast_cache", clear_both_caches))
        stack.enter_context(patch.object(torch.Tensor, "record_stream", lambda *_: None))
        # The check would compare devices that were read above and below this mode.
        if not release.drops_gradients:
            for zero_grad in (torch.optim.Optimizer.zero_grad, torch.nn.Module.zero_grad):
                stack.enter_context(patch.object(inspect.unwrap(zero_grad), "__defaults__", (False,)))
        defaults = inspect.unwrap(checkpoint).__kwdefaults__
        stack.enter_context(patch.dict(defaults, {"determinism_check": "none"}))
        yield
