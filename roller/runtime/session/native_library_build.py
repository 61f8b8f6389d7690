"""Builds small C libraries once, using the compiler that links kernels, and caches them."""

from __future__ import annotations

import contextlib
import hashlib
import platform
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from roller.core.c_compiler import require_compiler
from roller.core.cache_location import cache_folder
from roller.core.trusted_library_cache import (
    UntrustedFileError,
    check_folder_trusted,
    load_cached_library,
    make_trusted_folder,
    warn_untrusted_folder,
    write_library_with_checksum,
)
from roller.errors import BuildError
from roller_runtime.core.temporary_folders import scratch_folder

_FLAGS = ("-O2", "-shared", "-fPIC", "-pthread")


def load_or_build_library(sources: Sequence[Path], compiled: Callable[[], bytes]) -> bytes:
    """Return the cached library of ``sources``; if there is none, return and cache the result of ``compiled``."""
    parts = (
        *(s.read_bytes() for s in sources),
        " ".join(_FLAGS).encode(),
        b"with a checksum",
        platform.machine().encode(),
        sys.platform.encode(),
    )
    path = cache_folder() / "runner" / f"{hashlib.sha256(b'|'.join(parts)).hexdigest()}.so"
    try:
        check_folder_trusted(cache_folder())
        check_folder_trusted(path.parent)
        found = load_cached_library(path)
    except UntrustedFileError as err:
        warn_untrusted_folder(err)
        return compiled()
    except OSError:
        found = None
    if found is not None:
        return found
    image = compiled()
    # The write is atomic; without a usable cache folder the library is compiled each time.
    with contextlib.suppress(OSError):
        make_trusted_folder(cache_folder())
        write_library_with_checksum(make_trusted_folder(path.parent) / path.name, image)
    return image


def compile_library(source: Path, what: str) -> bytes:
    """Build a library from a C file; return its bytes."""
    compiler = require_compiler(what)
    with scratch_folder() as folder:
        library = Path(folder, "native.so")
        command = [compiler, *_FLAGS, "-o", str(library), str(source)]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            raise BuildError(f"{what}: {compiler} failed: {done.stderr.strip()[-500:]}")
        return library.read_bytes()
