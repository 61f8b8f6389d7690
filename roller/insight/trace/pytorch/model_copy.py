"""Copies a model to the device with its parameters and buffers; the original model is not changed."""

from __future__ import annotations

import copy
import fnmatch
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch.nn.parameter import is_lazy
from torch.utils.checkpoint import checkpoint

from roller.errors import ModelError, shown
from roller.insight.trace.pytorch.operator_origin import OriginTracker
from roller.insight.trace.pytorch.unsupported_wrappers import unwrap_compiled


def build_model_without_compile(model: Any, said: Callable[[str], None]) -> torch.nn.Module:
    """Return a module, or the module that a function returns, without the wrapper of ``torch.compile``."""
    if isinstance(model, torch.nn.Module):
        return unwrap_compiled(model, said)
    if not callable(model):
        raise ModelError(
            f"trace: model: expected a torch.nn.Module or a function that returns one, got {shown(model)}. "
            f"Pass the module."
        )
    found = model()
    if not isinstance(found, torch.nn.Module):
        raise ModelError(
            f"trace: model: expected a function that returns a torch.nn.Module, got {shown(found)}. Return the module."
        )
    return unwrap_compiled(found, said)


def copy_to_device(model: torch.nn.Module) -> torch.nn.Module:
    """Return a copy of a model on the device; tied parameters stay tied."""
    memo: dict[int, Any] = {}
    for parameter in model.parameters():
        twin = torch.empty_strided(parameter.shape, parameter.stride(), dtype=parameter.dtype, device="meta")
        memo[id(parameter)] = torch.nn.Parameter(twin, requires_grad=parameter.requires_grad)
    for buffer in model.buffers():
        memo[id(buffer)] = torch.empty_strided(buffer.shape, buffer.stride(), dtype=buffer.dtype, device="meta")
    copied = copy.deepcopy(model, memo)
    for module in copied.modules():
        module._compiled_call_impl = None
    return copied


@contextmanager
def set_aside_lazy_parameters(model: torch.nn.Module) -> Iterator[None]:
    """Remove a model's lazy parameters while the model is moved; then replace them with lazy ones on the device."""
    found: list[tuple[dict[str, Any], str, Any]] = []
    for module in model.modules():
        for held in (module._parameters, module._buffers):
            for name, tensor in held.items():
                if tensor is not None and is_lazy(tensor):
                    found.append((held, name, tensor))
    for held, name, _ in found:
        held[name] = None
    yield
    for held, name, tensor in found:
        held[name] = type(tensor)(tensor.requires_grad, device="meta", dtype=tensor.dtype)


def checkpoint_modules(
    model: torch.nn.Module, chosen: bool | str | Sequence[str], origins: OriginTracker
) -> tuple[str, ...]:
    """Make the chosen modules recompute their forward pass in the backward pass, and return their paths."""
    if not chosen:
        return ()
    if chosen is True:
        paths = _repeated_blocks(model)
    else:
        patterns = (chosen,) if isinstance(chosen, str) else tuple(chosen)
        paths = _outermost_paths(
            path for path, _ in model.named_modules() if any(matches_path(path, p) for p in patterns)
        )
    if not paths:
        raise ModelError(
            f"trace: checkpoint: expected modules of the model, got {shown(chosen)}, which finds none. "
            f"Pass patterns of paths as named_modules() gives them."
        )
    for path in paths:
        module = model.get_submodule(path)
        module.forward = _checkpointed_forward(module.forward, path, origins)
    return paths


def undo_checkpointing(model: torch.nn.Module, paths: Iterable[str]) -> None:
    """Undo :func:`checkpoint_modules` for the modules at the given paths."""
    for path in paths:
        model.get_submodule(path).__dict__.pop("forward", None)


def matches_path(path: str, pattern: str) -> bool:
    """Return whether a module path matches: ``*`` matches within one part, and ``**`` matches any number of parts.

    Examples
    --------
    >>> [matches_path(path, "encoder.layers.*") for path in ("encoder.layers.0", "encoder.layers.0.linear1")]
    [True, False]
    >>> matches_path("encoder.layers.0.linear1", "**.linear*")
    True
    """
    return bool(path) and _match_parts(path.split("."), pattern.split("."))


def _match_parts(parts: list[str], wanted: list[str]) -> bool:
    if not wanted or not parts:
        return not parts and all(w == "**" for w in wanted)
    if wanted[0] == "**":
        return _match_parts(parts, wanted[1:]) or _match_parts(parts[1:], wanted)
    return fnmatch.fnmatchcase(parts[0], wanted[0]) and _match_parts(parts[1:], wanted[1:])


def _outermost_paths(paths: Iterable[str]) -> tuple[str, ...]:
    """Return the paths, given in module order, without those of submodules of other listed modules."""
    found: list[str] = []
    for path in paths:
        if not any(path.startswith(f"{other}.") for other in found):
            found.append(path)
    return tuple(found)


def _checkpointed_forward(forward: Callable[..., Any], path: str, origins: OriginTracker) -> Callable[..., Any]:
    def run_in_module(*args: Any, **kwargs: Any) -> Any:
        with origins.enter_module(path):
            return forward(*args, **kwargs)

    def run_checkpointed(*args: Any, **kwargs: Any) -> Any:
        return checkpoint(run_in_module, *args, use_reentrant=False, **kwargs)

    return run_checkpointed


def _repeated_blocks(model: torch.nn.Module, prefix: str = "") -> tuple[str, ...]:
    """Return the paths of the outermost repeated blocks: two or more children of one list, all of the same class."""
    found: list[str] = []
    for name, child in model.named_children():
        path = f"{prefix}{name}"
        parts = list(child.named_children())
        listed = isinstance(child, (torch.nn.ModuleList, torch.nn.Sequential))
        if listed and len(parts) > 1 and len({type(part) for _, part in parts}) == 1 and list(parts[0][1].children()):
            found += [f"{path}.{part}" for part, _ in parts]
        else:
            found += _repeated_blocks(child, f"{path}.")
    return tuple(found)
