"""AMD GPUs: HIP C++, built by hipcc and launched through CuPy's ROCm build."""

from __future__ import annotations

from typing import Any

from roller.targets.kinds import GPU
from roller.targets.lazy import import_object
from roller.targets.target import Target


def _open_rocm_device(index: int, arch: str) -> Any:
    del arch  # the device reports its own
    return import_object("roller.models.session.gpu_device:CupyDevice")(index, rocm=True)


TARGET = Target(
    "hip", GPU, "hip", required_keys=("arch",), generator="roller.templates.gpu.emit.hip",
    toolchain="roller.backends.rocm.toolchain", launcher="roller.backends.rocm.launcher:RocmKernel",
    device="rocm", worker="roller.backends.rocm.profiling_device:RocmDevice", session_device=_open_rocm_device,
    emulator="roller.emulator.emulate:EmulatedArtifact",
    probe_options=("-fgpu-flush-denormals-to-zero", "-fno-slp-vectorize"),
    matrix_probe=("matrix_cdna", 4 * 32 * 32 * 8),
)  # fmt: skip
