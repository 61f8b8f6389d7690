"""Builds the native runner's library, or takes it from the cache."""

from __future__ import annotations

import functools
from pathlib import Path

from roller.runtime.session.native_library_build import compile_library, load_or_build_library

SOURCE, POOL, GATHERS = (
    Path(__file__).with_name(name) for name in ("native_runner.c", "thread_pool.h", "gather_rows.h")
)


def load_or_build_runner_image() -> bytes:
    """Return the runner's library, newly compiled or from the cache."""
    return load_or_build_library((SOURCE, POOL, GATHERS), _compile_runner)


@functools.cache
def _compile_runner() -> bytes:
    return compile_library(SOURCE, "the native runner")
