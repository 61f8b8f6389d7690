"""Collects the examples of docstrings where there are any: looking for them in every test file takes a second."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

_PACKAGE = Path(__file__).resolve().parent.parent / "roller"


@functools.cache
def has_examples(path: Path) -> bool:
    """Whether a file has examples.

    Examples
    --------
    >>> has_examples(Path(__file__)), has_examples(Path(__file__).with_name("conftest.py"))
    (True, False)
    """
    return b">>> " in path.read_bytes()


@pytest.hookimpl(wrapper=True)
def pytest_collect_file(file_path: Path) -> Iterator[None]:
    """Drop the collector of examples of a file without any: a module of the package is then not imported."""
    found: list[Any] = yield
    if file_path.suffix != ".py" or has_examples(file_path):
        return found
    return [c for c in found if type(c).__name__ != "DoctestModule"]
