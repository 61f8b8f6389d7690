"""TVM's small runtime library (threads, workspaces), located in the installed package and loaded with global symbols.

``tvm`` itself is never imported, so the first result in a fresh process takes 0.2 s.
"""

from __future__ import annotations

import ctypes
import functools
import importlib.util
from pathlib import Path
from typing import Any

from roller.backends.cpu import threads
from roller.core.import_without_dependency import import_without_package
from roller.errors import LaunchError

_RUNTIME = "libtvm_runtime.so"


@functools.cache
def load_tvm_runtime() -> Any:
    """Load TVM's runtime library once; return the ``tvm_ffi`` module."""
    try:
        with import_without_package("torch"):  # tensors are passed by DLPack, with or without torch's extension
            import tvm_ffi
    except ImportError as err:
        raise LaunchError(
            f"CPU launcher: expected the package 'apache-tvm-ffi', got {err}. Install roller with its 'cpu' extra."
        ) from err
    path = _find_tvm_runtime_library()
    threads.set_tvm_thread_defaults()
    try:
        ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL)
    except OSError as err:
        raise LaunchError(f"CPU launcher: cannot load {path.name} ({err}). Reinstall apache-tvm.") from err
    return tvm_ffi


def _find_tvm_runtime_library() -> Path:
    spec = importlib.util.find_spec("tvm")  # finds the package, does not import it
    places = list(spec.submodule_search_locations or ()) if spec is not None else []
    for place in places:
        for folder in (Path(place, "lib"), Path(place)):
            if (folder / _RUNTIME).is_file():
                return folder / _RUNTIME
    raise LaunchError(
        f"CPU launcher: expected {_RUNTIME} of the package 'apache-tvm', found it in none of {places}. "
        "Install apache-tvm."
    )


def runtime_and_pool_resizer() -> tuple[ctypes.CDLL, Any]:
    """Return TVM's runtime library and the function that sets the size of a thread pool (``None`` if TVM lacks it)."""
    configure = load_tvm_runtime().get_global_func("runtime.config_threadpool", allow_missing=True)
    return ctypes.CDLL(str(_find_tvm_runtime_library())), configure
