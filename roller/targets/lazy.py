"""Imports the modules named by a target on first use, so that the target's properties are available without them."""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import Any


def lazy_module(name: str) -> ModuleType:
    """Return a module, imported on first use."""
    return importlib.import_module(name)


def import_object(reference: str) -> Any:
    """Import and return the object that ``"module:name"`` names."""
    home, _, name = reference.partition(":")
    return getattr(lazy_module(home), name)
