"""Hand-written CUDA kernels as artifacts, so that one feature is tested at a time."""

from __future__ import annotations

import numpy as np

from roller.artifact import KernelArtifact, Launch
from roller.emulator import emulate
from roller.expr import SPATIAL, Axis, Const, Stage, Tensor, TensorExpr, axis_index
from roller.tile import RProgram
from roller_runtime.core.kernel_argument import Argument


def artifact(
    source, inputs, outputs, *, block, grid=1, workspaces=(), dynamic=0, arguments=None, arch="sm_80", launches=None
):
    """Return an artifact of ``source``; tensors are ``(name, elements, dtype)``, in the order of kernel ``f``."""
    tensors = [Tensor(n, (e,), d) for n, e, d in (*inputs, *outputs, *workspaces)]
    n_in, n_out = len(inputs), len(outputs)
    stages = []
    for t in tensors[n_in : n_in + n_out]:
        axis = Axis(f"{t.name}_i", t.shape[0], SPATIAL)
        stages.append(Stage(t, (axis,), (axis_index(axis.name),), Const(0.0, t.dtype)))
    expr = TensorExpr("snippet", tuple(tensors[:n_in]), tuple(stages), tuple(s.name for s in stages))
    roles = ["input"] * n_in + ["output"] * n_out + ["workspace"] * len(workspaces)
    described = tuple(Argument(t.name, r, t.shape, t.dtype) for t, r in zip(tensors, roles, strict=True))
    names = tuple(arguments or (t.name for t in tensors))
    as3 = lambda v: (v, 1, 1) if isinstance(v, int) else v  # noqa: E731
    made = launches or (Launch(source, "f", names, as3(grid), as3(block), dynamic),)
    program = RProgram(expr, "gpu", "streaming", (("register", (1,)), ("shared", (1,))))
    return KernelArtifact("cuda", {"arch": arch}, "test", expr, program, tuple(made), described)


def kernel(parameters, body, head=""):
    """Return the source of one kernel named ``f``."""
    return f'{head}\nextern "C" __global__ void f({parameters}) {{\n{body}\n}}\n'


def run_float(
    body, n=32, *, built, x=None, head="", out="float32", grid=1, block=None, order="forward", dynamic=0, **kw
):
    """Run a body on ``X`` (float32) and ``Y`` (``out``), ``n`` elements each, one thread an element of a block."""
    c_type = {"float32": "float", "int32": "int", "float64": "double"}[out]
    x = np.arange(n, dtype=np.float32) if x is None else x
    a = artifact(
        kernel(f"float* __restrict__ X_ptr, {c_type}* __restrict__ Y_ptr", body, head),
        [("X", len(x), "float32")], [("Y", n, out)], grid=grid, block=block or n, dynamic=dynamic, **kw,
    )  # fmt: skip
    return emulate(a, [x], order=order, cache_dir=built)[0]
