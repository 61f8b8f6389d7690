"""Origin of an operator in the user's model: module, line and phase; for backward operators those of their forward.

Modules are tracked by PyTorch's global hooks. Every node of the autograd graph stores the origin of its forward, which
is current while backward runs the node.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any
from unittest.mock import patch
from weakref import WeakSet

import torch
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from roller.insight.trace.pytorch.compat import backward_functions, without_override_check
from roller.insight.trace.pytorch.stacks import Stacks, driver
from roller.insight.trace.trace import Phase, Stack

_KEY = "roller"


@dataclass(frozen=True)
class OperatorOrigin:
    """Module path, and the project's frames, outermost first."""

    module: str = ""
    stack: Stack = ()


class OriginTracker:
    """Tracks the current module, phase and autograd node.

    Parameters
    ----------
    names
        ``id`` of a module -> its path.
    stacks
        Interns the frames.
    """

    def __init__(self, names: Mapping[int, str], stacks: Stacks) -> None:
        self.names = names
        self.stacks = stacks
        self.phase: Phase = "forward"
        self.optimizers: dict[int, torch.optim.Optimizer] = {}
        #: Called with an optimizer that is about to update its parameters.
        self.before_update: Callable[[torch.optim.Optimizer], None] = lambda optimizer: None
        self.made: WeakSet[torch.optim.Optimizer] = WeakSet()
        self.stepped: set[int] = set()
        self._stack: list[str] = []
        self._node: OperatorOrigin | None = None
        self._is_within_backward = False
        self._backward_stack: Stack = ()

    @property
    def is_recomputing(self) -> bool:
        """Whether checkpointing recomputes a forward: the engine itself computes without recording gradients."""
        return self.phase == "backward" and self._node is not None and (bool(self._stack) or torch.is_grad_enabled())

    def current_origin(self) -> OperatorOrigin:
        """Return the origin of an operator that is dispatched now."""
        inner = self.stacks.here()  # within the engine: hooks, the user's functions, recomputed forwards
        if self.phase == "backward" and self._node is not None:
            module, outer = self._node.module, self._node.stack
            if self.is_recomputing:
                module = self._stack[-1] if self._stack else ""
            return OperatorOrigin(module, self.stacks.joined(outer, inner))
        return OperatorOrigin(self._stack[-1] if self._stack else "", self.stacks.joined(self._backward_stack, inner))

    def store_in_autograd_graph(self, result: Any) -> None:
        """Store the current origin in the new nodes of the autograd graph of a result."""
        if not torch.is_grad_enabled():  # no node is created, and reading grad_fn of a view would fail
            return
        tensors = result if isinstance(result, (tuple, list)) else (result,)
        todo = [tensor.grad_fn for tensor in tensors if isinstance(tensor, torch.Tensor) and tensor.grad_fn is not None]
        place = None
        while todo:
            node = todo.pop()
            following = node.next_functions
            metadata: Any = node.metadata  # a mapping, whatever its annotation says
            if not following or _KEY in metadata:  # a leaf, or known
                continue
            place = place or self.current_origin()
            metadata[_KEY] = place
            node.register_prehook(partial(self._before_backward_node, place))
            todo += [other for other, _ in following if other is not None]

    @contextmanager
    def enter_module(self, path: str) -> Iterator[None]:
        """Enter a module that is called without its hooks, and leave it with its submodules."""
        depth = len(self._stack)
        self._stack.append(path)
        try:
            yield
        finally:
            del self._stack[depth:]

    @contextmanager
    def track(self) -> Iterator[None]:
        """Install the hooks that track modules, backward and optimizers."""
        handles = [
            register_module_forward_pre_hook(self._before_module),
            register_module_forward_hook(self._after_module, always_call=True),
            register_optimizer_step_pre_hook(self._before_optimizer_step),
            register_optimizer_step_post_hook(self._after_optimizer_step),
        ]
        made = torch.optim.Optimizer.__init__

        def init_optimizer(optimizer: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> None:
            made(optimizer, *args, **kwargs)
            self.made.add(optimizer)

        kept = [(home, name, getattr(home, name)) for home, name in backward_functions]
        for home, name, function in kept:
            setattr(home, name, self._wrap_backward(function))
        apply = torch.autograd.Function.__dict__["apply"].__func__

        def apply_and_store(cls: Any, *args: Any, **kwargs: Any) -> Any:  # no mode sees a function of the user's own
            result = apply(cls, *args, **kwargs)
            self.store_in_autograd_graph(result)
            return result

        try:
            with (
                patch.object(torch.optim.Optimizer, "__init__", init_optimizer),
                patch.object(torch.autograd.Function, "apply", classmethod(apply_and_store)),
            ):
                yield
        finally:
            for home, name, function in kept:
                setattr(home, name, function)
            for handle in handles:
                handle.remove()

    def _before_module(self, module: torch.nn.Module, _: Any) -> None:
        if not self._stack and self.phase != "backward":
            self.phase = "forward"
        self._stack.append(self.names.get(id(module), self._stack[-1] if self._stack else ""))

    def _after_module(self, module: torch.nn.Module, *_: Any) -> None:
        if self._stack:
            self._stack.pop()

    def _before_backward_node(self, place: OperatorOrigin, *_: Any) -> None:
        self._node = place

    def _wrap_backward(self, function: Any) -> Any:
        body = without_override_check(function) or function

        def backward(*args: Any, **kwargs: Any) -> Any:
            return self._run_backward(body, *args, **kwargs)

        return backward

    @driver
    def _run_backward(self, body: Any, *args: Any, **kwargs: Any) -> Any:
        before, self.phase, self._node = self.phase, "backward", None
        kept, self._stack = self._stack, []
        around = self._backward_stack
        self._backward_stack = self.stacks.joined(around, self.stacks.here(sys._getframe(1)))
        try:
            return body(*args, **kwargs)
        finally:
            self._backward_stack = around
            # Operators after a whole backward (unscaling, clipping) belong to the update, but not after a gradient
            # computed within a model.
            self.phase = "optimizer" if before != "backward" and not kept else before
            self._node, self._stack = None, kept

    def _before_optimizer_step(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        self._is_within_backward, self.phase = self.phase == "backward", "optimizer"
        self.optimizers[id(optimizer)] = optimizer
        self.before_update(optimizer)

    def _after_optimizer_step(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        self.optimizers[id(optimizer)] = optimizer
        self.stepped.add(id(optimizer))
        if self._is_within_backward:  # an update in the hook of a gradient: backward goes on
            self.phase = "backward"
