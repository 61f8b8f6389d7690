"""Lowers an rProgram to self-contained CUDA C: context, kernels, TVM's lowering passes, and launches.

The source needs no TVM, no device and no CUDA headers (except ``cuda_fp16.h`` for half precision).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from roller.artifact import Constant, KernelArtifact, Launch
from roller.errors import BuildError
from roller.expr import TensorExpr
from roller.hardware.architecture_features import has_async_copies
from roller.targets import GPU
from roller.te.compat import default_pipeline, split_host_device, structural_walk, tirx, tvm
from roller.te.opaque_floats import hide_float_arithmetic, run_last_passes
from roller.templates.emit.byte_floats import replace_byte_floats_by_bytes, widen_byte_float_arithmetic
from roller.templates.gpu.emit import byte_float_functions, device_functions
from roller.templates.gpu.emit.choose_stage_templates import write_kernels
from roller.templates.gpu.emit.float_literals import print_hexadecimal_literals, replace_inexact_literals
from roller.templates.gpu.emit.keep_nan_in_bfloat16_conversions import keep_nan_in_conversions
from roller.templates.gpu.emit.kernel_tensor_context import KernelContext
from roller.templates.gpu.emit.offset_checks import check_offsets_fit_32_bits, check_tensor_sizes
from roller.tile import RProgram
from roller.tile.warp_group_tiles import ALIGNMENT_BYTES
from roller_runtime.core.kernel_argument import Argument

if TYPE_CHECKING:
    from roller.hardware import DeviceSpec

# NVRTC has neither <cstdint> nor <math_constants.h> without the toolkit's headers.
_PRELUDE = """\
#if defined(__CUDACC_RTC__)
typedef signed char int8_t; typedef unsigned char uint8_t; typedef short int16_t; typedef unsigned short uint16_t;
typedef int int32_t; typedef unsigned int uint32_t; typedef long long int64_t; typedef unsigned long long uint64_t;
#else
#include <cstdint>
#endif
"""
_INFINITY = """\
#ifndef CUDART_INF_F
#define CUDART_INF_F __int_as_float(0x7f800000)
#endif
#ifndef CUDART_INF
#define CUDART_INF __longlong_as_double(0x7ff0000000000000LL)
#endif
"""
#: TVM packs eight 32-bit integers (from bfloat16 numbers) into a ulonglong4 and calls a constructor that CUDA does not
#: have.
WIDE_INTEGERS = """\
static inline __device__ ulonglong4 make_ulonglong4(unsigned a, unsigned b, unsigned c, unsigned d,
                                                    unsigned e, unsigned f, unsigned g, unsigned h) {
  typedef unsigned long long wide;
  return make_ulonglong4(a | (wide)b << 32, c | (wide)d << 32, e | (wide)f << 32, g | (wide)h << 32);
}
"""
#: TVM packs eight or sixteen bytes into an int2 or int4 and passes them to a constructor that CUDA does not have.
BYTES = """\
static inline __device__ int roller_bytes(signed char a, signed char b, signed char c, signed char d) {
  return (int)((a & 255u) | (b & 255u) << 8 | (c & 255u) << 16 | (d & 255u) << 24);
}
static inline __device__ int2 make_int2(signed char a, signed char b, signed char c, signed char d,
                                        signed char e, signed char f, signed char g, signed char h) {
  return make_int2(roller_bytes(a, b, c, d), roller_bytes(e, f, g, h));
}
static inline __device__ int4 make_int4(signed char a, signed char b, signed char c, signed char d,
                                        signed char e, signed char f, signed char g, signed char h,
                                        signed char i, signed char j, signed char k, signed char l,
                                        signed char m, signed char n, signed char o, signed char p) {
  return make_int4(roller_bytes(a, b, c, d), roller_bytes(e, f, g, h),
                   roller_bytes(i, j, k, l), roller_bytes(m, n, o, p));
}
"""
#: The same for unsigned bytes, which TVM packs into a uint2 or uint4.
UNSIGNED_BYTES = re.sub(r"\bint([24])?(?= make_| roller)", r"unsigned int\1", BYTES).replace("unsigned int2", "uint2")
UNSIGNED_BYTES = UNSIGNED_BYTES.replace("unsigned int4", "uint4").replace("signed char", "unsigned char")
UNSIGNED_BYTES = UNSIGNED_BYTES.replace("roller_bytes", "roller_unsigned_bytes").replace("make_int", "make_uint")
MANY_BYTES = r"\bmake_int[24]\((?:[^,;]+, ){7}"
MANY_UNSIGNED_BYTES = r"\bmake_uint[24]\((?:[^,;]+, ){7}"
EIGHT_INTEGERS = r"\bmake_ulonglong4\((?:[^,;]+, ){7}"


def lower_for(program: RProgram, expression: TensorExpr, spec: DeviceSpec) -> KernelArtifact:
    """Generate the kernels of a program for the device for which it was constructed."""
    copies = spec.execution.async_copy_bytes is not None
    return lower(program, expression, spec.target["arch"], spec.name, async_copies=copies)


def lower(
    program: RProgram, expression: TensorExpr, arch: str, device: str, *, async_copies: bool | None = None
) -> KernelArtifact:
    """Generate the kernels of a program for an architecture."""
    available = has_async_copies(arch)
    code = write_tir_kernels(program, arch, async_copies=available if async_copies is None else async_copies)
    return lower_tir_kernels(code, program, expression, arch, device)


@dataclass(frozen=True)
class TirKernels:
    """Kernels of a program as TensorIR, before TVM lowers them.

    Parameters
    ----------
    params
        Buffers of the arguments in order, then :attr:`numbers`.
    body
        All kernels, one after another.
    arguments, names
        Arguments, and a mapping from the names of buffers to the names of their arguments.
    entry
        Prefix of the kernels' names.
    prepares
        Whether the first kernel fills panels of constants.
    own_barriers
        Whether the templates placed all barriers, so that TVM must not add any.
    numbers
        Values of the last :attr:`params`, keyed by name: numbers that depend on the sizes of a call.
    """

    params: tuple[Any, ...]
    body: Any
    arguments: tuple[Argument, ...]
    names: Mapping[str, str]
    entry: str
    prepares: bool
    own_barriers: bool
    numbers: Mapping[str, int] = field(default_factory=dict)


def write_tir_kernels_for(program: RProgram, spec: DeviceSpec, *, scalar: bool = False) -> TirKernels:
    """Write the kernels of a program as TensorIR for the device for which it was constructed."""
    copies = spec.execution.async_copy_bytes is not None
    return write_tir_kernels(program, spec.target["arch"], async_copies=copies, scalar=scalar)


def lower_tir_kernels_for(
    code: TirKernels, program: RProgram, expression: TensorExpr, spec: DeviceSpec
) -> KernelArtifact:
    """Lower the kernels of :func:`write_tir_kernels_for` with TVM."""
    return lower_tir_kernels(code, program, expression, spec.target["arch"], spec.name)


def write_tir_kernels(program: RProgram, arch: str, *, async_copies: bool, scalar: bool = False) -> TirKernels:
    """Write a program's kernels as TensorIR; ``scalar`` copies rows of varying length element by element."""
    GPU.check_kind(program.kind, "cuda")
    if program.fragment is not None and not program.fragment.emitted:
        raise BuildError(
            f"{program.fragment.name}: priced, not emitted: no template lowers it. Construct for `spec.emitted`, the "
            "device with only the matrix instructions that templates lower."
        )
    check_offsets_fit_32_bits(program)
    program = replace(program, expr=widen_byte_float_arithmetic(program.expr))
    available = has_async_copies(arch)
    if async_copies and not available:
        raise BuildError(
            f"cuda: expected an architecture with asynchronous copies (sm_80 or later), got '{arch}'. Construct for a "
            "specification without execution.async_copy_bytes."
        )
    scalar_axes = frozenset(program.open_axes if scalar else ())
    ctx = KernelContext(program.expr, async_copies=async_copies, scalar_axes=scalar_axes)
    body = write_kernels(ctx, program)
    check_tensor_sizes("workspace", (*ctx.workspaces, *ctx.panels))
    arguments = (
        *(Argument(t.name, "input", t.shape, t.dtype) for t in ctx.expr.inputs),
        *(Argument(t.name, "output", t.shape, t.dtype) for t in ctx.expr.output_tensors),
        *(Argument(t.name, "workspace", t.shape, t.dtype) for t in ctx.workspaces),
        *(Argument(t.name, "panel", t.shape, t.dtype) for t in ctx.panels),
    )
    params = [ctx.buffers[a.name] for a in arguments]
    entry = re.sub(r"\W", "_", program.expr.name, flags=re.ASCII) or "roller"
    entry = f"k{entry}" if entry[0].isdigit() else entry
    ahead = [] if ctx.prepare is None else [ctx.prepare]
    several = [*ahead, *body]
    whole = several[0] if len(several) == 1 else tirx.SeqStmt(several)
    if not available:  # the same architectures introduced bfloat16
        whole = keep_nan_in_conversions(whole)
    params, whole = replace_byte_floats_by_bytes(
        params, whole, byte_float_functions.call_byte_to_float32, byte_float_functions.call_float32_to_byte
    )
    names = {ctx.buffers[a.name].name: a.name for a in arguments}
    return TirKernels(tuple(params), whole, arguments, names, entry, bool(ahead), ctx.own_barriers)


