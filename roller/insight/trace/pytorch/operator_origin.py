"""Finds an operator's origin in the user's model; a backward operator has that of its forward operator.

Modules are tracked by PyTorch's global hooks. Every node in the autograd graph stores the origin of its forward
operator, which is the current origin while the backward pass runs the node.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from threading import get_ident
from typing import Any
from unittest.mock import patch
from weakref import WeakSet

import torch
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from roller.errors import ModelError
from roller.insight.trace.pytorch.compat import (
    OuterFunction,
    backward_functions,
    next_sequence_number,
    node_sequence_number,
    without_override_check,
)
from roller.insight.trace.pytorch.project_stack_frames import Stacks, hide_callers_from_stacks
from roller.insight.trace.trace import Phase, Stack

_KEY = "roller"


@dataclass(frozen=True)
class OperatorOrigin:
    """Module path, the project's frames (outermost first), and whether the operator runs outside the root module."""

    module: str = ""
    stack: Stack = ()
    outside: bool = False


class OriginTracker:
    """Tracks the current module, phase and autograd node.

    Parameters
    ----------
    names
        Maps the ``id`` of a module to the module's path.
    stacks
        Interned stacks for the frames.
    """

    def __init__(self, names: Mapping[int, str], stacks: Stacks) -> None:
        self.names = names
        self.stacks = stacks
        self.phase: Phase = "forward"
        self.optimizers: dict[int, torch.optim.Optimizer] = {}
        #: Called with an optimizer that is about to update its parameters.
        self.before_update: Callable[[torch.optim.Optimizer], None] = lambda optimizer: None
        #: Called with a module that no other module calls, before its forward pass, unless checkpointing repeats it.
        self.before_root_call: Callable[[torch.nn.Module, Any], None] = lambda module, inputs: None
        self.made: WeakSet[torch.optim.Optimizer] = WeakSet()
        self.stepped: set[int] = set()
        #: A listener's exception or the caller's cancellation, which the user's code may catch before going on.
        self.stopped: BaseException | None = None
        self._stack: list[str] = []
        #: Number of the project's frames on the call stack when each module in ``_stack`` was called.
        self._depths: list[int] = []
        #: Whether each module in ``_stack`` is the root module or runs within its forward pass.
        self._within: list[bool] = []
        self._node: OperatorOrigin | None = None
        self._is_within_backward = False
        self._thread = get_ident()
        self._is_differentiated = False
        self._backward_stack: Stack = ()
        #: Maps the sequence number of a node to the origin of the first operator dispatched after its creation.
        self._dispatched: dict[int, OperatorOrigin] = {}

    @property
    def is_recomputing(self) -> bool:
        """Whether checkpointing recomputes a forward pass; backward itself records gradients only with create_graph."""
        if self.phase != "backward" or self._node is None:
            return False
        return bool(self._stack) or (torch.is_grad_enabled() and not self._is_differentiated)

    def current_origin(self) -> OperatorOrigin:
        """Return the origin of an operator that is being dispatched."""
        # within the engine: hooks, the user's functions, recomputed forward passes
        inner = self.stacks.stack_with_module_names(self.stacks.current_stack(), self._depths, self._stack)
        if self.phase == "backward" and self._node is not None:
            module, outer = self._node.module, self._node.stack
            if self.is_recomputing:
                module = self._stack[-1] if self._stack else ""
            return OperatorOrigin(module, self.stacks.join_stacks(outer, inner), self._node.outside)
        module, outside = self._stack[-1] if self._stack else "", not (self._within and self._within[-1])
        return OperatorOrigin(module, self.stacks.join_stacks(self._backward_stack, inner), outside)

    def store_and_return_origin(self) -> OperatorOrigin:
        """Return the origin of the operator being dispatched, and store it for the node created just before.

        No mode sees calls from ``torch.jit.script`` and ``torch.func``; :meth:`store_in_autograd_graph` finds their
        nodes later.
        """
        place = self.current_origin()
        if self.phase != "backward":
            self._dispatched.setdefault(next_sequence_number() - 1, place)
        return place

    def store_in_autograd_graph(self, result: Any) -> None:
        """Store the current origin in the new autograd nodes of a result."""
        if not torch.is_grad_enabled():  # no node is created, and reading grad_fn of a view would fail
            return
        tensors = result if isinstance(result, (tuple, list)) else (result,)
        todo = [tensor.grad_fn for tensor in tensors if isinstance(tensor, torch.Tensor) and tensor.grad_fn is not None]
        now = None
        own = {id(node) for node in todo}
        while todo:
            node = todo.pop()
            following = node.next_functions
            metadata: Any = node.metadata  # a mapping, whatever its annotation says
            if not following or _KEY in metadata:  # a leaf, or known
                continue
            now = now or self.current_origin()
            place = now if id(node) in own else self._dispatched.get(node_sequence_number(node), now)
            metadata[_KEY] = place
            node.register_prehook(partial(self._before_backward_node, place))
            todo += [other for other, _ in following if other is not None]

    @contextmanager
    def enter_module(self, path: str) -> Iterator[None]:
        """Enter a module that is called without its hooks; at the end, leave it and its submodules."""
        depth = len(self._stack)
        self._push_module(path)
        try:
            yield
        finally:
            del self._stack[depth:], self._depths[depth:], self._within[depth:]

    @contextmanager
    def install_tracking_hooks(self) -> Iterator[None]:
        """Install the hooks that track modules, backward passes and optimizers."""
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

        def apply_and_store(cls: Any, *args: Any, **kwargs: Any) -> Any:  # no mode sees a function of the user's own
            result = super(OuterFunction, cls).apply(*args, **kwargs)  # type: ignore[misc]
            self.store_in_autograd_graph(result)
            return result

        try:
            with (
                patch.object(torch.optim.Optimizer, "__init__", init_optimizer),
                # Above `Function.apply`, which may have been looked up before: `square = Square.apply`.
                patch.object(OuterFunction, "apply", classmethod(apply_and_store)),
            ):
                yield
        finally:
            for home, name, function in kept:
                setattr(home, name, function)
            for handle in handles:
                handle.remove()

    def _before_module(self, module: torch.nn.Module, inputs: Any) -> None:
        if get_ident() != self._thread:  # no mode sees it; it may belong to another program in this process
            if id(module) in self.names:
                path = self.names[id(module)] or "it"
                self.stopped = ModelError(
                    f"trace: expected a model that runs in the thread of the step, got {path} "
                    f"in another one, whose operators are not seen. Call it in the thread of the step."
                )
            return
        if not self._stack and self.phase != "backward":
            self.before_root_call(module, inputs)
            self.phase = "forward"
        outer = self._stack[-1] if self._stack else ""
        self._push_module(self.names.get(id(module), outer), is_root=self.names.get(id(module)) == "")

    def _push_module(self, path: str, is_root: bool = False) -> None:
        self._stack.append(path)
        self._within.append(is_root or (bool(self._within) and self._within[-1]))
        self._depths.append(len(self.stacks.current_stack()))

    def _after_module(self, module: torch.nn.Module, *_: Any) -> None:
        if self._stack and get_ident() == self._thread:
            self._stack.pop()
            self._depths.pop()
            self._within.pop()

    def _before_backward_node(self, place: OperatorOrigin, *_: Any) -> None:
        self._node = place

    def _wrap_backward(self, function: Any) -> Any:
        body = without_override_check(function) or function

        def tracked_backward(*args: Any, **kwargs: Any) -> Any:
            kept, self._is_differentiated = (
                self._is_differentiated,
                _call_turns_option_on(function, "create_graph", args, kwargs),
            )
            try:
                result = self._run_backward(body, *args, **kwargs)
            finally:
                self._is_differentiated = kept
            self.store_in_autograd_graph(result)  # gradients that have gradients of their own
            return result

        return tracked_backward

    @hide_callers_from_stacks
    def _run_backward(self, body: Any, *args: Any, **kwargs: Any) -> Any:
        before, self.phase, self._node = self.phase, "backward", None
        kept, self._stack, self._depths, self._within = (self._stack, self._depths, self._within), [], [], []
        around = self._backward_stack
        self._backward_stack = self.stacks.join_stacks(around, self.stacks.current_stack(sys._getframe(1)))
        try:
            return body(*args, **kwargs)
        finally:
            self._backward_stack = around
            # Operators after a whole backward pass (unscaling, clipping) belong to the update, but those after a
            # gradient computed within a model do not.
            self.phase = "optimizer" if before != "backward" and not kept[0] else before
            self._node, (self._stack, self._depths, self._within) = None, kept

    def _before_optimizer_step(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        self._is_within_backward, self.phase = self.phase == "backward", "optimizer"
        self.optimizers[id(optimizer)] = optimizer
        self.before_update(optimizer)

    def _after_optimizer_step(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        self.optimizers[id(optimizer)] = optimizer
        self.stepped.add(id(optimizer))
        if self._is_within_backward:  # an update in the hook of a gradient: the backward pass goes on
            self.phase = "backward"


def _call_turns_option_on(function: Any, name: str, args: Any, kwargs: Any) -> bool:
    """Return whether a function call turns an option on."""
    try:
        return bool(inspect.signature(function).bind(*args, **kwargs).arguments.get(name))
    except TypeError:  # the function itself reports the error
        return False
