"""What a target names of the floors above it: loaded when it is used, by nobody who only asks for facts."""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import Any


def module(name: str) -> ModuleType:
    """Return a module, loaded now if it was not; one that another thread is loading is waited for."""
    return importlib.import_module(name)


def loaded(reference: str) -> Any:
    """Return what ``"module:name"`` stands for."""
    home, _, name = reference.partition(":")
    return getattr(module(home), name)
