"""Run emitted HIP text on the CPU with wavefronts of 64 lanes (``wavefront/hip/hip_runtime.h``)."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from pathlib import Path

import numpy as np

from roller.artifact import KernelArtifact

HEADERS = Path(__file__).parent / "wavefront"
COMPILER = shutil.which("g++")
#: NumPy has no bfloat16: its bits stand for it.
_STORED = {"bfloat16": "uint16"}


def run(artifact: KernelArtifact, inputs: list[np.ndarray], folder: Path) -> list[np.ndarray]:
    """Return the outputs of an artifact, kernels one after another."""
    calls = "".join(
        f'extern "C" void run{n}(void** a) {{ wave::launch({x.entry}, a, {x.grid[0]}, {x.block[0]}, {x.block[1]}); }}\n'
        for n, x in enumerate(artifact.launches)
    )
    source, library = folder / "kernel.cpp", folder / "kernel.so"
    source.write_text(artifact.source + calls)
    command = [str(COMPILER), "-std=c++20", "-O1", "-shared", "-fPIC", "-pthread", f"-I{HEADERS}", "-w"]
    done = subprocess.run([*command, str(source), "-o", str(library)], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    loaded = ctypes.CDLL(str(library))
    given = dict(zip((a.name for a in artifact.inputs), inputs, strict=True))
    arrays = {a.name: given.get(a.name, np.zeros(a.shape, _STORED.get(a.dtype, a.dtype))) for a in artifact.arguments}
    for n, launch in enumerate(artifact.launches):
        pointers = (ctypes.c_void_p * len(launch.arguments))(*(arrays[x].ctypes.data for x in launch.arguments))
        getattr(loaded, f"run{n}")(pointers)
    shapes = [t.shape for t in artifact.expression.output_tensors]
    return [arrays[a.name].reshape(s) for a, s in zip(artifact.outputs, shapes, strict=True)]
