"""Finds the C compiler, which links CPU kernels and compiles the code that runs whole models."""

from __future__ import annotations

import os
import shlex
import shutil

from roller.errors import BuildError

#: Commands to try, in this order, if ``CC`` names none that exists.
COMPILERS = ("cc", "gcc", "clang", "g++", "c++")


def find_compiler() -> str | None:
    """Return the path of the C compiler in ``CC``, else of the first of :data:`COMPILERS` found, else ``None``."""
    words = shlex.split(os.environ.get("CC", ""))
    return next((path for path in map(shutil.which, (*words[:1], *COMPILERS)) if path), None)


def require_compiler(what: str) -> str:
    """Return the path of a C compiler; raise ``BuildError`` if there is none."""
    found = find_compiler()
    if found is None:
        raise BuildError(
            f"{what}: expected a C compiler ({', '.join(COMPILERS)}) on PATH, found none. Install one (Debian, Ubuntu: "
            "apt-get install gcc; Fedora: dnf install gcc; macOS: xcode-select --install; conda: conda install "
            "c-compiler), or set CC; running a saved kernel or model needs none."
        )
    return found
