"""Builds CUDA artifacts with NVRTC from pip wheels or a toolkit, without a device or TVM."""

from __future__ import annotations

import ctypes
import functools
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from roller.artifact import KernelArtifact
from roller.backends.cuda import find_nvrtc
from roller.errors import BuildError
from roller.targets import check_language


def available() -> str | None:
    """Return ``None`` if kernels can be built here, otherwise the reason."""
    try:
        _load_all_nvrtc()
    except BuildError as err:
        return str(err)
    return None


def build(artifact: KernelArtifact) -> KernelArtifact:
    """Compile all kernels of an artifact to one cubin; the log comes from ``ptxas -v``."""
    # The artifact's build gets the largest registers and spill_bytes (per thread) and static_shared_bytes (per block).
    check_language(artifact.language, ["cuda"], "CUDA build", BuildError, "Build it with its own toolchain.")
    start = time.perf_counter()
    arch = str(artifact.target["arch"])
    binary, log = compile_source(artifact.source, arch)
    terms = dict(artifact.estimate.get("terms", {}))
    blocks = max(1, int(terms.get("blocks_per_unit", 1)))
    spills = resources(log)["spill_bytes"]
    kernels = kernel_resources(log)
    largest = max((x.entry for x in artifact.launches), key=lambda n: kernels[n]["registers"])
    crowded = kernels[largest]["registers"] > terms.get("registers", 255)
    # A kernel that spills, or uses more registers than its estimate assumes, is compiled again with launch bounds, and
    # the artifact carries the source that was built. Fewer resident blocks leave each thread more registers; fewer than
    # the estimate assumes are worth it only to end spills.
    for bound in range(blocks, 0, -1) if spills else [blocks] if crowded else []:
        bounded = _with_launch_bounds(artifact, largest, bound)
        second, second_log = compile_source(bounded.source, arch)
        left = resources(second_log)["spill_bytes"]
        if left < spills or (left == 0 and crowded):
            artifact, binary, log, spills = bounded, second, second_log, left
        if not left:
            break
    return artifact.with_binary(binary, **resources(log), seconds=time.perf_counter() - start, log=log)


def _with_launch_bounds(artifact: KernelArtifact, kernel: str, blocks: int) -> KernelArtifact:
    """Set one kernel's launch bounds, so that ptxas limits its registers to what ``blocks`` resident blocks allow."""
    entry = re.escape(kernel)
    pattern = rf"__launch_bounds__\((\d+)(?:, \d+)?\)(?= {entry}\()"
    source = re.sub(pattern, rf"__launch_bounds__(\1, {blocks})", artifact.launches[0].source)
    prepare = artifact.prepare and replace(artifact.prepare, source=source)
    launches = tuple(replace(x, source=source) for x in artifact.launches)
    return replace(artifact, launches=launches, prepare=prepare)


def kernel_resources(log: str) -> dict[str, dict[str, int]]:
    r"""Return each kernel's registers per thread, spilled bytes per thread and static scratchpad bytes per block.

    Examples
    --------
    >>> kernel_resources("Compiling entry function 'k' for 'sm_70'\nUsed 62 registers, 512 bytes smem")
    {'k': {'registers': 62, 'spill_bytes': 0, 'static_shared_bytes': 512}}
    """
    first, *parts = re.split(r"Compiling entry function '(\w+)'", log)
    texts = dict(zip(parts[::2], parts[1::2], strict=True)) or {"": first}

    def one(pattern: str, text: str) -> int:
        found = re.search(pattern, text)
        return sum(int(n) for n in found.groups()) if found else 0

    return {
        name: {
            "registers": one(r"Used (\d+) registers", text),
            "spill_bytes": one(r"(\d+) bytes spill stores, (\d+) bytes spill loads", text),
            "static_shared_bytes": one(r"(\d+) bytes smem", text),
        }
        for name, text in texts.items()
    }


def resources(log: str) -> dict[str, int]:
    r"""Return the largest use of registers, spills and static scratchpad by any kernel in a ``ptxas -v`` log.

    Examples
    --------
    >>> resources("0 bytes stack frame, 8 bytes spill stores, 8 bytes spill loads\nUsed 62 registers, 512 bytes smem")
    {'registers': 62, 'spill_bytes': 16, 'static_shared_bytes': 512}
    """
    kernels = kernel_resources(log).values()
    return {key: max(k[key] for k in kernels) for key in ("registers", "spill_bytes", "static_shared_bytes")}


def compile_source(source: str, arch: str, options: Sequence[str] = ()) -> tuple[bytes, str]:
    """Compile CUDA C to a cubin; return the cubin and the compiler's log."""
    return _compile_with_nvrtc(source, arch, options, ("nvrtcGetCUBINSize", "nvrtcGetCUBIN"))


def compile_to_ptx(source: str, arch: str, options: Sequence[str] = ()) -> str:
    """Compile CUDA C to PTX for an architecture (``"sm_70"``); PTX is text and needs no toolkit to read."""
    virtual = arch.replace("sm_", "compute_")
    image, _ = _compile_with_nvrtc(source, virtual, options, ("nvrtcGetPTXSize", "nvrtcGetPTX"))
    return image.rstrip(b"\0").decode()


