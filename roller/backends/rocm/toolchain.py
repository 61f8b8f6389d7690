"""Builds HIP artifacts with hipcc, without a device or TVM."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

from roller.artifact import KernelArtifact
from roller.errors import BuildError
from roller.targets import check_language
from roller_runtime.core.temporary_folders import scratch_folder

_INSTALL = "Install the package 'hipcc' (Debian, Ubuntu, ROCm) and put hipcc on PATH"

#: Time limit of one compilation in seconds.
_TIMEOUT_S = 300.0

#: Key in ``build`` -> pattern in the compiler's remarks.
_REMARKS = {
    "vgprs": "VGPRs",
    "agprs": "AGPRs",
    "sgprs": "(?:Total)?SGPRs",
    "vgprs_spilled": "VGPRs Spill",
    "sgprs_spilled": "SGPRs Spill",
    "spill_bytes": r"ScratchSize \[bytes/lane\]",
    "static_shared_bytes": r"LDS Size \[bytes/block\]",
    "waves_per_simd": r"Occupancy \[waves/SIMD\]",
}


def find_hipcc() -> str:
    """Return the path of hipcc; raise an error if there is none."""
    root = os.environ.get("ROCM_PATH")
    found = shutil.which("hipcc") or (shutil.which("hipcc", path=str(Path(root, "bin"))) if root else None)
    if found is None:
        raise BuildError(f"HIP build: expected the compiler hipcc, found none. {_INSTALL}.")
    return found


def available() -> str | None:
    """Return ``None`` if kernels can be built here, otherwise the reason."""
    try:
        find_hipcc()
    except BuildError as err:
        return str(err)
    return None


def build(artifact: KernelArtifact) -> KernelArtifact:
    """Compile all kernels of an artifact to one code object."""
    check_language(artifact.language, ["hip"], "HIP build", BuildError, "Build it with its own toolchain.")
    start = time.perf_counter()
    binary, log = compile_source(artifact.source, str(artifact.target["arch"]))
    return artifact.with_binary(binary, **resources(log), seconds=time.perf_counter() - start, log=log)


def kernel_resources(log: str) -> dict[str, dict[str, int]]:
    r"""Parse the resources of each kernel from the compiler's remarks.

    Examples
    --------
    >>> log = "remark: Function Name: k [-R]\nremark:  SGPRs: 12 [-R]\nremark:  VGPRs: 65 [-R]"
    >>> found = kernel_resources(log)["k"]
    >>> found["registers"], found["sgprs"], found["spill_bytes"]
    (65, 12, 0)
    """
    # registers: 32-bit vector registers per thread, including accumulation registers; sgprs_spilled: scalar registers
    # spilled to lanes of a vector register, not to memory; spill_bytes: memory per thread for spills and for arrays
    # indexed at run time.
    _, *parts = re.split(r"Function Name: (\S+)", log)
    out = {}
    for name, text in zip(parts[::2], parts[1::2], strict=True):
        found = {k: re.search(rf"remark:.*? {v}: (\d+)", text) for k, v in _REMARKS.items()}
        numbers = {k: int(m[1]) if m else 0 for k, m in found.items()}
        out[name] = {"registers": numbers["vgprs"] + numbers["agprs"], **numbers}
    return out


def resources(log: str) -> dict[str, int]:
    r"""Return the largest use of each resource over all kernels, and the smallest number of resident wavefronts.

    Examples
    --------
    >>> text = "remark: Function Name: {} [-R]\nremark:  VGPRs: {} [-R]\nremark:  Occupancy [waves/SIMD]: {} [-R]\n"
    >>> worst = resources(text.format("a", 65, 3) + text.format("b", 20, 10))
    >>> worst["vgprs"], worst["waves_per_simd"]
    (65, 3)
    """
    kernels = list(kernel_resources(log).values())
    if not kernels:
        raise BuildError(
            f"HIP build: expected remarks on kernel resources, found none. {_INSTALL} of clang 14 or later."
        )
    return {k: (min if k == "waves_per_simd" else max)(r[k] for r in kernels) for k in kernels[0]}


def compile_source(source: str, arch: str, options: Sequence[str] = ()) -> tuple[bytes, str]:
    """Compile HIP C++ to a code object; return the code object and the compiler's log."""
    compiler = find_hipcc()
    with scratch_folder("hip-") as folder:
        path, target = Path(folder, "kernel.hip.cpp"), Path(folder, "kernel.co")
        path.write_text(source, encoding="utf-8")
        command = [compiler, "--genco", f"--offload-arch={arch}", "-O3", "-w", "-fno-caret-diagnostics",
                   "-Rpass-analysis=kernel-resource-usage", *options, path.name, "-o", target.name]  # fmt: skip
        # If a CUDA toolkit is installed, hipcc would choose nvcc.
        environment = {**os.environ, "HIP_PLATFORM": "amd", "TMPDIR": folder}
        try:
            done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True,
                                  timeout=_TIMEOUT_S, check=False)  # fmt: skip
        except subprocess.TimeoutExpired as err:
            limit = f"{_TIMEOUT_S:.0f} s"
            raise BuildError(f"HIP build for {arch}: expected an end within {limit}. Use smaller tiles.") from err
        except OSError as err:
            raise BuildError(f"HIP build: cannot run hipcc ({err}). {_INSTALL}.") from err
        log = done.stderr + done.stdout
        if "invalid target ID" in log:
            hint = f"this hipcc does not know '{arch}'. Install a later release of ROCm"
            raise BuildError(f"HIP build: {hint}.\n{log.strip()}")
        if done.returncode or not target.is_file():
            raise BuildError(f"HIP build for {arch}: hipcc failed with exit status {done.returncode}\n{log.strip()}")
        return target.read_bytes(), log
