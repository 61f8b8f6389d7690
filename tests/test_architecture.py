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
    "errors", "core", "targets", "expr", "hardware", "ops", "tile", "perf", "artifact", "horizontal", "te", "templates",
    "search", "explaining", "emulator", "backends", "runtime", "graph", "model", "probing", "compiled", "arguments",
    "choosing", "varying", "pipeline", "batch", "onnx", "report", "insight", "roller", "cli",
)  # fmt: skip

#: Pairs that are neighbours, not stairs: neither may import the other.
SIBLINGS = (("expr", "hardware"), ("ops", "hardware"), ("ops", "tile"), ("perf", "ops"),
            ("templates", "ops"), ("search", "ops"), ("artifact", "explaining"), ("search", "artifact"),
            ("te", "hardware"), ("artifact", "perf"), ("backends", "templates"), ("graph", "runtime"),
            ("emulator", "templates"), ("emulator", "te"), ("emulator", "perf"), ("emulator", "search"),
            ("emulator", "hardware"), ("emulator", "ops"), ("probing", "perf"), ("probing", "search"),
            ("probing", "templates"))  # fmt: skip

#: What a bare machine has on which a compiled kernel only runs, and what each launcher may need besides.
RUNS_BARE = ("errors", "core", "targets", "expr", "tile", "artifact", "horizontal", "emulator")
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


def test_no_circle_crosses_a_folder():
    """Not even of imports that wait for a call: what needs each other stands in one folder."""

    def reached(start: str) -> set[str]:
        seen: set[str] = set()
        todo = [start]
        while todo:
            fresh = internal(todo.pop()) - seen - {"roller"}
            seen |= fresh
            todo += fresh
        return seen

    def folder(name: str) -> Path:
        return MODULES[name].parent

    reach = {name: reached(name) for name in MODULES if name != "roller"}
    circles = [(a, b) for a in reach for b in reach[a] if a < b and a in reach[b] and folder(a) != folder(b)]
    assert not circles


def emits(name: str) -> bool:
    """Whether a module of ``templates/`` writes code: it, or a package it is in, is called ``emit``."""
    return floor_of(name) == "templates" and any(part.split("_")[0] == "emit" for part in name.split("."))


@pytest.mark.parametrize("name", MODULES)
def test_tvm_is_imported_only_in_te_and_where_templates_emit(name):
    if floor_of(name) != "te" and not emits(name):
        assert "tvm" not in external(name)
        if floor_of(name) == "templates":
            upwards = {i for i in internal(name) if emits(i) or floor_of(i) in ("te", "artifact", "horizontal")}
            assert not upwards, f"{name}: what is offered and priced must not need the code: {upwards}"


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


def test_constructing_loads_the_templates_of_one_kind_of_device():
    code = (
        "import sys, roller\n"
        "roller.construct(roller.ops.matmul(64, 64, 64), device='v100', top_k=1)\n"
        "rooms = {m.split('.')[2] for m in sys.modules if m.startswith('roller.templates.')}\n"
        "print(sorted({'bsp', 'cpu', 'gpu'} & rooms))"
    )
    assert run(code) == "['gpu']"


def test_public_names_resolve():
    import roller

    for name in roller.__all__:
        assert getattr(roller, name) is not None
    assert callable(roller.construct)
    with pytest.raises(AttributeError, match="has no attribute 'nonsense'"):
        roller.nonsense  # noqa: B018


def comparisons_by_name(tree: ast.AST) -> list[str]:
    """Return comparisons of a device's kind or a kernel's language with a name."""
    names = {"bsp", "cpu", "gpu", "cuda", "hip", "llvm", "poplar", "rocm", "null", "emulated"}

    def asks(node: ast.expr) -> bool:
        return getattr(node, "attr", getattr(node, "id", "")) in ("kind", "language", "device") or (
            isinstance(node, ast.Call) and any(isinstance(a, ast.Constant) and a.value == "language" for a in node.args)
        )

    def name(node: ast.expr) -> bool:
        return any(isinstance(n, ast.Constant) and n.value in names for n in ast.walk(node))

    found = (n for n in ast.walk(tree) if isinstance(n, ast.Compare))
    return [
        ast.unparse(n)
        for n in found
        if any(asks(x) for x in (n.left, *n.comparators)) and any(name(x) for x in n.comparators)
    ]


@pytest.mark.parametrize("name", MODULES)
def test_kinds_and_languages_are_facts_of_the_registry(name):
    found = comparisons_by_name(ast.parse(MODULES[name].read_text()))
    assert not found, f"{name}: {found}: ask roller.targets, or the traits of the specification, for what is decided by"


def test_comparisons_by_name_are_found():
    text = 'a.kind == "gpu"\nlanguage in ("cuda", "hip")\nspec.target.get("language") != "hip"\ndtype.kind == "f"'
    assert len(comparisons_by_name(ast.parse(text))) == 3


def test_every_kind_has_templates():
    from roller.targets import KINDS
    from roller.templates.registry import templates_of

    for kind in KINDS:
        folder = PACKAGE / "templates" / kind
        names = [t.name for t in templates_of(kind)]
        assert len(set(names)) == len(names) > 0
        assert all((folder / name / "__init__.py").exists() for name in names)
