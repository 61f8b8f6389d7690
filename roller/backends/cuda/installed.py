"""Where NVRTC and CUDA's headers are: pip wheels of CUDA 12 or 13, or a toolkit; nothing is loaded here."""

from __future__ import annotations

import glob
import os
import shutil
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from roller.errors import BuildError

#: Releases whose images this code knows to load, the newest first: it compiles best for what it knows.
MAJORS = (13, 12)
#: A header every kernel of half precision needs, and one of matrix units that not every release ships with the first.
HEADER, MATRIX_HEADER = "cuda_fp16.h", "crt/mma.h"
#: Where wheels put the library and headers, below a folder Python imports from.
_WHEELS = {
    12: ("nvidia/cuda_nvrtc/lib", ("nvidia/cuda_runtime/include", "nvidia/cuda_nvcc/include")),
    13: ("nvidia/cu13/lib", ("nvidia/cu13/include",)),
}
#: Where a toolkit has them, below its root.
_LIBRARIES, _INCLUDES = ("lib64", "lib", "targets/x86_64-linux/lib", "targets/sbsa-linux/lib"), (
    "include", "targets/x86_64-linux/include", "targets/sbsa-linux/include"
)  # fmt: skip
REMEDY = "Install the CUDA wheels with 'pip install roller[cuda12]' (roller[cuda13] for CUDA 13), or a CUDA toolkit"


@dataclass(frozen=True)
class Installed:
    """One NVRTC and the headers for it.

    Parameters
    ----------
    library
        The shared library.
    includes
        Folders with CUDA's headers.
    major
        CUDA release.
    """

    library: Path
    includes: tuple[Path, ...]
    major: int


def every() -> tuple[Installed, ...]:
    """Return all NVRTC to build with: that of the newest release first, of one release that of wheels first."""
    complete: list[Installed] = []
    without: list[Path] = []
    for library, includes, major in _candidates():
        found = _with_headers(includes, major)
        if found is None:
            without.append(library)
        else:
            complete.append(Installed(library, found, major))
    if complete:
        return tuple(complete)
    if without:
        raise BuildError(f"CUDA build: expected the header {HEADER} for {without[0]}, found none. {REMEDY}.")
    names = " or ".join(f"libnvrtc.so.{n}" for n in sorted(MAJORS))
    raise BuildError(f"CUDA build: expected {names} in wheels or a CUDA toolkit, found none. {REMEDY}.")


def _candidates() -> Iterator[tuple[Path, tuple[Path, ...], int]]:
    """Yield libraries with the folders of headers that belong to them, the preferred one first."""
    for major in MAJORS:
        library, includes = _WHEELS[major]
        for root in _import_folders():
            path = root / library / f"libnvrtc.so.{major}"
            if path.is_file():
                yield path, tuple(f / i for f in _import_folders() for i in includes), major
        for root in toolkits():
            for folder in _LIBRARIES:
                path = root / folder / f"libnvrtc.so.{major}"
                if path.is_file():
                    yield path, tuple(root / i for i in _INCLUDES), major


def _with_headers(includes: Sequence[Path], major: int) -> tuple[Path, ...] | None:
    """Return the folders of headers that are there, a toolkit's of the same release for what wheels leave out."""
    present = [p for p in includes if p.is_dir()]
    for wanted in (HEADER, MATRIX_HEADER):
        if not any((p / wanted).is_file() for p in present):
            others = (r / i for r in toolkits() if _release(r) == major for i in _INCLUDES)
            present += [p for p in others if (p / wanted).is_file()][:1]
    return tuple(present) if any((p / HEADER).is_file() for p in present) else None


def toolkits() -> list[Path]:
    """Return the roots of CUDA toolkits: those the environment names, that of PATH's ``nvcc``, the usual places."""
    named = [os.environ[n] for n in ("CUDA_HOME", "CUDA_PATH") if os.environ.get(n)]
    nvcc = shutil.which("nvcc")
    beside = [str(Path(nvcc).resolve().parents[1])] if nvcc else []
    usual = ["/usr/local/cuda", *sorted(glob.glob("/usr/local/cuda-*"), reverse=True), "/opt/cuda"]
    roots = dict.fromkeys(Path(p) for p in (*named, *beside, *usual))
    return [p for p in roots if p.is_dir()]


def _release(root: Path) -> int | None:
    """Return the release of a toolkit by the library it has."""
    return next((n for n in MAJORS for f in _LIBRARIES if (root / f / f"libnvrtc.so.{n}").is_file()), None)


def _import_folders() -> list[Path]:
    return list(dict.fromkeys(Path(entry or ".") for entry in sys.path))
