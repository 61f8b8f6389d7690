"""Where in the user's model an operator belongs: module, line, phase; of backward operators, those of their forward.

Modules are told by PyTorch's global hooks. Every node of the autograd graph remembers the place it was made in, and
says it when backward comes to it.
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
from roller.insight.trace.pytorch.compat import OuterFunction, backward_functions, number_of, sequence_number, unguarded
from roller.insight.trace.pytorch.stacks import Stacks, driver
from roller.insight.trace.trace import Phase, Stack

_KEY = "roller"


@dataclass(frozen=True)
class OperatorOrigin:
    """Module path, and the project's frames, outermost first."""

    module: str = ""
    stack: Stack = ()


class OriginTracker:
    """Where the model is at the moment.

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
        #: Is called with an optimizer that is about to update its parameters.
        self.before_update: Callable[[torch.optim.Optimizer], None] = lambda optimizer: None
        self.made: WeakSet[torch.optim.Optimizer] = WeakSet()
        self.stepped: set[int] = set()
        #: What a listener has raised, or that the caller has cancelled: the user's code may catch it and go on.
        self.stopped: BaseException | None = None
        self._stack: list[str] = []
        #: How many of the project's frames were there when each of these modules was called.
        self._depths: list[int] = []
        self._node: OperatorOrigin | None = None
        self._is_within_backward = False
        self._thread = get_ident()
        self._is_differentiated = False
        self._backward_stack: Stack = ()
        #: Number of a node -> place of the first operator that was dispatched after the node was made.
        self._dispatched: dict[int, OperatorOrigin] = {}

    @property
    def recomputing(self) -> bool:
        """Whether checkpointing runs a forward again: the engine itself records gradients only where it is told to."""
        if self.phase != "backward" or self._node is None:
            return False
        return bool(self._stack) or (torch.is_grad_enabled() and not self._is_differentiated)

    def here(self) -> OperatorOrigin:
        """Return the place of an operator that is dispatched now."""
        # within the engine, of hooks, functions of the user's own and what runs again
        inner = self.stacks.with_modules(self.stacks.here(), self._depths, self._stack)
        if self.phase == "backward" and self._node is not None:
            module, outer = self._node.module, self._node.stack
            if self.recomputing:
                module = self._stack[-1] if self._stack else ""
            return OperatorOrigin(module, self.stacks.joined(outer, inner))
        return OperatorOrigin(self._stack[-1] if self._stack else "", self.stacks.joined(self._backward_stack, inner))

    def dispatched(self) -> OperatorOrigin:
        """Return the place of an operator that is dispatched now, and note it for the node that was made just before.

        No mode sees calls of ``torch.jit.script`` and ``torch.func``; their nodes are met at a later call.
        """
        place = self.here()
        if self.phase != "backward":
            self._dispatched.setdefault(sequence_number() - 1, place)
        return place

    def remember(self, result: Any) -> None:
        """Give the new nodes of the autograd graph behind a result the place of now."""
        if not torch.is_grad_enabled():  # no node is made, and a view made so must not be asked for one
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
            now = now or self.here()
            place = now if id(node) in own else self._dispatched.get(number_of(node), now)
            metadata[_KEY] = place
            node.register_prehook(partial(self._reach, place))
            todo += [other for other, _ in following if other is not None]

    @contextmanager
    def inside(self, path: str) -> Iterator[None]:
        """Run in a module that is called past its hooks, and leave whatever it left open."""
        depth = len(self._stack)
        self._push(path)
        try:
            yield
        finally:
            del self._stack[depth:], self._depths[depth:]

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Follow modules, backward and optimizers."""
        handles = [
            register_module_forward_pre_hook(self._enter),
            register_module_forward_hook(self._leave, always_call=True),
            register_optimizer_step_pre_hook(self._step),
            register_optimizer_step_post_hook(self._stepped),
        ]
        made = torch.optim.Optimizer.__init__

        def make(optimizer: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> None:
            made(optimizer, *args, **kwargs)
            self.made.add(optimizer)

        kept = [(home, name, getattr(home, name)) for home, name in backward_functions]
        for home, name, function in kept:
            setattr(home, name, self._watched(function))

        def applied(cls: Any, *args: Any, **kwargs: Any) -> Any:  # no mode sees a function of the user's own
            result = super(OuterFunction, cls).apply(*args, **kwargs)  # type: ignore[misc]
            self.remember(result)
            return result

        try:
            with (
                patch.object(torch.optim.Optimizer, "__init__", make),
                # Above `Function.apply`, which may have been looked up before: `square = Square.apply`.
                patch.object(OuterFunction, "apply", classmethod(applied)),
            ):
                yield
        finally:
            for home, name, function in kept:
                setattr(home, name, function)
            for handle in handles:
                handle.remove()

    def _enter(self, module: torch.nn.Module, _: Any) -> None:
        if get_ident() != self._thread:  # no mode sees it; it may be of another program in this process
            if id(module) in self.names:
                path = self.names[id(module)] or "it"
                self.stopped = ModelError(
                    f"trace: expected a model that runs in the thread of the step, got {path} "
                    f"in another one, whose operators are not seen. Call it in the thread of the step."
                )
            return
        if not self._stack and self.phase != "backward":
            self.phase = "forward"
        self._push(self.names.get(id(module), self._stack[-1] if self._stack else ""))

    def _push(self, path: str) -> None:
        self._stack.append(path)
        self._depths.append(len(self.stacks.here()))

    def _leave(self, module: torch.nn.Module, *_: Any) -> None:
        if self._stack and get_ident() == self._thread:
            self._stack.pop()
            self._depths.pop()

    def _reach(self, place: OperatorOrigin, *_: Any) -> None:
        self._node = place

    def _watched(self, function: Any) -> Any:
        body = unguarded(function) or function

        def backward(*args: Any, **kwargs: Any) -> Any:
            kept, self._is_differentiated = self._is_differentiated, _option(function, "create_graph", args, kwargs)
            try:
                result = self._backward(body, *args, **kwargs)
            finally:
                self._is_differentiated = kept
            self.remember(result)  # gradients that have gradients of their own
            return result

        return backward

    @driver
    def _backward(self, body: Any, *args: Any, **kwargs: Any) -> Any:
        before, self.phase, self._node = self.phase, "backward", None
        kept, depths, self._stack, self._depths = self._stack, self._depths, [], []
        around = self._backward_stack
        self._backward_stack = self.stacks.joined(around, self.stacks.here(sys._getframe(1)))
        try:
            return body(*args, **kwargs)
        finally:
            self._backward_stack = around
            # What follows a whole backward (scaling, clipping) belongs to the update; a gradient inside of a model not.
            self.phase = "optimizer" if before != "backward" and not kept else before
            self._node, self._stack, self._depths = None, kept, depths

    def _step(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        self._is_within_backward, self.phase = self.phase == "backward", "optimizer"
        self.optimizers[id(optimizer)] = optimizer
        self.before_update(optimizer)

    def _stepped(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        self.optimizers[id(optimizer)] = optimizer
        self.stepped.add(id(optimizer))
        if self._is_within_backward:  # an update in the hook of a gradient: backward goes on
            self.phase = "backward"


def _option(function: Any, name: str, args: Any, kwargs: Any) -> bool:
    """Return whether a call of a function turns an option on."""
    try:
        return bool(inspect.signature(function).bind(*args, **kwargs).arguments.get(name))
    except TypeError:  # the function itself says what is wrong
        return False
