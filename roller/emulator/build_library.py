"""Builds translated kernels with g++ and loads them; builds are cached by content.

This is safe for concurrent processes: files are written atomically and named by a hash of all their inputs.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from roller.core.cache_location import cache_folder
from roller.core.trusted_library_cache import (
    UntrustedFileError,
    check_folder_trusted,
    load_cached_library,
    make_trusted_folder,
    refusal,
    warn_untrusted_folder,
    write_library_with_checksum,
)
from roller.errors import EmulationError
from roller_runtime.core.temporary_folders import scratch_folder

#: Environment variable that names the folder for builds.
VARIABLE = "ROLLER_EMULATOR_DIR"

_CXX = Path(__file__).parent / "cxx"
#: Emitted code uses type punning, which CUDA allows; the headers of C++14 compile faster.
_FLAGS = ("-std=gnu++14", "-fPIC", "-fno-strict-aliasing", "-fwrapv", "-pthread", "-w")
_TIMEOUT_S = 300.0


class Region(ctypes.Structure):
    """Mirror of ``emul::Region``: a buffer's address, size in bytes, name and address space."""

    _fields_ = (
        ("base", ctypes.c_void_p),
        ("bytes", ctypes.c_int64),
        ("name", ctypes.c_char_p),
        ("space", ctypes.c_int),
    )


class LaunchStruct(ctypes.Structure):
    """Mirror of ``emul::Launch``; see ``cxx/runtime.h``."""

    _fields_ = (
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("dynamic_shared_bytes", ctypes.c_int64),
        ("order", ctypes.c_int),
        ("workers", ctypes.c_int),
        ("converges", ctypes.c_int),
        ("buffers", ctypes.c_int),
        ("seed", ctypes.c_uint64),
        ("buffer", ctypes.POINTER(Region)),
        ("message", ctypes.c_char_p),
        ("message_bytes", ctypes.c_int64),
        ("chosen", ctypes.POINTER(ctypes.c_uint32)),
        ("chosen_count", ctypes.c_int64),
        ("deadline_s", ctypes.c_double),
        ("limit_s", ctypes.c_double),
        ("used_s", ctypes.c_double),
    )


def default_cache_folder() -> Path:
    """Return the folder for cached builds: ``ROLLER_EMULATOR_DIR`` if set, otherwise a folder in the user's cache."""
    chosen = os.environ.get(VARIABLE, "").strip()
    return Path(chosen).expanduser().absolute() if chosen else cache_folder() / "emulator"


def load_library(
    source: str, check: bool, cache_dir: str | os.PathLike[str] | None = None, *, keep: bool = True
) -> ctypes.CDLL:
    """Return the loaded library of a translated source; build it if it is not cached."""
    unit = _BuildUnit(
        _cache_folder_or_none(cache_dir), source, check, *compiler_path_and_version(os.environ.get("CXX") or "g++")
    )
    return (
        _build_or_load_cached(unit)
        if keep and unit.folder is not None
        else _load_from_bytes(_build_library(unit, keep=False))
    )


def _cache_folder_or_none(chosen: str | os.PathLike[str] | None) -> Path | None:
    """Return the folder for cached builds; if the default one cannot be used, warn once and return ``None``."""
    folder = Path(chosen) if chosen is not None else default_cache_folder()
    try:
        if chosen is None and folder.parent == cache_folder():
            check_folder_trusted(folder.parent)
        return make_trusted_folder(folder)
    except OSError as err:
        if chosen is None:
            warn_untrusted_folder(err)
            return None
        if isinstance(err, UntrustedFileError):
            raise EmulationError(f"emulator: {refusal(err)}") from err
        raise EmulationError(f"emulator: {folder}: cannot write ({err.strerror}). Pass cache_dir=<folder>.") from err


@dataclass(frozen=True)
class _BuildUnit:
    """Source to build, with its cache folder and compiler."""

    folder: Path | None
    source: str
    check: bool
    path: str
    version: str

    @property
    def check_macro_flag(self) -> str:
        return f"-DEMUL_CHECKED={int(self.check)}"


@functools.lru_cache(maxsize=256)
def _build_or_load_cached(unit: _BuildUnit) -> ctypes.CDLL:
    return _load_from_bytes(_build_library(unit))


