"""Builds translated kernels with g++ and loads them; everything built is kept by content.

Safe for concurrent processes: a file appears whole or not at all, and its name is the hash of all it came from.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from roller.core.scratch import scratch_folder
from roller.errors import EmulationError

_CXX = Path(__file__).parent / "cxx"
#: Type punning of emitted code is legal in CUDA; the standard 14 headers are the quick ones.
_FLAGS = ("-std=gnu++14", "-fPIC", "-fno-strict-aliasing", "-fwrapv", "-pthread", "-w")
_TIMEOUT_S = 300.0


class Region(ctypes.Structure):
    """Mirror of ``emul::Region``: address, size in bytes, name and space of a buffer."""

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


def default_cache() -> Path:
    """Return the user's cache folder for built kernels."""
    base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return Path(base) / "roller" / "emulator"


def load(
    source: str, check: bool, cache_dir: str | os.PathLike[str] | None = None, *, keep: bool = True
) -> ctypes.CDLL:
    """Return the library of a translated source, built if it is not kept yet.

    Parameters
    ----------
    source
        Output of :func:`roller.emulator.translate.translate`.
    check
        Whether accesses are checked for bounds and alignment.
    cache_dir
        Folder that keeps the libraries; the user's cache folder where ``None``.
    keep
        Whether the kernel's library stays there: one that is run once need not.

    Raises
    ------
    EmulationError
        Where g++ is missing or refuses the source, or the folder cannot be written.
    """
    folder = Path(cache_dir) if cache_dir is not None else default_cache()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as err:
        raise EmulationError(f"emulator: {folder}: cannot write ({err.strerror}). Pass cache_dir=<folder>.") from err
    macro = f"-DEMUL_CHECKED={int(check)}"
    runtime = _built(folder, (_CXX / "runtime.cc").read_text(encoding="utf-8"), ("-O2", "-c", macro), (), ".o")
    # Checks cost most where they are not optimised, and -O1 already folds them into the address arithmetic.
    flags = ("-O1" if check else "-O2", "-shared", macro)
    if keep:
        return _loaded(str(_built(folder, source, flags, (str(runtime),), ".so")))
    with scratch_folder("emulator-") as own:
        return ctypes.CDLL(str(_built(Path(own), source, flags, (str(runtime),), ".so")))


@functools.lru_cache(maxsize=256)
def _loaded(path: str) -> ctypes.CDLL:
    return ctypes.CDLL(path)


@functools.lru_cache(maxsize=1)
def _headers() -> bytes:
    files = sorted(p for p in _CXX.rglob("*") if p.suffix in (".h", ".hpp", ".cc"))
    return b"".join(p.name.encode() + b"\0" + p.read_bytes() for p in files)


@functools.lru_cache(maxsize=4)
def compiler(name: str) -> tuple[str, str]:
    """Return path and version of a C++ compiler.

    Raises
    ------
    EmulationError
        Where it is not installed.
    """
    path = shutil.which(name)
    if path is None:
        raise EmulationError(
            f"emulator: expected the C++ compiler '{name}', found none on PATH. Install g++ (Debian: apt-get install "
            "g++), or name another one in the environment variable CXX."
        )
    done = subprocess.run([path, "-dumpfullversion", "-dumpmachine"], capture_output=True, text=True, check=False)
    return path, done.stdout


def _built(folder: Path, source: str, flags: tuple[str, ...], objects: tuple[str, ...], suffix: str) -> Path:
    """Return the file built from ``source``, from the cache where it is there."""
    path, version = compiler(os.environ.get("CXX") or "g++")
    text = "\0".join((source, *flags, *_FLAGS, path, version)).encode()
    target = folder / (hashlib.sha256(text + _headers()).hexdigest()[:32] + suffix)
    if target.exists():
        return target
    try:
        with tempfile.TemporaryDirectory(dir=folder, prefix=".build-") as scratch:
            unit, out = Path(scratch, "kernel.cc"), Path(scratch, "built" + suffix)
            unit.write_text(source, encoding="utf-8")
            includes = ["-I", str(_CXX), "-I", str(_CXX / "cuda")]
            command = [path, *_FLAGS, *flags, *includes, str(unit), *objects, "-o", str(out)]
            done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_TIMEOUT_S)
            if done.returncode != 0:
                raise EmulationError(f"emulator: g++ refused the kernel:\n{_first_errors(done.stderr)}")
            os.replace(out, target)
    except OSError as err:
        raise EmulationError(f"emulator: {folder}: cannot build there ({err}). Pass cache_dir=<folder>.") from err
    except subprocess.TimeoutExpired as err:
        raise EmulationError(f"emulator: g++ took longer than {_TIMEOUT_S:.0f} s. Emulate a smaller kernel.") from err
    return target


def _first_errors(text: str) -> str:
    lines = text.splitlines()
    errors = [i for i, line in enumerate(lines) if " error: " in line or "fatal error" in line]
    chosen = [lines[j] for i in errors[:4] for j in range(i, min(i + 3, len(lines)))]
    return "\n".join(chosen or lines[:12])