def _compile_with_nvrtc(source: str, arch: str, options: Sequence[str], get: tuple[str, str]) -> tuple[bytes, str]:
    """Compile CUDA C; return the image, which the NVRTC functions ``get`` (size, contents) fetch, and the log."""
    chosen = _nvrtc_for_architecture(arch)
    lib, includes = chosen.lib, [f"-I{folder}" for folder in chosen.includes]
    flags = [f"--gpu-architecture={arch}", *includes, "-default-device", "-w", "--ptxas-options=-v", *options]
    program = ctypes.c_void_p()
    _check_nvrtc_status(
        lib, lib.nvrtcCreateProgram(ctypes.byref(program), source.encode(), b"kernel.cu", 0, None, None)
    )
    try:
        args = (ctypes.c_char_p * len(flags))(*(f.encode() for f in flags))
        status = lib.nvrtcCompileProgram(program, len(flags), args)
        log = (
            _read_compiler_output(lib, lib.nvrtcGetProgramLogSize, lib.nvrtcGetProgramLog, program)
            .rstrip(b"\0")
            .decode()
        )
        if status:
            if not chosen.supports_architecture(arch):
                known = ", ".join(dict.fromkeys(a for c in _load_all_nvrtc() for a in c.architectures))
                raise BuildError(
                    f"CUDA build: expected an architecture this NVRTC builds for ({known}), got '{arch}'. "
                    f"The source is CUDA C all the same: build it with a CUDA release that knows {arch}."
                )
            raise BuildError(f"CUDA build for {arch}: {_nvrtc_error_text(lib, status)}\n{log.strip()}")
        return _read_compiler_output(lib, getattr(lib, get[0]), getattr(lib, get[1]), program), log
    finally:
        lib.nvrtcDestroyProgram(ctypes.byref(program))


def _read_compiler_output(lib: Any, size: Any, get: Any, program: ctypes.c_void_p) -> bytes:
    n = ctypes.c_size_t()
    _check_nvrtc_status(lib, size(program, ctypes.byref(n)))
    out = ctypes.create_string_buffer(n.value)
    _check_nvrtc_status(lib, get(program, out))
    return out.raw


def _supported_architectures(lib: Any) -> list[str]:
    """Return the architectures that NVRTC builds for, oldest first."""
    n = ctypes.c_int()
    _check_nvrtc_status(lib, lib.nvrtcGetNumSupportedArchs(ctypes.byref(n)))
    numbers = (ctypes.c_int * n.value)()
    _check_nvrtc_status(lib, lib.nvrtcGetSupportedArchs(numbers))
    return [f"sm_{number}" for number in numbers]


def _nvrtc_error_text(lib: Any, status: int) -> str:
    lib.nvrtcGetErrorString.restype = ctypes.c_char_p
    return str(lib.nvrtcGetErrorString(status).decode())


def _check_nvrtc_status(lib: Any, status: int) -> None:
    if status:
        raise BuildError(f"CUDA build: NVRTC failed: {_nvrtc_error_text(lib, status)}. {find_nvrtc.REMEDY}.")


@dataclass(frozen=True)
class _Nvrtc:
    """Loaded NVRTC with its header folders, CUDA release and architectures (oldest first)."""

    lib: Any
    includes: tuple[Path, ...]
    major: int
    architectures: tuple[str, ...]

    def supports_architecture(self, arch: str) -> bool:
        """Return whether NVRTC builds for an architecture, real or virtual; ``sm_90a`` is a variant of ``sm_90``."""
        return arch.replace("compute_", "sm_").rstrip("af") in self.architectures


def _nvrtc_for_architecture(arch: str) -> _Nvrtc:
    """Return the newest NVRTC that builds for an architecture; if none does, return one, whose build will say why."""
    # Releases drop old architectures and add new ones. NVRTC releases whose images the driver can load come first.
    driver = _driver_cuda_release()
    found = sorted(_load_all_nvrtc(), key=lambda c: driver is not None and c.major > driver)
    return next((c for c in found if c.supports_architecture(arch)), found[0])


@functools.cache
def _driver_cuda_release() -> int | None:
    """Return the CUDA release of this machine's driver without opening a device; ``None`` if there is no driver."""
    version = ctypes.c_int()
    try:
        status = _load_nvrtc_library(Path("libcuda.so.1")).cuDriverGetVersion(ctypes.byref(version))
    except (OSError, AttributeError):
        return None
    return version.value // 1000 if status == 0 and version.value else None


@functools.cache
def _load_all_nvrtc() -> tuple[_Nvrtc, ...]:
    """Load every NVRTC on this machine, newest first, and skip those that fail to load; raise an error if all do."""
    loaded: list[_Nvrtc] = []
    failures: list[BuildError] = []
    for place in find_nvrtc.find_all_nvrtc():
        try:
            lib = _load_nvrtc_library(place.library)
            loaded.append(_Nvrtc(lib, place.includes, place.major, tuple(_supported_architectures(lib))))
        except (OSError, AttributeError) as err:
            failures.append(BuildError(f"CUDA build: cannot load {place.library} ({err}). {find_nvrtc.REMEDY}."))
    if not loaded:
        raise failures[0]
    return tuple(loaded)


def _load_nvrtc_library(path: Path) -> Any:
    return ctypes.CDLL(str(path))
