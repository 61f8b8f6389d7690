"""Modules that are loaded by name, which no import graph shows: one table of rules, and where each rule applies.

A place in ``roller/`` that loads by name without a rule fails ``tests/tools/test_dynamic_imports.py``, which names it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

KIND = "(cpu|gpu|bsp)"


@dataclass(frozen=True)
class DynamicImport:
    """Modules that a file reaches because its text asks for them at run time.

    Parameters
    ----------
    name
        Name of the rule.
    askers
        Patterns of source text: a file that contains one of them reaches ``loaded``. None where the edges are found
        otherwise (:mod:`tools.affected.names`) or where the loaded code does not belong to this project. Patterns
        start with plain text, which is searched faster by far.
    loaded
        Pattern of whole module names.
    places
        Places in ``roller/`` that load these modules: ``file::qualified name of the function``, or ``file`` where
        the module body does. Calls that ``askers`` matches need not be listed.
    """

    name: str
    askers: tuple[str, ...]
    loaded: str
    places: tuple[str, ...] = ()

    def is_asked(self, text: str) -> bool:
        """Return whether source text asks for the modules."""
        return any(re.search(pattern, text) for pattern in self.askers)

    def loads(self, module: str) -> bool:
        """Return whether a module is one of those loaded."""
        return re.fullmatch(self.loaded, module) is not None


#: Files whose strings name modules for others: the name alone is no edge; whoever asks has one, by a rule below.
TABLES = re.compile(
    rf"roller_runtime/__init__\.py|roller/(__init__|cli/lazy_commands|targets/\w+|templates/{KIND}/registry)\.py"
)
#: Modules whose functions import what they need: each function is a node of its own, so that a
#: caller depends only on the functions it uses.
FACADES = ("roller/compiler/pipeline.py",)

#: Folders whose files import each other without the folder's name, as they are run as scripts, or as a test puts the
#: folder on ``sys.path``.
SCRIPT_FOLDERS = ("benchmarks", "examples", "docs")

_TARGETS = "roller/targets/target.py::Target"


def _of_a_target(methods: str) -> tuple[str, ...]:
    """Return the patterns of calls of a target's methods."""
    return tuple(rf"{owner}\.({methods})\b" for owner in (r"target", r"target_for\(.*\)", r"target_of_language\(.*\)",
                                                         r"LANGUAGES\[.*\]"))  # fmt: skip


