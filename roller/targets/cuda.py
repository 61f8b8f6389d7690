"""NVIDIA GPUs: CUDA C, built by NVRTC and launched through CuPy."""

from __future__ import annotations

from typing import Any

from roller.targets.kinds import GPU
from roller.targets.lazy import import_object
from roller.targets.target import Target


def _open_cupy_device(index: int, arch: str) -> Any:
    del arch  # the device reports its own
    return import_object("roller.models.session.gpu_device:CupyDevice")(index)


TARGET = Target(
    "cuda", GPU, "cuda", required_keys=("arch",), architectures=(30, 129), generator="roller.templates.gpu.emit.cuda",
    toolchain="roller.backends.cuda.toolchain", launcher="roller.backends.cuda.launcher:CudaKernel",
    device="cuda", worker="roller.backends.cuda.profiling_device:CudaDevice", session_device=_open_cupy_device,
    emulator="roller.emulator.emulate:EmulatedArtifact",
    probe_options=("--ftz=true",), matrix_probe=("matrix", 4 * 16 * 16 * 16),
    innermost_channels=True,
)  # fmt: skip
