"""Rules of the package's structure: those that no contract of import-linter in ``pyproject.toml`` can express.

Each rule is one test that names all offenders. Imports come from ``grimp``; a file is parsed only where a rule asks for
its syntax tree, and once.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterable
from functools import cache
from pathlib import Path

import grimp
import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "roller"
RUNTIME = ROOT / "roller_runtime"

#: What a bare machine has on which a compiled kernel only runs, and what each launcher may need besides.
RUNS_BARE = ("roller_runtime", "errors", "core", "targets", "expr", "tile", "artifact", "emulator")
#: Their own modules load public names on first use.
PACKAGES = {"roller", "roller_runtime"}
#: Used where it is installed, and done without where it is not.
OPTIONAL = {
    "roller.core.cache_location": {"platformdirs"},
    "roller_runtime.session.fallback_runtime": {"onnxruntime"},
}


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def floor_of(module: str) -> str:
    parts = module.split(".")
    return parts[1] if parts[0] == "roller" and len(parts) > 1 else parts[0]


def expect_none(offenders: Iterable[str]) -> None:
    """Fail with all offenders, one a line: pytest shortens long collections."""
    found = sorted(offenders)
    if found:
        pytest.fail("\n".join(found), pytrace=False)


@cache
def modules() -> dict[str, Path]:
    return {module_name(p): p for p in sorted((*PACKAGE.rglob("*.py"), *RUNTIME.rglob("*.py")))}


@cache
def text_of(name: str) -> str:
    return modules()[name].read_text(encoding="utf-8")


@cache
def tree_of(name: str) -> ast.Module:
    return ast.parse(text_of(name))


@cache
def graph() -> grimp.ImportGraph:
    """Return the imports at any depth, except for type checking alone."""
    return grimp.build_graph(
        "roller", "roller_runtime", include_external_packages=True, exclude_type_checking_imports=True, cache_dir=None
    )


@cache
def imports_of(name: str) -> dict[str, bool]:
    """Return the modules of the package that a module imports, and whether loading it does: not first a call."""
    found: dict[str, bool] = {}
    for other in graph().find_modules_directly_imported_by(name) & modules().keys():
        for detail in graph().get_import_details(importer=name, imported=other):
            when_loaded = not in_function(name, detail["line_number"])
            package = other.rpartition(".")[0]
            # `from package import module` loads the package too.
            named = {other, package} if f"from {package} import" in detail["line_contents"] else {other}
            for module in named - PACKAGES | (PACKAGES & {other}):
                found[module] = found.get(module, False) or when_loaded
    return found


def in_function(name: str, line: int) -> bool:
    """Return whether a line of a module runs only when a function is called."""
    if not text_of(name).splitlines()[line - 1].startswith((" ", "\t")):
        return False
    functions = (n for n in ast.walk(tree_of(name)) if isinstance(n, (ast.FunctionDef, ast.AsyncFunctionDef)))
    return any(n.lineno < line <= (n.end_lineno or n.lineno) for n in functions)


def internal(name: str) -> set[str]:
    return set(imports_of(name))


def external(name: str) -> set[str]:
    others = graph().find_modules_directly_imported_by(name) - modules().keys()
    return {other for other in others if other not in sys.stdlib_module_names}


def test_the_package_was_found():
    assert {"roller", "roller.errors", "roller.hardware.spec", "roller.expr.scalar"} <= set(modules())
    assert modules().keys() <= graph().modules
    assert "roller.errors" in internal("roller.hardware.checks")
    assert external("roller.hardware.reader") == {"yaml"}
    # A function of the facade imports a stage when it is called; the expression is imported when the facade is.
    assert (
        not imports_of("roller.compiler.pipeline")["roller.construction.constructor"]
        and imports_of("roller.compiler.pipeline")["roller.expr"]
    )
    assert "roller_runtime.cpu" in internal("roller.backends.cpu.run_once_on_given_memory"), (
        "the package of `from package import`"
    )


def test_the_contracts_of_imports_are_kept():
    """Floors, neighbours, TVM, what runs bare: see ``[tool.importlinter]`` in ``pyproject.toml``."""
    words = [str(Path(sys.executable).with_name("lint-imports")), "--no-logo", "--no-cache"]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr


def test_no_import_is_relative():
    relative = re.compile(r"^\s*from\s+\.", re.MULTILINE)
    expect_none(f"{name}: relative import" for name in modules() if relative.search(text_of(name)))


def test_no_cycles():
    """Loading a module never comes back to it; a method may still import a file of its own floor when called."""
    done: set[str] = set()
    cycles: list[str] = []

    def visit(name: str, path: tuple[str, ...]) -> None:
        if name in path:
            cycles.append(" -> ".join((*path[path.index(name) :], name)))
            return
        if name in done:
            return
        for other in sorted(m for m, when_loaded in imports_of(name).items() if when_loaded):
            # A package that loads its own parts is being loaded already, as is the one a part belongs to.
            if other != name and not name.startswith(f"{other}."):
                visit(other, (*path, name))
        done.add(name)

    for name in sorted(modules()):
        visit(name, ())
    expect_none(cycles)
    assert done == set(modules())


def test_no_circle_crosses_a_folder():
    """Not even of imports that wait for a call: what needs each other stands in one folder."""

    def reached(start: str) -> set[str]:
        seen: set[str] = set()
        todo = [start]
        while todo:
            fresh = internal(todo.pop()) - seen - PACKAGES
            seen |= fresh
            todo += fresh
        return seen

    def folder(name: str) -> Path:
        return modules()[name].parent

    reach = {name: reached(name) for name in modules() if name not in PACKAGES}
    expect_none(
        f"{a} and {b} need each other"
        for a in reach for b in reach[a] if a < b and a in reach[b] and folder(a) != folder(b)
    )  # fmt: skip


def test_no_circle_even_for_types():
    """What is below never names what is above it, not even in an annotation."""
    whole = grimp.build_graph("roller", "roller_runtime", exclude_type_checking_imports=False, cache_dir=None)

    def at_load_or_for_types(name: str, other: str) -> bool:
        details = whole.get_import_details(importer=name, imported=other)
        return any(not in_function(name, d["line_number"]) for d in details)

    needs = {
        name: {o for o in whole.find_modules_directly_imported_by(name) - {name} if at_load_or_for_types(name, o)}
        for name in modules()
    }
    assert len(needs) > 1000 and "roller.tile.program" in needs["roller.construction.parse_program_names"]
    while free := {m for m, others in needs.items() if not others}:  # what needs nothing that is left
        needs = {m: others - free for m, others in needs.items() if m not in free}
    expect_none(f"{m} needs {', '.join(sorted(others))}" for m, others in needs.items())


def test_what_prices_programs_lies_above_perf():
    """Templates use the frame of ``perf/``; it asks no kind for its templates, by name neither."""
    expect_none(
        f"{name} asks for templates"
        for name in modules()
        if floor_of(name) == "perf" and ".module_for(" in text_of(name)
    )


def emits(name: str) -> bool:
    """Whether a module of ``templates/`` writes code: it, or a package it is in, is called ``emit``."""
    return floor_of(name) == "templates" and any(part.split("_")[0] == "emit" for part in name.split("."))


def test_tvm_is_imported_only_in_te_and_where_templates_emit():
    expect_none(
        f"{name} imports tvm"
        for name in modules()
        if floor_of(name) != "te" and not emits(name) and "tvm" in external(name)
    )


def test_candidates_and_prices_do_not_import_code_generation():
    offenders = {
        name: {i for i in internal(name) if emits(i) or floor_of(i) in ("te", "artifact")}
        for name in modules()
        if floor_of(name) == "templates" and not emits(name)
    }
    expect_none(f"{name} imports {other}" for name, found in offenders.items() for other in found)


def test_moved_tvm_names_live_in_the_compat_modules():
    expect_none(
        f"{name}: {moved}: take it from the compat module"
        for name in modules()
        if "tvm" in external(name) and not name.endswith(".compat")
        for moved in ("import tirx", "tvm.s_tir")
        if moved in text_of(name)
    )


def closure(name: str) -> set[str]:
    seen: set[str] = set()
    todo = [name]
    while todo:
        current = todo.pop()
        if current in seen or current in PACKAGES:
            continue
        seen.add(current)
        todo += internal(current)
        if current.count(".") > 1:
            todo.append(current.rpartition(".")[0])
    return seen


def test_running_a_kernel_needs_the_standard_library_and_numpy():
    bare = [
        name for name in modules()
        if floor_of(name) in (*RUNS_BARE, "runtime") or (floor_of(name) == "backends" and name.endswith(".launcher"))
    ]  # fmt: skip
    reached_from: dict[tuple[str, str], list[str]] = {}
    for name in bare:
        allowed = {"numpy"} | ({"tvm_ffi", "cupy"} if floor_of(name) in ("backends", "runtime") else set())
        for module in closure(name):
            for strange in external(module) - allowed - OPTIONAL.get(module, set()):
                reached_from.setdefault((module, strange), []).append(name)
    expect_none(
        f"{module} imports {strange}; {len(names)} modules reach it, {names[0]} first"
        for (module, strange), names in reached_from.items()
    )


#: What runs kernels and models, and what it must do without.
RUNS_MODELS = (
    "roller.expr",
    "roller.tile",
    "roller.artifact",
    "roller.models.session",
    "roller_runtime",
)
COMPILES = (
    "arguments", "compiler", "construction", "explanation", "hardware", "ops", "perf", "probing", "te", "templates",
)  # fmt: skip


def test_running_kernels_and_saved_models_needs_no_compiler():
    sources = [name for name in modules() if f"{name}.".startswith(tuple(f"{room}." for room in RUNS_MODELS))]
    launchers = [name for name in modules() if floor_of(name) == "backends" and name.endswith(".launcher")]
    assert len(sources) > 50 and launchers
    expect_none(f"{n} reaches {m}" for n in sources + launchers for m in closure(n) if floor_of(m) in COMPILES)


def test_the_runtime_needs_numpy_alone():
    """Everything else it uses where it is installed, as another runtime for the subgraphs of a fallback."""
    runtime = [name for name in modules() if name.split(".")[0] == "roller_runtime"]
    assert len(runtime) > 50
    expect_none(
        f"{name} imports {other}"
        for name in runtime
        for other in external(name) - {"numpy"} - OPTIONAL.get(name, set())
    )


def test_files_stay_short():
    lengths = {name: len(text_of(name).splitlines()) for name in modules()}
    expect_none(f"{name}: {lines} lines, more than 400" for name, lines in lengths.items() if lines > 400)


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


def test_names_of_specifications_load_no_yaml():
    code = (
        "import sys; from roller.hardware import DeviceSpec, MemoryLayer\n"
        "print('yaml' in sys.modules)\n"
        "from roller.hardware import load_spec; print(load_spec('v100').units, 'yaml' in sys.modules)"
    )
    assert run(code).splitlines() == ["False", "80 True"]


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


#: Kinds, languages and devices.
NAMES = {"bsp", "cpu", "gpu", "cuda", "hip", "llvm", "poplar", "rocm", "null", "emulated"}


def comparisons_by_name(tree: ast.AST) -> list[str]:
    """Return comparisons of a device's kind or a kernel's language with a name."""

    def asks(node: ast.expr) -> bool:
        return getattr(node, "attr", getattr(node, "id", "")) in ("kind", "language", "device") or (
            isinstance(node, ast.Call) and any(isinstance(a, ast.Constant) and a.value == "language" for a in node.args)
        )

    def name(node: ast.expr) -> bool:
        return any(isinstance(n, ast.Constant) and n.value in NAMES for n in ast.walk(node))

    found = (n for n in ast.walk(tree) if isinstance(n, ast.Compare))
    return [
        ast.unparse(n)
        for n in found
        if any(asks(x) for x in (n.left, *n.comparators)) and any(name(x) for x in n.comparators)
    ]


def test_kinds_and_languages_are_facts_of_the_registry():
    """Ask ``roller.targets``, or the traits of the specification, for what is decided by."""
    quoted = re.compile(rf"[\"']({'|'.join(NAMES)})[\"']")
    suspects = [name for name in modules() if quoted.search(text_of(name))]
    expect_none(f"{name}: {found}" for name in suspects for found in comparisons_by_name(tree_of(name)))


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
