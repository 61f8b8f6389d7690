"""TVM's Python interface to kernels, without TVM itself."""

from __future__ import annotations

import functools
from typing import Any

from roller.core.import_without_dependency import import_without_package
from roller.errors import LaunchError
from roller_runtime.cpu.tvm_libraries import load_tvm_libraries


@functools.cache
def load_tvm_ffi() -> Any:
    """Return the ``tvm_ffi`` module, with TVM's runtime library loaded; ``tvm`` itself is never imported."""
    load_tvm_libraries()
    try:
        with import_without_package("torch"):  # tensors are passed by DLPack, with or without torch's extension
            import tvm_ffi
    except ImportError as err:
        raise LaunchError(
            f"CPU launcher: expected the package 'apache-tvm-ffi', got {err}. Install apache-tvm-ffi."
        ) from err
    return tvm_ffi