def _load_from_bytes(image: bytes) -> ctypes.CDLL:
    """Load a library from verified bytes, not from the cached file, which may change while it is mapped."""
    with scratch_folder("emulator-") as own:
        path = Path(own, "kernel.so")
        path.write_bytes(image)
        return ctypes.CDLL(str(path))


@functools.lru_cache(maxsize=1)
def _read_runtime_sources() -> bytes:
    files = sorted(p for p in _CXX.rglob("*") if p.suffix in (".h", ".hpp", ".cc"))
    return b"".join(p.name.encode() + b"\0" + p.read_bytes() for p in files)


@functools.lru_cache(maxsize=4)
def compiler_path_and_version(name: str) -> tuple[str, str]:
    """Return the path of a C++ compiler, and a text with the compiler's version and target machine."""
    path = shutil.which(name)
    if path is None:
        raise EmulationError(
            f"emulator: expected the C++ compiler '{name}', found none on PATH. Install g++ (Debian: apt-get install "
            "g++), or name another one in the environment variable CXX."
        )
    done = subprocess.run([path, "-dumpfullversion", "-dumpmachine"], capture_output=True, text=True, check=False)
    return path, done.stdout


def _build_library(unit: _BuildUnit, keep: bool = True) -> bytes:
    """Return a kernel's library as bytes, from the cache if possible."""
    # Unoptimised checks are slow; -O1 already folds them into the address arithmetic.
    flags = ("-O1" if unit.check else "-O2", "-shared", unit.check_macro_flag)
    return _compile_cached(unit, unit.source, flags, ".so", functools.partial(_build_runtime_object, unit), keep)


def _build_runtime_object(unit: _BuildUnit) -> bytes:
    """Return the object file of the runtime, with which all kernels are linked."""
    return _compile_cached(
        unit, (_CXX / "runtime.cc").read_text(encoding="utf-8"), ("-O2", "-c", unit.check_macro_flag), ".o"
    )


def _compile_cached(
    unit: _BuildUnit,
    source: str,
    flags: tuple[str, ...],
    suffix: str,
    runtime: Callable[[], bytes] | None = None,
    keep: bool = True,
) -> bytes:
    """Return g++'s output file for a source; it is cached under a hash of all inputs."""
    text = "\0".join(("with a checksum", source, *flags, *_FLAGS, unit.path, unit.version)).encode()
    name = hashlib.sha256(text + _read_runtime_sources()).hexdigest()[:32] + suffix
    target = None if unit.folder is None or not keep else unit.folder / name
    found = None if target is None else load_cached_library(target)
    if found is not None:
        return found
    try:
        with scratch_folder("emulator-") as scratch:
            file, linked, out = (Path(scratch, name) for name in ("kernel.cc", "runtime.o", "built" + suffix))
            file.write_text(source, encoding="utf-8")
            if runtime is not None:
                linked.write_bytes(runtime())
            includes = ["-I", str(_CXX), "-I", str(_CXX / "cuda")]
            objects = [str(linked)] if runtime is not None else []
            command = [unit.path, *_FLAGS, *flags, *includes, str(file), *objects, "-o", str(out)]
            done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_TIMEOUT_S)
            if done.returncode != 0:
                raise EmulationError(f"emulator: g++ refused the kernel:\n{_first_compiler_errors(done.stderr)}")
            image = out.read_bytes()
        if target is not None:
            write_library_with_checksum(target, image)
    except OSError as err:
        raise EmulationError(f"emulator: {unit.folder}: cannot build ({err}). Pass cache_dir=<folder>.") from err
    except subprocess.TimeoutExpired as err:
        raise EmulationError(f"emulator: g++ took longer than {_TIMEOUT_S:.0f} s. Emulate a smaller kernel.") from err
    return image


def _first_compiler_errors(text: str) -> str:
    lines = text.splitlines()
    errors = [i for i, line in enumerate(lines) if " error: " in line or "fatal error" in line]
    chosen = [lines[j] for i in errors[:4] for j in range(i, min(i + 3, len(lines)))]
    return "\n".join(chosen or lines[:12])
