"""Lowers an rProgram to HIP C++: the text of the CUDA templates, adapted by a table of rewrites.

TVM prints the kernels; everything before the first kernel is replaced by a prelude with the HIP headers that the text
needs.

Notes
-----
**Wavefronts of 64.** The templates reduce over *warps of 32*: shuffles within groups of 32 lanes, scratchpad and a
barrier between groups. This remains correct on a wavefront of 64, because

- the lane number of HIP is the thread's linear index modulo 64, so that lane ``l`` of a wavefront is lane
  ``l % 32`` of the intended warp, and a warp never straddles two wavefronts;
- ``__shfl_xor(v, d, 32)`` reads lane ``l ^ d`` with ``d < 32``: a lane in the reader's own half;
- the two halves of a wavefront may take different branches: a shuffle reads lanes of its own half only,
  which execute it together, as the lanes of a warp do.

Every shuffle must therefore state the width 32; :func:`cuda_text_to_hip` rejects any other width. The mask argument is
dropped, because lanes of a wavefront run in lock step.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING

from roller.artifact import KernelArtifact
from roller.errors import BuildError
from roller.expr import TensorExpr
from roller.templates.gpu.emit import cuda, device_functions, nan_extrema_functions
from roller.tile import RProgram
from roller_runtime.core.dtypes import BYTE_FLOATS

if TYPE_CHECKING:
    from roller.hardware import DeviceSpec

#: CUDA architecture for which the templates write kernels: it has vectors and shuffles, but neither matrix units nor
#: asynchronous copies.
_TEMPLATE_ARCH = "sm_70"

_KERNEL = 'extern "C" __global__'

#: ``(pattern, replacement)``, applied in order to the text of the kernels.
_REWRITES: tuple[tuple[str, str], ...] = (
    # clang rejects the keyword after __shared__; the attribute is accepted everywhere.
    (r"\balignas\((\d+)\)", r"__attribute__((aligned(\1)))"),
    # Lock-step lanes: no mask.
    (r"\b__shfl_xor_sync\(\(uint\)4294967295, ", "__shfl_xor("),
    # Constants that CUDA keeps in math_constants.h.
    (r"\bCUDART_INF_F\b", "__builtin_huge_valf()"),
    (r"\bCUDART_INF\b", "__builtin_huge_val()"),
    (r"\bCUDART_NAN_F\b", '__builtin_nanf("")'),
    (r"\bCUDART_NAN\b", '__builtin_nan("")'),
)

#: Names that exist only on NVIDIA devices; such a name in adapted text means that a template exceeded its architecture.
_FOREIGN = re.compile(r"\b(?:asm|nvcuda|wmma|__activemask|__\w+_sync|__syncwarp|__dp4a|CUDART_\w+|__nv_\w+|nv_\w+)\b")

_TYPES = """\
#include <hip/hip_runtime.h>
#define uint unsigned int
#define uchar unsigned char
#define ushort unsigned short
"""

_HALF = """\
#include <hip/hip_fp16.h>
"""

_HALF4 = """\
struct __attribute__((aligned(8))) half4 { half x, y, z, w; };
static inline __device__ half4 make_half4(half x, half y, half z, half w) { return half4{x, y, z, w}; }
"""

_PACK_HALF2 = """\
static inline __device__ unsigned int __pack_half2(half x, half y) {
  return (unsigned int)__half_as_ushort(y) << 16 | __half_as_ushort(x);
}
"""

#: Device functions without inline PTX, which HIP kernels may call.
_FUNCTIONS = ("roller_start", "roller_quiet", "roller_bfloat16",
              *(f"roller_{way}_{n}" for n in BYTE_FLOATS for way in ("from", "to")))  # fmt: skip

#: ``(pattern, text)``: parts of the prelude, each included only if the kernels match its pattern.
_PRELUDE: tuple[tuple[str, str], ...] = (
    (r"\bu?int\b|\bvoid\b", _TYPES),
    (r"\bhalf\w*\b", _HALF),
    (r"\b(?:make_)?half4\b", _HALF4),
    (r"\b__pack_half2\b", _PACK_HALF2),
    (cuda.EIGHT_INTEGERS, cuda.WIDE_INTEGERS),
    (cuda.MANY_BYTES, cuda.BYTES),
    (cuda.MANY_UNSIGNED_BYTES, cuda.UNSIGNED_BYTES),
    *((rf"\b{n}\b", device_functions.FUNCTIONS[n]) for n in _FUNCTIONS),
    *((rf"\b{n}\b", text) for n, text in nan_extrema_functions.nan_extrema_functions(_TEMPLATE_ARCH).items()),
)


def lower_for(program: RProgram, expression: TensorExpr, spec: DeviceSpec) -> KernelArtifact:
    """Generate the kernels of a program for the device for which it was constructed."""
    return lower(program, expression, spec.target["arch"], spec.name)


def lower(program: RProgram, expression: TensorExpr, arch: str, device: str) -> KernelArtifact:
    """Generate the kernels of a program for an architecture."""
    try:
        artifact = cuda.lower(program, expression, _TEMPLATE_ARCH, device)
    except BuildError as err:
        raise BuildError(str(err).replace("cuda:", "hip:", 1)) from err
    return _adapt_artifact(artifact, arch)


def write_tir_kernels_for(program: RProgram, spec: DeviceSpec, *, scalar: bool = False) -> cuda.TirKernels:
    """Write the kernels of a program as TensorIR for the device for which it was constructed."""
    del spec  # the text is the same for all devices
    return cuda.write_tir_kernels(program, _TEMPLATE_ARCH, async_copies=False, scalar=scalar)


def lower_tir_kernels_for(
    code: cuda.TirKernels, program: RProgram, expression: TensorExpr, spec: DeviceSpec
) -> KernelArtifact:
    """Lower the kernels of :func:`write_tir_kernels_for` with TVM."""
    return _adapt_artifact(
        cuda.lower_tir_kernels(code, program, expression, _TEMPLATE_ARCH, spec.name), spec.target["arch"]
    )


def _adapt_artifact(artifact: KernelArtifact, arch: str) -> KernelArtifact:
    texts = {source: cuda_text_to_hip(source) for source in {x.source for x in artifact.launches}}
    launches = tuple(replace(x, source=texts[x.source]) for x in artifact.launches)
    prepare = artifact.prepare and replace(artifact.prepare, source=texts[artifact.prepare.source])
    return replace(artifact, language="hip", target={"arch": arch}, launches=launches, prepare=prepare)


def cuda_text_to_hip(source: str) -> str:
    """Return CUDA C of this package's templates as HIP C++.

    Examples
    --------
    >>> print(cuda_text_to_hip('extern "C" __global__ void k(float* x) { __shared__ alignas(64) float s[4]; }'))
    #include <hip/hip_runtime.h>
    #define uint unsigned int
    #define uchar unsigned char
    #define ushort unsigned short
    extern "C" __global__ void k(float* x) { __shared__ __attribute__((aligned(64))) float s[4]; }
    """
    text = source[source.index(_KERNEL) :]
    for pattern, replacement in _REWRITES:
        text = re.sub(pattern, replacement, text, flags=re.M)
    foreign = _FOREIGN.search(text)
    if foreign:
        raise BuildError(
            f"hip: expected text that AMD devices have a word for, got '{foreign[0]}'. Construct the program for a "
            "spec without matrix units, and report the expression."
        )
    widths = set(re.findall(r"__shfl\w*\(.*, (\w+)\)+;", text))
    if widths - {"32"}:
        raise BuildError(f"hip: expected shuffles over 32 lanes, got {sorted(widths)}. Report the expression.")
    prelude = "".join(part for pattern, part in _PRELUDE if re.search(pattern, text))
    return prelude + text
