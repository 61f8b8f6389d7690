"""Compilation of a TIR module to the bytes of a shared library."""

from __future__ import annotations

import platform
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from roller.core.c_compiler import require_compiler
from roller.errors import BuildError
from roller.te.compat import build_for_cpu, llvm_features, tirx, tvm
from roller.te.nan_propagating_extrema import add_extremum_functions
from roller.te.opaque_floats import hide_float_arithmetic, run_last_passes
from roller.templates.cpu.emit.tir_loop_constructors import Stmt
from roller_runtime.core.processor_features_and_count import linux_feature_names
from roller_runtime.core.temporary_folders import scratch_folder

ENTRY = "main"
#: Language for which opaque float operators are lowered to nodes.
_LLVM = "llvm"
#: Function that packs constants into panels.
PACK = "pack"
#: Slow passes without effect on emitted code: buffers have their exact size, no loop is empty, and LLVM eliminates
#: common subexpressions and hoists conditions itself.
_NEEDLESS = ("s_tir.CompactBufferAllocation", "s_tir.HoistIfThenElse", "tirx.RemoveNoOp", "tirx.CommonSubexprElim")

#: Options with which the C compiler links without any library, and fails if one is needed.
_ALONE = ("-nostdlib", "-Wl,--no-undefined")


def module_of_functions(functions: Mapping[str, tuple[list[Any], Stmt]]) -> Any:
    """Return the module of functions ``{name: (arguments, body)}`` whose arguments do not alias."""
    return tvm.IRModule(
        {
            name: tirx.PrimFunc(params, body).with_attr("global_symbol", name).with_attr("tirx.noalias", True)
            for name, (params, body) in functions.items()
        }
    )


def build_library(
    module: Any, mcpu: str, cores: int, features: str = "", *, checked: bool = True, propagate_nan: bool = True
) -> bytes:
    """Compile ``module`` for a CPU and link it."""
    target = _make_tvm_target(mcpu, cores, features=features)
    with scratch_folder() as folder:
        object_file, library = Path(folder, "kernel.o"), Path(folder, "kernel.so")
        try:
            config = {"tirx.disable_assert": not checked}
            with tvm.transform.PassContext(config=config, disabled_pass=list(_NEEDLESS)):
                hidden = hide_float_arithmetic(module, propagate_nan=propagate_nan)
                runtime_module = build_for_cpu(hidden, target, _finish_with_extrema)
            runtime_module.write_to_file(str(object_file))
        except Exception as err:  # TVM raises many exception types; one rejected program must not look like a crash
            raise BuildError(f"LLVM code generation for '{mcpu}' failed: {_last_lines_of_text(str(err))}") from err
        link_library(object_file, library)
        return library.read_bytes()


def _finish_with_extrema(passes: Any, module: Any) -> Any:
    return add_extremum_functions(run_last_passes(passes, module, language=_LLVM))


def required_features(mcpu: str, mtriple: str = "", features: str = "") -> tuple[str, ...]:
    """Return the features needed to run code for ``mcpu`` on the machine ``mtriple`` (default: this machine)."""
    return linux_feature_names(map(str, llvm_features(_make_tvm_target(mcpu, 1, mtriple, features))))


def is_foreign_triple(mtriple: str) -> bool:
    """Return whether a triple's architecture differs from this machine's; an empty triple means this machine.

    Examples
    --------
    >>> is_foreign_triple(""), is_foreign_triple("pdp11-unknown-unix")
    (False, True)
    """
    return bool(mtriple) and mtriple.partition("-")[0] != platform.machine()


def _make_tvm_target(mcpu: str, cores: int, mtriple: str = "", features: str = "") -> Any:
    more: dict[str, Any] = {"mtriple": mtriple} if is_foreign_triple(mtriple) else {}
    if features:
        more["mattr"] = [f"+{f}" for f in features.split()]
    return tvm.target.Target({"kind": "llvm", "mcpu": mcpu, "num-cores": cores, **more})


def link_library(object_file: Path, library: Path) -> None:
    """Link an object file into a shared library with the C compiler on PATH."""
    compiler = require_compiler("linking a CPU kernel")
    command = [compiler, "-shared", "-fPIC", "-o", str(library), str(object_file)]
    # Most kernels call no library function, and searching the C libraries takes longer than the rest of linking.
    if not subprocess.run([*command, *_ALONE], capture_output=True).returncode:
        return
    done = subprocess.run([*command, "-lm"], capture_output=True, text=True)
    if done.returncode:
        raise BuildError(f"linking a CPU kernel: {compiler} failed: {_last_lines_of_text(done.stderr)}")


def _last_lines_of_text(text: str, lines: int = 6) -> str:
    return "\n".join(text.strip().splitlines()[-lines:])