def lower_tir_kernels(
    code: TirKernels, program: RProgram, expression: TensorExpr, arch: str, device: str
) -> KernelArtifact:  # fmt: skip
    """Lower the kernels of a program with TVM and describe them as an artifact."""
    launches = _lower_launches(code, arch, program.expr.propagate_nan)
    arch = (program.fragment.arch if program.fragment else "") or arch
    prepare, launches = (launches[0], launches[1:]) if code.prepares else (None, launches)
    constants = tuple(Constant(n) for n, t in enumerate(expression.inputs) if t.name in program.constants)
    return KernelArtifact(
        "cuda", {"arch": arch}, device, expression, program, launches, code.arguments, constants=constants,
        prepare=prepare,
    )  # fmt: skip


def _lower_launches(code: TirKernels, arch: str, propagate_nan: bool) -> tuple[Launch, ...]:
    """Lower all kernels as one module and describe one launch each, in order."""
    left_out = ["s_tir.CompactBufferAllocation", *(["s_tir.ThreadSync"] if code.own_barriers else [])]
    entry = code.entry
    func = tirx.PrimFunc(list(code.params), code.body)
    func = func.with_attrs({"global_symbol": entry, "tirx.noalias": True})
    target = tvm.target.Target({"kind": "cuda", "arch": arch})
    module = hide_float_arithmetic(tvm.IRModule({entry: func}), propagate_nan=propagate_nan)
    try:
        # CSE only adds variables that nvcc finds itself, and makes the source harder to read. Templates allocate
        # exactly what they need; compaction would cut off elements reached only through the address of the first one.
        with tvm.transform.PassContext(config={"tirx.disable_cse_tir": True}, disabled_pass=left_out):
            pipeline, _, finish = default_pipeline(target)
            bound = tirx.transform.BindTarget(target.with_host(tvm.target.Target("llvm")))(module)
            host, devices = split_host_device(pipeline(bound))
            ((device_target, device_module),) = devices.items()
            device_module = replace_inexact_literals(run_last_passes(finish(), device_module, language="cuda"))
            source = tvm.get_global_func("target.build.cuda")(device_module, device_target).inspect_source()
    except (RuntimeError, ValueError, TypeError) as err:
        text = str(err).strip().splitlines()
        raise BuildError(f"cuda: {entry}: TVM could not lower the program: {text[-1] if text else err!r}.") from err
    source = replace_prelude(print_hexadecimal_literals(source), arch)
    functions = {gv.name_hint: f for gv, f in device_module.functions.items()}
    ordered = sorted(functions, key=lambda n: int(n.rsplit("_kernel", 1)[1].lstrip("_") or 0))
    dynamic = _dynamic_scratchpad_bytes(host)
    return tuple(_describe_launch(source, n, functions[n], code, dynamic.get(n, 0)) for n in ordered)


