"""Finds the project's frames around an operator, outermost first, and the lines that register parameters.

``f_lineno`` of an outer frame is the line of its call, so following ``f_back`` gives the line of each call. Stacks
are interned: operators of one line share one tuple. Files are classified once per code object. Code objects are
distinguished by identity, since those of two files with the same text are equal.
"""

from __future__ import annotations

import os
import site
import sys
import sysconfig
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, TypeVar

import torch
from torch.nn.modules.module import (
    register_module_module_registration_hook,
    register_module_parameter_registration_hook,
)

from roller.insight.trace.trace import Frame, Stack

#: Folders without user code: PyTorch, the standard library, installed packages, and the tracer.
_FOREIGN = tuple(
    str(Path(path).resolve()) + os.sep
    for path in {
        *(sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")),
        *site.getsitepackages(),
        site.getusersitepackages(),
        str(Path(str(torch.__file__)).parent),
        str(Path(__file__).parent),
        str(Path(__file__).parents[2] / "capture"),
    }
)
#: Code of the functions that run the user's code, where stacks end. It is kept alive so that no identity is used twice.
_DRIVERS: dict[int, CodeType] = {}


F = TypeVar("F", bound=Callable[..., Any])


def hide_callers_from_stacks(function: F) -> F:
    """Make stacks end at a function that runs the user's code."""
    code = function.__code__  # type: ignore[attr-defined]
    _DRIVERS[id(code)] = code
    return function


class Stacks:
    """Interned stacks of frames in a project.

    Parameters
    ----------
    project
        Folder to which paths are relative; a file elsewhere keeps its full path.
    """

    def __init__(self, project: Path) -> None:
        self.project = project.resolve()
        #: Maps the file name of a notebook cell's code to the name of the cell; ``""`` for other code.
        self.cell_of: Callable[[str], str] = lambda file: ""
        self._codes: dict[int, tuple[CodeType, str]] = {}
        self._known: dict[tuple[Any, ...], Stack] = {}
        self._labelled: dict[tuple[Any, ...], Stack] = {}

    def current_stack(self, frame: FrameType | None = None) -> Stack:
        """Return the stack of a frame (by default, the caller's) from the user's outermost frame to the innermost."""
        codes, found = self._codes, list[int]()
        frame = frame or sys._getframe(1)
        while frame is not None:
            code = frame.f_code
            number = id(code)
            if number in _DRIVERS:
                break
            known = codes.get(number)
            if known is None:
                known = codes[number] = code, self._project_path(code)
            if known[1]:
                found += (number, frame.f_lineno)
            frame = frame.f_back
        key = tuple(found)
        stack = self._known.get(key)
        if stack is None:
            calls = [(*codes[key[at]], key[at + 1]) for at in range(len(key) - 2, -1, -2)]
            stack = self._known[key] = tuple(Frame(file, line, _qualified_name(code)) for code, file, line in calls)
        return stack

    def stack_with_module_names(self, stack: Stack, depths: Sequence[int], modules: Sequence[str]) -> Stack:
        """Return a stack whose frames name the module instance that runs them."""
        if not modules:
            return stack
        key = (id(stack), *depths, *modules)
        found = self._labelled.get(key)
        if found is None:
            frames = list(stack)
            for depth, module in zip(depths, modules, strict=True):
                frames[depth:] = [frame._replace(module=module) for frame in frames[depth:]]
            whole = tuple(frames)
            found = self._labelled[key] = self._known.setdefault(("labelled", whole), whole)
        return found

    def join_stacks(self, outer: Stack, inner: Stack) -> Stack:
        """Return the interned stack in which the frames of ``inner`` follow those of ``outer``."""
        return self._known.setdefault((outer, inner), outer + inner) if inner else outer

    def is_foreign(self, file: str) -> bool:
        """Return whether a file does not belong to the user."""
        if self.cell_of(file):
            return False
        return file.startswith("<") or str(Path(file).resolve()).startswith(_FOREIGN)

    def file_name_for_messages(self, file: str) -> str:
        """Return the name of a code object's file in messages: the name of the notebook cell, or the file itself."""
        return self.cell_of(file) or file

    def _project_path(self, code: CodeType) -> str:
        """Return the path of the user's file relative to the project; ``""`` for other code."""
        if self.is_foreign(code.co_filename):
            return ""
        if cell := self.cell_of(code.co_filename):
            return cell
        path = Path(code.co_filename).resolve()
        return path.relative_to(self.project).as_posix() if path.is_relative_to(self.project) else str(path)


class Registrations:
    """Records the lines that register parameters and modules.

    Parameters
    ----------
    stacks
        Interned stacks for the lines.
    """

    def __init__(self, stacks: Stacks) -> None:
        self._stacks = stacks
        # A module keeps its identity when its parameters move to a device. It is not kept alive: an object that the
        # project drops, such as the layer that nn.TransformerEncoder copies, also leaves the trace's memory.
        self._lines: dict[int, tuple[weakref.ref[torch.nn.Module], dict[str, Stack]]] = {}

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Record registrations within this context."""
        handles = [
            register_module_parameter_registration_hook(self._record_registration),
            register_module_module_registration_hook(self._record_registration),
        ]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def lines(self, model: torch.nn.Module) -> Mapping[str, Stack]:
        """Return the stack of the line that registers each parameter of a model, if the registration was seen.

        A parameter of a copied module, as in ``nn.TransformerEncoder``, gets the line of the nearest enclosing module.
        """
        found: dict[str, Stack] = {}
        self._collect_lines(model, "", (), found)
        return found

    def _collect_lines(self, module: torch.nn.Module, prefix: str, around: Stack, found: dict[str, Stack]) -> None:
        for name, parameter in module._parameters.items():
            stack = self._registration_stack(module, name) or around
            if stack and parameter is not None:
                found[prefix + name] = stack
        for name, child in module._modules.items():
            if child is not None:
                self._collect_lines(child, f"{prefix}{name}.", self._registration_stack(module, name) or around, found)

    def _registration_stack(self, module: torch.nn.Module, name: str) -> Stack:
        reference, lines = self._lines.get(id(module), (None, {}))
        return lines.get(name, ()) if reference is not None and reference() is module else ()

    def _record_registration(self, module: torch.nn.Module, name: str, value: Any) -> None:
        if value is None:
            return
        known = self._lines.get(id(module))
        if known is None or known[0]() is not module:
            known = self._lines[id(module)] = (weakref.ref(module), {})
        known[1][name] = self._stacks.current_stack()


def _qualified_name(code: CodeType) -> str:
    return str(getattr(code, "co_qualname", code.co_name))  # Python 3.10 has no qualified names
