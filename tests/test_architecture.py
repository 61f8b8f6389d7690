"""The house holds: floors import only floors below them, TVM stays in two rooms, files stay short."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "roller"

#: Bottom to top. A floor imports only floors before it in this list; ``roller`` itself loads all of them lazily.
FLOORS = (
    "display", "errors", "validation", "processor", "files", "scratch", "c_compiler", "cyclic", "fragment", "expr",
    "hardware", "ops", "tile", "perf", "construction", "explaining", "artifact", "packed", "te", "codegen", "emulator",
    "backends", "runtime", "model", "probing", "compiled", "arguments", "choosing", "pipeline", "onnx", "report",
    "roller", "cli",
)  # fmt: skip

#: Pairs that are neighbours, not stairs: neither may import the other.
SIBLINGS = (("expr", "hardware"), ("ops", "hardware"), ("ops", "tile"), ("perf", "ops"),
            ("construction", "ops"), ("artifact", "explaining"),
            ("te", "hardware"), ("artifact", "perf"), ("artifact", "construction"), ("backends", "codegen"),
            ("emulator", "codegen"), ("emulator", "te"), ("emulator", "perf"), ("emulator", "construction"),
            ("emulator", "hardware"), ("emulator", "ops"), ("probing", "perf"), ("probing", "construction"),
            ("probing", "codegen"))  # fmt: skip

#: What a bare machine has on which a compiled kernel only runs, and what each launcher may need besides.
RUNS_BARE = (
    "display", "errors", "validation", "processor", "files", "scratch", "fragment", "expr", "tile", "artifact",
    "packed", "emulator",
)  # fmt: skip
#: Used where it is installed, and done without where it is not.
OPTIONAL = {"roller.runtime.cache_location": {"platformdirs"}}
FILES = sorted(PACKAGE.rglob("*.py"))


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def floor_of(module: str) -> str:
    parts = module.split(".")
    return parts[1] if len(parts) > 1 else "roller"


def imports_of(path: Path, *, when_loaded: bool = False) -> set[str]:
    """Modules a file imports, except for type checking alone; at any depth, or only what loading it imports."""
    found: set[str] = set()

    def visit(node: ast.AST) -> None:
        if when_loaded and isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            return
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            for child in node.orelse:
                visit(child)
            return
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            base = node.module or ""
            names = {f"{base}.{alias.name}" for alias in node.names}
            found.update(names & set(MODULES) if base.startswith("roller") else set())
            if base != "roller" or not names <= set(MODULES):
                found.add(base)
        for child in ast.iter_child_nodes(node):
            visit(child)

    visit(ast.parse(path.read_text()))
    return found


MODULES = {module_name(p): p for p in FILES}
IMPORTS = {name: imports_of(path) for name, path in MODULES.items()}
LOADED = {name: imports_of(path, when_loaded=True) & set(MODULES) for name, path in MODULES.items()}


def internal(name: str) -> set[str]:
    return {i for i in IMPORTS[name] if i in MODULES}


def external(name: str) -> set[str]:
    tops = {i.split(".")[0] for i in IMPORTS[name]} - {"roller"}
    return {t for t in tops if t not in sys.stdlib_module_names}


def test_the_package_was_found():
    assert {"roller", "roller.errors", "roller.hardware.spec", "roller.expr.scalar"} <= set(MODULES)
    assert "roller.errors" in internal("roller.hardware.checks")
    assert external("roller.hardware.reader") == {"yaml"}


@pytest.mark.parametrize("name", MODULES)
def test_floor_is_known_and_imports_only_below(name):
    floor = floor_of(name)
    assert floor in FLOORS, f"{name}: a new floor; give it its place in FLOORS and docs/architecture.md"
    if name == "roller":
        return
    for other in internal(name):
        below = floor_of(other)
        assert below == floor or FLOORS.index(below) < FLOORS.index(floor), f"{name} imports {other}, which is above it"


@pytest.mark.parametrize(("one", "other"), SIBLINGS)
def test_siblings_do_not_import_each_other(one, other):
    for name in MODULES:
        if floor_of(name) in (one, other):
            strangers = [i for i in internal(name) if floor_of(i) in (one, other) and floor_of(i) != floor_of(name)]
            assert not strangers, f"{name} imports its sibling: {strangers}"


def test_no_cycles():
    """Loading a module never comes back to it; a method may still import a file of its own floor when called."""
    done: set[str] = set()

    def visit(name: str, path: tuple[str, ...]) -> None:
        assert name not in path, "cycle: " + " -> ".join((*path[path.index(name) :], name))
        if name in done:
            return
        for other in sorted(LOADED[name]):
            # A package that loads its own parts is being loaded already, as is the one a part belongs to.
            if other != name and not name.startswith(f"{other}."):
                visit(other, (*path, name))
        done.add(name)

    for name in sorted(MODULES):
        visit(name, ())
    assert done == set(MODULES)


@pytest.mark.parametrize("name", MODULES)
def test_tvm_is_imported_only_in_te_and_codegen(name):
    if floor_of(name) not in ("te", "codegen"):
        assert "tvm" not in external(name)


def test_moved_tvm_names_live_in_the_compat_modules():
    users = {name for name in MODULES if "tvm" in external(name)}
    for name in users:
        text = MODULES[name].read_text()
        if not name.endswith(".compat"):
            assert "import tirx" not in text, f"{name}: take tirx from the compat module"
            assert "tvm.s_tir" not in text, f"{name}: take s_tir from the compat module"


def closure(name: str) -> set[str]:
    seen: set[str] = set()
    todo = [name]
    while todo:
        current = todo.pop()
        if current in seen or current == "roller":
            continue
        seen.add(current)
        todo += internal(current)
        if "." in current.removeprefix("roller."):
            todo.append(current.rpartition(".")[0])
    return seen


BARE = [
    name for name in MODULES
    if floor_of(name) in (*RUNS_BARE, "runtime") or (floor_of(name) == "backends" and name.endswith(".launcher"))
]  # fmt: skip


@pytest.mark.parametrize("name", BARE)
def test_running_a_kernel_needs_the_standard_library_and_numpy(name):
    allowed = {"numpy"} | ({"tvm_ffi", "cupy"} if floor_of(name) in ("backends", "runtime") else set())
    for module in closure(name):
        strange = external(module) - allowed - OPTIONAL.get(module, set())
        assert not strange, f"{name} reaches {module}, which imports {strange}"


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(ROOT)))
def test_files_stay_short(path):
    assert len(path.read_text().splitlines()) <= 400


def run(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_importing_roller_loads_nothing():
    code = (
        "import sys, roller; print(roller.__version__); "
        "print(sorted({'tvm', 'tvm_ffi', 'numpy', 'yaml', 'typer', 'rich'} & set(sys.modules)))"
    )
    assert run(code).splitlines()[1] == "[]"


def test_constructing_and_predicting_need_no_tvm():
    code = (
        "import sys, roller\n"
        "sys.modules['tvm'] = None  # any import of it raises\n"
        "expr = roller.ops.matmul(256, 256, 256)\n"
        "found = roller.construct(expr, device='v100', top_k=3)\n"
        "tiles = {'shared': {'i': 64, 'j': 64, 'k': 8}, 'register': {'i': 4, 'j': 4}}\n"
        "print(len(found), roller.predict(expr, device='k80', tiles=tiles).seconds > 0)"
    )
    assert run(code) == "3 True"


def test_public_names_resolve():
    import roller

    for name in roller.__all__:
        assert getattr(roller, name) is not None
    assert callable(roller.construct)
    with pytest.raises(AttributeError, match="has no attribute 'nonsense'"):
        roller.nonsense  # noqa: B018