def _describe_launch(source: str, name: str, func: Any, code: TirKernels, dynamic: int) -> Launch:
    extents = {
        tag: code.numbers[e.name] if isinstance(e, tirx.Var) else int(e) for tag, e in thread_extents(func.body).items()
    }
    names = {**code.names, **{n: n for n in code.numbers}}
    arguments = tuple(names[p.name.removesuffix("_ptr")] for p in func.params)
    x, y, z = ((extents.get(f"blockIdx.{c}", 1)) for c in "xyz")
    a, b, c = ((extents.get(f"threadIdx.{c}", 1)) for c in "xyz")
    return Launch(source, name, arguments, (x, y, z), (a, b, c), dynamic)


def thread_extents(body: Any) -> dict[str, Any]:
    """Return the numbers of blocks and threads of a kernel by their tags."""
    extents: dict[str, Any] = {}

    def visit(node: Any) -> None:
        if type(node).__name__ == "AttrStmt" and node.attr_key == "thread_extent":
            extents[node.node.thread_tag] = node.value

    structural_walk(body, visit)
    return extents


def _dynamic_scratchpad_bytes(host: Any) -> dict[str, int]:
    """Return the dynamic scratchpad bytes per kernel: the last argument of a launch that uses dynamic scratchpad."""
    out: dict[str, int] = {}

    def visit(node: Any) -> None:
        if type(node).__name__ != "Call" or not node.args:
            return
        kind, last = type(node.args[0]).__name__, node.args[-1]
        if kind == "StringImm" and type(last).__name__ == "IntImm" and last.ty.dtype == "int64":
            out[node.args[0].value] = int(last.value)

    for f in host.functions.values():
        structural_walk(f.body, visit)
    return out


