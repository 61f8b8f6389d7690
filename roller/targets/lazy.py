"""What a target names of the floors above it: loaded when it is used, by nobody who only asks for facts."""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import Any


def module(name: str) -> ModuleType:
    """Return a module, loaded now if it was not."""
    return sys.modules.get(name) or importlib.import_module(name)


def loaded(reference: str) -> Any:
    """Return what ``"module:name"`` stands for."""
    home, _, name = reference.partition(":")
    return getattr(module(home), name)