RULES = (
    # Names that are resolved one by one: tools/affected/names.py finds who uses which.
    DynamicImport(
        "public names of roller", (r"roller\.__all__", r"getattr\(roller,", r"roller\._HOME\b"),
        r"roller\.(construction\.constructor|compiler\.(compiled_kernel|pipeline)|templates\.common\.options|hardware|perf"
        r"|artifact|tile|errors|expr|models\.(compile|session\.saved)|explanation\.(explain|sensitivity)|insight\.\w+"
        r"|insight\.step\.\w+|insight\.whatif\.predict|cli\.notebook|ops)",
        ("roller/__init__.py::__getattr__",),
    ),
    DynamicImport(
        "public names of roller_runtime", (r"roller_runtime\.__all__",),
        r"roller_runtime\.(errors|cpu\.tvm_libraries|session\.\w+)", ("roller_runtime/__init__.py::__getattr__",),
    ),
    DynamicImport(
        "verbs of the command line", (r"VERBS\b", r"LazyCommands", r"--help[\"']", r"get_command\(app\)"),
        r"roller\.cli\.\w+", ("roller/cli/lazy_commands.py::load_command",),
    ),
    DynamicImport(
        "what the process that forks for live profiles imports first", (r"_PRELOADED\b",),
        r"roller\.(insight\.(trace\.pytorch\.entry_file|step_profile\.(profiling|difference)|forecast|whatif\.search)"
        r"|server\.profile_worker)",
        ("roller/server/fork_server.py::main",),
    ),
    DynamicImport(
        "names of the release before", (r"core\.renamed import MODULES",),
        r"roller\.(insight\.((trace|memory|cost|step|whatif)\.\w+|traced_step)|cli\.notebook|compiler\.(compiled_kernel"
        r"|pipeline|dynamic\.\w+)|construction\.constructor|explanation\.\w+|models\.(compile|compiled_model"
        r"|session\.\w+|torch\.backend))",
        (
            "roller/core/renamed.py::getattr_for_moved_names.find_moved_name",
            "roller/core/renamed.py::deprecated_method_replacement",
        ),
    ),
    DynamicImport(
        "the process of a project", (r"worker = \"roller\.insight\.",),
        r"roller\.insight\.(project_worker|capture\.script_worker)",
    ),
    # Devices, by their kind.
    DynamicImport("templates", (r"\.module_for\(\"templates\"\)",), rf"roller\.templates\.{KIND}(\.registry)?"),
    DynamicImport("checks of templates", (r"\.module_for\(\"templates\", \"checks\"\)",),
                  rf"roller\.templates\.{KIND}\.checks"),
    DynamicImport("steps of templates", (r"\.module_for\(\"templates\", \"construction_steps\"\)",),
                  rf"roller\.templates\.{KIND}\.construction_steps"),
    DynamicImport("kernels for ranges", (r"\.module_for\(\"compiler\.dynamic\"\)",),
                  rf"roller\.compiler\.dynamic\.{KIND}"),
    DynamicImport("probes", (r"\.module_for\(\"probing\"\)",), rf"roller\.probing\.{KIND}"),
    DynamicImport("a kind's modules", (), r"roller\.(templates|compiler\.dynamic|probing)\..*",
                  ("roller/targets/kinds.py::DeviceKind.module_for",)),
    # Code generation.
    DynamicImport(
        "emitters",
        (r"template_writing\(.*\)\.emit", r"template\.emitted", r"\.lower\([^)\s]",
         *_of_a_target("prepare|generation")),
        rf"roller\.templates\.{KIND}\.(\w+\.emit\w*|emit(\.\w+)?)",
        (f"{_TARGETS}.prepare", f"{_TARGETS}.generation",
         "roller/templates/common/template.py::Template.emitted"),
    ),
    # Targets.
    DynamicImport(
        "toolchains and launchers",
        (r"\.toolchain_module\(\)", r"\.can_build\b", r"handle\.target", *_of_a_target("build|load")),
        r"roller\.backends\.\w+\.(toolchain|launcher|(profiling_)?device|gpu)",
        (f"{_TARGETS}.toolchain_module", f"{_TARGETS}.load"),
    ),
    DynamicImport("workers", (r"\.open_worker\b",), r"roller\.backends\.\w+\.(profiling_)?device",
                  (f"{_TARGETS}.open_worker",)),
    DynamicImport(
        "devices of sessions", (r"session_device\b",),
        r"roller\.(models\.session\.gpu_device|backends\.null\.gpu|emulator\.emulated_device)",
        tuple(
            f"roller/targets/{target}.py::_open_{device}_device"
            for target, device in (("cuda", "cupy"), ("hip", "rocm"), ("emulated", "emulated"), ("null", "null"))
        ),
    ),
    DynamicImport(
        "emulators", (r"known\[artifact\.language\]",), r"roller\.emulator\.(emulate|codelet_emulator)",
        ("roller/emulator/emulate.py::emulator_of_artifact",),
    ),
    DynamicImport("every target", (r"import pytest(?s:.*)\bTARGETS\b",), r"roller\.(backends|probing|emulator)(\..*)?"),
    DynamicImport("any reference of a target", (), r"roller\..*",
                  ("roller/targets/lazy.py::lazy_module",)),
    # Folders and names made of parts.
    DynamicImport(
        "operators of ONNX", (r"iter_modules\(__path__\)",), r"roller\.models\.onnx\.operators\.\w+",
        ("roller/models/onnx/operators/__init__.py",),
    ),
    DynamicImport(
        "PyTorch's entry point", (r"backend=\"roller\"", r"torch_dynamo_backends"), r"roller\.models\.torch\.backend",
    ),
    DynamicImport("verbs of benchmarks.insight", (r"benchmarks\.insight\.\{",), r"benchmarks\.insight\.\w+"),
    DynamicImport(
        "models of the training benchmark", (r"\.workload\(", r"suite_app"), r"roller\.suite\.models\.\w+",
        ("roller/suite/entry.py::SuiteModel.workload",),
    ),
    DynamicImport(
        "what the API reference names", (r"hasattr\(importlib\.import_module\(module\), name\)",),
        r"roller(_runtime)?\..*",
    ),
    DynamicImport("examples", (r"examples\.\{",), r"examples\.\w+"),
    DynamicImport("families of models", (r"families\.\{",), r"tests\.models\.onnx\.families\.\w+"),
    # Not this project's code: a user's.
    DynamicImport("a script to record", (), r"examples\..*", ("roller/cli/record.py::record_command",)),
    DynamicImport(
        "a script to trace", (), r"examples\..*",
        ("roller/insight/trace/pytorch/script_runner.py::ScriptRunner._run_script",),
    ),
    DynamicImport(
        "an entry file to trace", (), r"examples\..*", ("roller/insight/trace/pytorch/entry_file.py::load_entry_file",)
    ),
)  # fmt: skip
