"""roller: a construction-based tensor compiler.

Importing this module loads neither TVM nor any compilation stage; public names are loaded on first use.

Examples
--------
>>> import roller
>>> spec = roller.load_spec("v100")
>>> spec.name
'v100'
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from roller.core.renamed import install_module_finder
from roller_runtime.version import __version__ as __version__

install_module_finder()

#: Module that each public name is loaded from.
_HOME = {
    "Candidate": "roller.construction.constructor",
    "CompiledKernel": "roller.compiler.compiled_kernel",
    "ConstructOptions": "roller.templates.common.options",
    "DeviceSpec": "roller.hardware",
    "Estimate": "roller.perf",
    "KernelArtifact": "roller.artifact",
    "RProgram": "roller.tile",
    "RollerError": "roller.errors",
    "TensorExpr": "roller.expr",
    "compile": "roller.compiler.pipeline",
    "compile_decoder": "roller.models.compile_decoder",
    "compile_model": "roller.models.compile",
    "construct": "roller.compiler.pipeline",
    "explain": "roller.explanation.explain",
    "from_kineto": "roller.insight.step.replay",
    "lint": "roller.insight.lint",
    "list_specs": "roller.hardware",
    "load": "roller.compiler.pipeline",
    "load_ipython_extension": "roller.cli.notebook",
    "load_model": "roller.models.session.saved",
    "load_profile": "roller.insight.step_profile.profile_json",
    "load_spec": "roller.hardware",
    "predict": "roller.compiler.pipeline",
    "profile": "roller.insight.step_profile.profiling",
    "prometheus_text": "roller_runtime.session.session_metrics",
    "record": "roller.insight.step.recording",
    "replay": "roller.insight.step.replay",
    "sensitivity": "roller.explanation.sensitivity",
    "trace": "roller.insight.tracing",
    "what_if": "roller.insight.whatif.predict",
    "why_not": "roller.explanation.explain",
}
_MODULES = ("ops",)

__all__ = [
    "Candidate", "CompiledKernel", "ConstructOptions", "DeviceSpec", "Estimate", "KernelArtifact", "RProgram",
    "RollerError", "TensorExpr", "compile", "compile_decoder", "compile_model", "construct", "explain", "from_kineto",
    "lint", "list_specs", "load", "load_model", "load_profile", "load_spec", "ops", "predict", "profile",
    "prometheus_text", "record", "replay", "sensitivity", "trace", "what_if", "why_not",
]  # fmt: skip

if TYPE_CHECKING:
    from roller import ops
    from roller.artifact import KernelArtifact
    from roller.compiler.pipeline import Candidate, CompiledKernel, ConstructOptions, compile, construct, load, predict
    from roller.errors import RollerError
    from roller.explanation.explain import explain, why_not
    from roller.explanation.sensitivity import sensitivity
    from roller.expr import TensorExpr
    from roller.hardware import DeviceSpec, list_specs, load_spec
    from roller.insight.lint import lint
    from roller.insight.step.recording import record
    from roller.insight.step.replay import from_kineto, replay
    from roller.insight.step_profile.profile_json import load_profile
    from roller.insight.step_profile.profiling import profile
    from roller.insight.tracing import trace
    from roller.insight.whatif.predict import what_if
    from roller.models.compile import compile_model
    from roller.models.compile_decoder import compile_decoder
    from roller.models.session.saved import load_model
    from roller.perf import Estimate
    from roller.tile import RProgram
    from roller_runtime.session.session_metrics import prometheus_text


def __getattr__(name: str) -> Any:
    """Load a public name on first use."""
    if name in _MODULES:
        return importlib.import_module(f"roller.{name}")
    if name not in _HOME:
        raise AttributeError(f"module 'roller' has no attribute '{name}'")
    value = getattr(importlib.import_module(_HOME[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """List the module's names, including public ones that are not loaded yet."""
    return sorted({*globals(), *__all__})
