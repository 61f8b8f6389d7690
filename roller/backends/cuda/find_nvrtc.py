"""Finds NVRTC and CUDA's headers in pip wheels of CUDA 12 or 13, or in a toolkit, without loading them."""

from __future__ import annotations

import glob
import os
import shutil
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from roller.errors import BuildError

#: Supported CUDA releases, newest first, because the newest compiles best for the architectures it knows.
MAJORS = (13, 12)
#: Headers for half precision and for matrix units; some releases ship the header for matrix units separately.
HEADER, MATRIX_HEADER = "cuda_fp16.h", "crt/mma.h"
#: Folders of the library and headers in wheels, relative to a folder of ``sys.path``.
_WHEELS = {
    12: ("nvidia/cuda_nvrtc/lib", ("nvidia/cuda_runtime/include", "nvidia/cuda_nvcc/include")),
    13: ("nvidia/cu13/lib", ("nvidia/cu13/include",)),
}
#: Folders of the library and headers in a toolkit, relative to its root.
_LIBRARIES, _INCLUDES = ("lib64", "lib", "targets/x86_64-linux/lib", "targets/sbsa-linux/lib"), (
    "include", "targets/x86_64-linux/include", "targets/sbsa-linux/include"
)  # fmt: skip
REMEDY = "Install the CUDA wheels with 'pip install roller[cuda12]' (roller[cuda13] for CUDA 13), or a CUDA toolkit"


@dataclass(frozen=True)
class NvrtcInstallation:
    """NVRTC library with its header folders and its CUDA release."""

    library: Path
    includes: tuple[Path, ...]
    major: int


def find_all_nvrtc() -> tuple[NvrtcInstallation, ...]:
    """Return all usable NVRTC libraries: newest release first, wheels before toolkits of the same release."""
    complete: list[NvrtcInstallation] = []
    without: list[Path] = []
    for library, includes, major in _nvrtc_candidates():
        found = _existing_header_folders(includes, major)
        if found is None:
            without.append(library)
        else:
            complete.append(NvrtcInstallation(library, found, major))
    if complete:
        return tuple(complete)
    if without:
        raise BuildError(f"CUDA build: expected the header {HEADER} for {without[0]}, found none. {REMEDY}.")
    names = " or ".join(f"libnvrtc.so.{n}" for n in sorted(MAJORS))
    raise BuildError(f"CUDA build: expected {names} in wheels or a CUDA toolkit, found none. {REMEDY}.")


def _nvrtc_candidates() -> Iterator[tuple[Path, tuple[Path, ...], int]]:
    """Yield possible installations as ``(library, header folders, CUDA release)``, preferred ones first."""
    for major in MAJORS:
        library, includes = _WHEELS[major]
        for root in _import_path_folders():
            path = root / library / f"libnvrtc.so.{major}"
            if path.is_file():
                yield path, tuple(f / i for f in _import_path_folders() for i in includes), major
        for root in find_cuda_toolkits():
            for folder in _LIBRARIES:
                path = root / folder / f"libnvrtc.so.{major}"
                if path.is_file():
                    yield path, tuple(root / i for i in _INCLUDES), major


def _existing_header_folders(includes: Sequence[Path], major: int) -> tuple[Path, ...] | None:
    """Return the existing header folders, completed from a toolkit of the same release; ``None`` without ``HEADER``."""
    present = [p for p in includes if p.is_dir()]
    for wanted in (HEADER, MATRIX_HEADER):
        if not any((p / wanted).is_file() for p in present):
            others = (r / i for r in find_cuda_toolkits() if _cuda_release_of_toolkit(r) == major for i in _INCLUDES)
            present += [p for p in others if (p / wanted).is_file()][:1]
    return tuple(present) if any((p / HEADER).is_file() for p in present) else None


def find_cuda_toolkits() -> list[Path]:
    """Return the roots of CUDA toolkits: from the environment, from ``nvcc`` on PATH, and from the usual locations."""
    named = [os.environ[n] for n in ("CUDA_HOME", "CUDA_PATH") if os.environ.get(n)]
    nvcc = shutil.which("nvcc")
    beside = [str(Path(nvcc).resolve().parents[1])] if nvcc else []
    usual = ["/usr/local/cuda", *sorted(glob.glob("/usr/local/cuda-*"), reverse=True), "/opt/cuda"]
    roots = dict.fromkeys(Path(p) for p in (*named, *beside, *usual))
    return [p for p in roots if p.is_dir()]


def _cuda_release_of_toolkit(root: Path) -> int | None:
    """Return a toolkit's CUDA release, read from its library's name; ``None`` if it has no supported one."""
    return next((n for n in MAJORS for f in _LIBRARIES if (root / f / f"libnvrtc.so.{n}").is_file()), None)


def _import_path_folders() -> list[Path]:
    return list(dict.fromkeys(Path(entry or ".") for entry in sys.path))
