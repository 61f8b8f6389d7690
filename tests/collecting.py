"""Skips the doctest collector for files without doctests: it would import them, which takes a second."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

_PACKAGE = Path(__file__).resolve().parent.parent / "roller"


@functools.cache
def has_doctests(path: Path) -> bool:
    """Whether a file has doctests.

    Examples
    --------
    >>> has_doctests(Path(__file__)), has_doctests(Path(__file__).with_name("conftest.py"))
    (True, False)
    """
    return b">>> " in path.read_bytes()


@pytest.hookimpl(wrapper=True)
def pytest_collect_file(file_path: Path) -> Iterator[None]:
    """Drop the doctest collector of a file without doctests."""
    found: list[Any] = yield
    if file_path.suffix != ".py" or has_doctests(file_path):
        return found
    return [c for c in found if type(c).__name__ != "DoctestModule"]