def replace_prelude(source: str, arch: str) -> str:
    """Replace TVM's prelude, which needs CUDA's headers, with typedefs and the functions that the source uses."""
    source = re.sub(r"#ifdef __CUDACC_RTC__.*?#include <cuda\.h>\n#endif\n", _PRELUDE, source, count=1, flags=re.S)
    source = re.sub(
        r"#if \(\(\(__CUDACC_VER_MAJOR__ == 11\).*?TVM_ENABLE_L2_PREFETCH 0\n#endif\n", "", source, flags=re.S
    )
    source = re.sub(r"#ifdef _WIN32.*?#else\n(.*?)#endif\n", lambda m: str(m[1]), source, count=1, flags=re.S)
    source = re.sub(r'extern "C" __global__[^;{]*\);\n', "", source)  # forward declarations
    added = _INFINITY if "CUDART_INF" in source else ""
    added += WIDE_INTEGERS if re.search(EIGHT_INTEGERS, source) else ""
    added += BYTES if re.search(MANY_BYTES, source) else ""
    added += UNSIGNED_BYTES if re.search(MANY_UNSIGNED_BYTES, source) else ""
    added += device_functions.used_function_texts(source, arch)
    if "roller_group_" in source:  # swizzles depend on absolute addresses
        source = re.sub(r"(extern __shared__ __align__\()\d+", rf"\g<1>{ALIGNMENT_BYTES}", source)
    at = source.index('extern "C" __global__')
    source = source[:at] + added + source[at:]
    return source.strip() + "\n"
