"""Collects a machine's versions, compilers, devices and cache for bug reports, without personal data."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from roller.core.c_compiler import find_compiler
from roller.errors import RollerError
from roller.hardware import THIS_MACHINE, load_spec
from roller.hardware.detect_cpu_spec import detect_cpu_without_probe
from roller.hardware.probed_profile_location import profile_path
from roller.runtime.cache import KernelCache
from roller_runtime.core.processor_features_and_count import usable_processors

#: Packages that kernels and models depend on.
PACKAGES = (
    "numpy", "apache-tvm", "apache-tvm-ffi", "ml_dtypes", "onnx", "onnxruntime", "onnxscript", "torch", "cupy-cuda12x",
    "cupy-cuda13x", "nvidia-cuda-nvrtc-cu12", "nvidia-cuda-nvrtc", "distributed", "typer", "rich", "pyyaml",
)  # fmt: skip
#: Programs that list GPUs, with arguments that omit serial numbers.
_GPU_TOOLS: dict[str, tuple[str, ...]] = {
    "nvidia-smi": ("--query-gpu=name,driver_version,memory.total", "--format=csv,noheader"),
    "rocm-smi": ("--showproductname", "--csv"),
}
#: Timeout of a program in seconds.
_PATIENT_S = 10.0


def collect_environment(release: str) -> dict[str, Any]:
    """Return the environment of ``release`` as plain data; the home folder is written as ``~``."""
    return {
        "roller": release,
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "packages": {name: found for name in PACKAGES if (found := _package_version(name)) is not None},
        "compilers": _compiler_versions(),
        "processor": _processor_info(),
        "devices": {tool: lines for tool, words in _GPU_TOOLS.items() if (lines := _run_and_read_lines(tool, words))},
        "cache": _cache_info(),
        "variables": {n: hide_home_folder(v) for n, v in sorted(os.environ.items()) if n.startswith("ROLLER_")},
    }


def hide_home_folder(text: str) -> str:
    """Return the text with the user's home folder replaced by ``~``.

    >>> hide_home_folder(str(Path.home() / ".cache/roller")).startswith("~")
    True
    """
    home = str(Path.home())
    return text.replace(home, "~") if home not in ("", os.sep) else text


def _package_version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _compiler_versions() -> dict[str, str | None]:
    found = find_compiler()
    named = {"C": found, "C++": shutil.which(os.environ.get("CXX") or "g++"), "hipcc": shutil.which("hipcc")}
    return {
        name: None if path is None else _first_line(_run_and_read_lines(path, ("--version",)))
        for name, path in named.items()
    }


def _processor_info() -> dict[str, Any]:
    try:
        spec = load_spec(THIS_MACHINE)
    except RollerError as err:
        return {"error": hide_home_folder(str(err))}
    return {
        "name": spec.description,
        "code_for": spec.target.get("mcpu"),
        "cores": spec.units,
        "usable_processors": usable_processors(),
        "lanes": spec.teu.lanes,
        "probed": profile_path(detect_cpu_without_probe().machine).exists(),
    }


def _cache_info() -> dict[str, Any]:
    try:
        info = KernelCache().info()
    except RollerError as err:
        return {"error": hide_home_folder(str(err))}
    return {**info, "folder": hide_home_folder(info["folder"])}


def _run_and_read_lines(program: str, words: Sequence[str]) -> list[str]:
    """Return the lines that a program prints; none if it is missing or fails."""
    path = shutil.which(program)
    if path is None:
        return []
    try:
        done = subprocess.run([path, *words], capture_output=True, text=True, check=False, timeout=_PATIENT_S)
    except (OSError, subprocess.TimeoutExpired):
        return []
    return [line.strip() for line in done.stdout.splitlines() if line.strip()] if done.returncode == 0 else []


def _first_line(lines: Sequence[str]) -> str | None:
    return hide_home_folder(lines[0]) if lines else None


def environment_text(found: dict[str, Any]) -> str:
    """Return the environment as text, one line per item."""
    lines = [f"{name}: {found[name]}" for name in ("roller", "python", "system")]
    for name in ("packages", "compilers", "processor", "devices", "cache", "variables"):
        inner = found[name] or {"": "none"}
        lines += [f"{name}:", *(f"  {_format_environment_item(key, value)}" for key, value in inner.items())]
    return "\n".join(lines)


def _format_environment_item(name: str, value: Any) -> str:
    shown = "; ".join(map(str, value)) if isinstance(value, list) else value
    return f"{name}: {'none' if shown in (None, '') else shown}" if name else str(shown)
