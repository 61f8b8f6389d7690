"""Imports without slow optional dependencies."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType


class _PackageHider(MetaPathFinder):
    """Import finder that hides one package from the thread that created it."""

    def __init__(self, package: str) -> None:
        self._package, self._thread = package, threading.get_ident()

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Raise an error for the hidden package; for any other package, return ``None`` to defer to other finders."""
        if fullname == self._package and threading.get_ident() == self._thread:
            raise ModuleNotFoundError(f"{fullname} is left out of this import", name=fullname)
        return None


@contextmanager
def import_without_package(package: str) -> Iterator[None]:
    """Import modules without an optional dependency; other threads, later imports and a loaded package are unaffected.

    >>> with import_without_package("this"):
    ...     import this
    Traceback (most recent call last):
    ModuleNotFoundError: this is left out of this import
    """
    if package in sys.modules:
        yield
        return
    refusing = _PackageHider(package)
    sys.meta_path.insert(0, refusing)
    try:
        yield
    finally:
        sys.meta_path.remove(refusing)
