"""Runs models that ``roller`` compiled and saved, with NumPy and TVM's runtime library alone.

Public names are loaded on first use.

Examples
--------
>>> import roller_runtime
>>> session = roller_runtime.load_model("resnet50.model")  # doctest: +SKIP
>>> probabilities = session.run(images)  # doctest: +SKIP
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from roller_runtime.version import __version__

#: Module that each public name is loaded from.
_HOME = {
    "ArtifactError": "roller_runtime.errors",
    "Conversation": "roller_runtime.session.decoder_session",
    "DecoderSession": "roller_runtime.session.decoder_session",
    "LaunchError": "roller_runtime.errors",
    "RangeSession": "roller_runtime.session.range_session",
    "RollerError": "roller_runtime.errors",
    "Session": "roller_runtime.session.cpu_session",
    "include_folder": "roller_runtime.cpu.tvm_libraries",
    "library_folders": "roller_runtime.cpu.tvm_libraries",
    "load_model": "roller_runtime.session.load_model",
    "prometheus_text": "roller_runtime.session.session_metrics",
    "verify_saved_model": "roller_runtime.session.describe_saved",
}

__all__ = [
    "ArtifactError", "Conversation", "DecoderSession", "LaunchError", "RangeSession", "RollerError", "Session",
    "__version__", "include_folder", "library_folders", "load_model", "prometheus_text", "verify_saved_model",
]  # fmt: skip

if TYPE_CHECKING:
    from roller_runtime.cpu.tvm_libraries import include_folder, library_folders
    from roller_runtime.errors import ArtifactError, LaunchError, RollerError
    from roller_runtime.session.cpu_session import Session
    from roller_runtime.session.decoder_session import Conversation, DecoderSession
    from roller_runtime.session.describe_saved import verify_saved_model
    from roller_runtime.session.load_model import load_model
    from roller_runtime.session.range_session import RangeSession
    from roller_runtime.session.session_metrics import prometheus_text


def __getattr__(name: str) -> Any:
    """Load a public name on first use."""
    if name not in _HOME:
        raise AttributeError(f"module 'roller_runtime' has no attribute '{name}'")
    value = getattr(importlib.import_module(_HOME[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """List the module's names, including public ones that are not loaded yet."""
    return sorted({*globals(), *__all__})
