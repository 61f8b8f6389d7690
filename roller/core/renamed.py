"""Former documented modules and names, which resolve to the new ones with a ``DeprecationWarning``."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Sequence
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import CodeType, ModuleType
from typing import Any

_ROOM = "roller.insight"
#: Removed packages that contained such modules.
PACKAGES = {"roller.explaining", "roller.model", "roller.onnx", "roller.search", "roller.varying"}
#: Old module -> new modules of its names.
MODULES = {
    f"roller.{old}": (new if new.startswith("roller_runtime.") else f"roller.{new}",)
    for old, new in {
        "compiled": "compiler.compiled_kernel",
        "explaining.explanation": "explanation.explanation",
        "explaining.why_not": "explanation.why_not",
        "insight.html_report": "report.report_of_path",
        "model.bundle": "models.session.bundle",
        "model.gpu_runner": "models.session.gpu_session",
        "model.range_session": "roller_runtime.session.range_session",
        "model.saved": "models.session.saved",
        "model.session": "roller_runtime.session.cpu_session",
        "models.session.call_metrics": "roller_runtime.session.call_metrics",
        "models.session.cpu_session": "roller_runtime.session.cpu_session",
        "models.session.decoder_session": "roller_runtime.session.decoder_session",
        "models.session.describe_saved": "roller_runtime.session.describe_saved",
        "models.session.range_session": "roller_runtime.session.range_session",
        "models.session.session_metrics": "roller_runtime.session.session_metrics",
        "notebook": "cli.notebook",
        "onnx.compile": "models.compile",
        "onnx.compiled_model": "models.compiled_model",
        "onnx.torch_backend": "models.torch.backend",
        "pipeline": "compiler.pipeline",
        "report.explain": "explanation.explain",
        "report.sensitivity": "explanation.sensitivity",
        "search.constructor": "construction.constructor",
        "varying.kernel": "compiler.dynamic.kernel",
        "varying.open_call": "compiler.dynamic.symbolic_call",
    }.items()
} | {
    f"{_ROOM}.{old}": tuple(f"{_ROOM}.{one}" for one in new.split())
    for old, new in {
        "records": "trace.trace",
        "parallel": "trace.gradient_buckets cost.ring_all_reduce",
        "recording": "step.recording",
        "memory.replay": "memory.simulate",
        "memory.batches": "memory.largest_batch",
        "whatif.graph": "step.graph",
        "whatif.simulate": "step.simulate",
        "whatif.breakdown": "step.breakdown",
        "whatif.replay": "step.replay",
        "whatif.traced": "step.from_trace",
        "whatif.ask": "whatif.predict",
        "whatif.change": "whatif.what_if",
        "whatif.pick": "whatif.task_selection",
    }.items()
}
#: Old name -> new one, in the modules above.
NAMES = {
    "roller.varying.open_call.OpenPiece": "SymbolicPiece",
    "roller.varying.open_call.OpenRange": "SymbolicRange",
} | {
    f"{_ROOM}.{old}": new
    for old, new in {
        "records.Alloc": "AllocEvent",
        "records.Free": "FreeEvent",
        "memory.replay.replay": "simulate_memory",
        "whatif.graph.Graph": "StepGraph",
        "whatif.graph.Place": "TaskContext",
        "whatif.graph.Because": "DependencyKind",
        "whatif.ask.Change": "GraphTransform",
        "whatif.primitives.launched_by": "move_launches",
        "whatif.primitives.named": "annotate",
        "whatif.change.one_of": "allowed_values_metadata",
        "whatif.change.at_least": "minimum_value_metadata",
        "whatif.pick.work": "compute_tasks",
        "whatif.pick.copies": "copy_tasks",
        "whatif.pick.transfers": "network_tasks",
        "whatif.pick.some_layers": "compute_tasks_in_layers",
        "whatif.pick.ordered": "sort_by_start",
        "whatif.pick.by_iteration": "tasks_by_step",
        "whatif.pick.by_layer": "tasks_by_layer",
        "whatif.pick.neighbours": "neighbouring_kernels",
        "whatif.pick.total_us": "total_duration_us",
        "whatif.pick.total_bytes": "total_size_bytes",
        "whatif.pick.shortest_us": "shortest_kernel_us",
        "whatif.pick.spread": "pick_evenly_spaced_tasks",
        "sweep.read_prices": "read_rate_card",
        "sweep.Prices": "RateCard",
        "sweep.Price": "HourlyRate",
    }.items()
}


def warn_renamed(old: str, new: str, stacklevel: int = 3) -> None:
    """Warn that a name is deprecated in favour of ``new``."""
    warnings.warn(f"{old} is now {new}; the old name goes with the next release.", DeprecationWarning, stacklevel)


def getattr_for_moved_names(old: str, homes: Sequence[str]) -> Callable[[str], Any]:
    """Return the ``__getattr__`` for a module whose names have moved to ``homes``."""

    def find_moved_name(name: str) -> Any:
        wanted = NAMES.get(f"{old}.{name}", name)
        for home in homes if not name.startswith("__") else ():
            if (home, wanted) == (old, name):  # a module's own name is looked up before its __getattr__
                continue
            module = import_module(home)
            if hasattr(module, wanted):
                warn_renamed(f"{old}.{name}", f"{home}.{wanted}")
                return getattr(module, wanted)
        raise AttributeError(f"module {old!r} has no attribute {name!r}")

    return find_moved_name


def deprecated_method_replacement(old: str, module: str, name: str) -> Any:
    """Return the function that replaces the method ``old``, imported late because its package is above the caller's."""
    warn_renamed(old, f"{module}.{name}", 4)
    return getattr(import_module(module), name)


class _FormerModuleFinder(MetaPathFinder, Loader):
    """Import finder for the former modules."""

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        if fullname in PACKAGES:
            return ModuleSpec(fullname, self, is_package=True)
        return ModuleSpec(fullname, self) if fullname in MODULES else None

    def create_module(self, spec: ModuleSpec) -> None:
        return None

    def exec_module(self, module: ModuleType) -> None:
        homes = MODULES.get(module.__name__, ())
        module.__getattr__ = getattr_for_moved_names(module.__name__, homes)  # type: ignore[method-assign]

    def get_code(self, fullname: str) -> CodeType:
        """Return code that runs the new module when ``python -m`` is given the former module."""
        (home,) = MODULES[fullname]
        return compile(f"from runpy import run_module\nrun_module({home!r}, run_name='__main__')", fullname, "exec")


def install_module_finder() -> None:
    """Install the finder for former modules, once."""
    if not any(isinstance(finder, _FormerModuleFinder) for finder in sys.meta_path):
        sys.meta_path.append(_FormerModuleFinder())
