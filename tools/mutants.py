"""Mutation testing: draws mutants, finds the tests that reach each, and runs those against it.

``draw`` draws places of ``roller/templates``, ``onnx`` and ``insight`` by a seed, runs the quick tests once on a copy
whose places note the test that reaches them, and keeps the first places that a test reaches, one mutant each, in
``tools/mutants.json``. ``reach`` adds what other tests reach (``-m slow``, files of tests). ``run`` plants one mutant
after the other and runs the tests that reach it, all cases of each; where none of them fails, the mutant survived.
``run`` goes on where it stopped, and with ``--before RESULTS`` tries the test first that killed the mutant there. All
take the mutants of the list as they are: those whose file has changed there since are named and left out.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
LIST = Path(__file__).with_name("mutants.json")
FOLDERS = ("roller/templates", "roller/models/onnx", "roller/insight")
_COMPARED = {ast.Lt: "<=", ast.LtE: "<", ast.Gt: ">=", ast.GtE: ">", ast.Eq: "!=", ast.NotEq: "==",
             ast.Is: "is not", ast.IsNot: "is", ast.In: "not in", ast.NotIn: "in"}  # fmt: skip
_CALCULATED = {ast.Add: "-", ast.Sub: "+", ast.Mult: "+", ast.Div: "*", ast.FloorDiv: "*", ast.Mod: "*",
               ast.BitAnd: "|", ast.BitOr: "&"}  # fmt: skip
_SWAPPED = {"min": "max", "max": "min", "any": "all", "all": "any"}
#: Written beside the instrumented tree: appends the running test once for each place, from every process.
_PROBE = """
import os
_seen = set()

def hit(place):
    test = os.environ.get("PYTEST_CURRENT_TEST", "").rpartition(" ")[0]
    if test and (place, test) not in _seen:
        _seen.add((place, test))
        with open(os.environ["MUTANT_PROBE_FOLDER"] + f"/{os.getpid()}", "a") as file:
            file.write(f"{place}\\t{test}\\n")
"""


@dataclass(frozen=True)
class Mutant:
    """One mutant: characters ``start`` to ``end`` of a file, ``old``, become ``new``.

    It is in the expression or statement of characters ``first`` to ``last``.
    """

    path: str
    line: int
    start: int
    end: int
    first: int
    last: int
    old: str
    new: str

    @property
    def name(self) -> str:
        """Label for reports."""
        return f"{self.path}:{self.line}: {self.old.strip()} -> {self.new.strip()}"


def _replacements(node: ast.AST) -> Iterator[tuple[Any, Any, str]]:
    """Yield what may be changed at a node: text between two operands, or instead of the whole node."""
    if isinstance(node, ast.Compare) and len(node.ops) == 1:
        yield node.left, node.comparators[0], _COMPARED[type(node.ops[0])]
    elif isinstance(node, ast.BinOp) and type(node.op) in _CALCULATED:
        yield node.left, node.right, _CALCULATED[type(node.op)]
    elif isinstance(node, ast.BoolOp):
        yield node.values[0], node.values[1], "or" if isinstance(node.op, ast.And) else "and"
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        yield node, None, f"bool({ast.unparse(node.operand)})"
    elif isinstance(node, ast.Constant) and type(node.value) is bool:
        yield node, None, repr(not node.value)
    elif isinstance(node, ast.Constant) and isinstance(node.value, (int, float)):
        yield node, None, repr(node.value + 1)
    elif isinstance(node, ast.Name) and node.id in _SWAPPED:
        yield node, None, _SWAPPED[node.id]
    elif isinstance(node, ast.Continue):
        yield node, None, "break"
    elif isinstance(node, ast.Return) and node.value is not None and not isinstance(node.value, ast.Constant):
        yield node, None, "return None"
    elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
        yield node, None, "pass"


def _nodes(tree: ast.AST) -> Iterator[Any]:
    """Yield the nodes of bodies of functions, but not of formatted strings, annotations and patterns."""
    todo: list[ast.AST] = [
        s for n in ast.walk(tree) if isinstance(n, (ast.FunctionDef, ast.AsyncFunctionDef)) for s in n.body
    ]
    while todo:
        node = todo.pop()
        if not isinstance(node, (ast.JoinedStr, ast.AnnAssign, ast.FunctionDef, ast.match_case, ast.Raise)):
            yield node
            todo += ast.iter_child_nodes(node)


def mutants_of(path: str, text: str) -> list[Mutant]:
    """Return what may be changed in the functions of a file: what loading a module runs is left out.

    Examples
    --------
    >>> [(m.old, m.new) for m in mutants_of("a.py", "def f(x): return x < 2")]
    [('2', '3'), (' < ', ' <= '), ('return x < 2', 'return None')]
    """
    rows = text.splitlines(keepends=True)
    starts = [0]
    for row in rows:
        starts.append(starts[-1] + len(row))

    def place(line: int, column: int) -> int:
        return starts[line - 1] + len(rows[line - 1].encode()[:column].decode())

    found: dict[tuple[int, int], Mutant] = {}
    for node in _nodes(ast.parse(text)):
        for left, right, new in _replacements(node):
            first, last = place(node.lineno, node.col_offset), place(node.end_lineno, node.end_col_offset)
            start, end = (first, last) if right is None else (
                place(left.end_lineno, left.end_col_offset), place(right.lineno, right.col_offset)
            )  # fmt: skip
            old = text[start:end]
            if "\n" not in old and not (right is not None and set("()#") & set(old)):
                new = new if right is None else f" {new} "
                found[start, end] = Mutant(path, text.count("\n", 0, start) + 1, start, end, first, last, old, new)
    return sorted(found.values(), key=lambda m: (m.line, -m.start))


def _parses(text: str) -> bool:
    try:
        ast.parse(text)
    except SyntaxError:
        return False
    return True


def mutated(mutant: Mutant, text: str) -> str:
    """Return a file's text with the mutant.

    Raises
    ------
    ValueError
        Where the file has changed since the draw.
    """
    if text[mutant.start : mutant.end] != mutant.old:
        raise ValueError(f"{mutant.name}: expected these characters there. Draw the mutants anew.")
    return text[: mutant.start] + mutant.new + text[mutant.end :]


def instrumented(mutants: Sequence[tuple[int, Mutant]], text: str) -> str:
    """Return a file's text whose numbered places note that they were reached; places must not overlap."""
    for number, m in sorted(mutants, key=lambda pair: -pair[1].first):
        inner, call = text[m.first : m.last], f"__import__('mutant_probe').hit({number})"
        statement = inner.startswith(("return ", "continue")) or m.new == "pass"
        text = text[: m.first] + (f"{call}; {inner}" if statement else f"({call} or ({inner}))") + text[m.last :]
    return text


def draw(count: int, seed: int) -> list[Mutant]:
    """Draw candidates, at most one a line and none inside another; every line is as likely as any other."""
    generator = random.Random(seed)
    places = [
        mutants
        for folder in FOLDERS
        for path in sorted((ROOT / folder).rglob("*.py"))
        for mutants in _by_line(mutants_of(str(path.relative_to(ROOT)), path.read_text(encoding="utf-8")))
    ]
    generator.shuffle(places)
    drawn: list[Mutant] = []
    for mutants in places:
        mutant = generator.choice(mutants)
        text = (ROOT / mutant.path).read_text(encoding="utf-8")
        apart = all(m.path != mutant.path or m.last <= mutant.first or mutant.last <= m.first for m in drawn)
        if apart and _parses(mutated(mutant, text)) and _parses(instrumented([(0, mutant)], text)):
            drawn.append(mutant)
        if len(drawn) == count:
            break
    return drawn


def _by_line(mutants: list[Mutant]) -> list[list[Mutant]]:
    lines: dict[int, list[Mutant]] = {}
    for mutant in mutants:
        lines.setdefault(mutant.line, []).append(mutant)
    return list(lines.values())


def _copy(folder: Path) -> Path:
    tree = folder / "tree"
    shutil.copytree(ROOT, tree, ignore=shutil.ignore_patterns(".venv", "build", "site", ".pytest_cache", ".mypy_cache"))
    return tree


def _pytest(tree: Path, options: Sequence[str], limit_s: float, **more: str) -> subprocess.CompletedProcess[str]:
    """Run pytest on the code of a copied tree, in the processes that tests start too."""
    command = [sys.executable, "-m", "pytest", "-q", "-n", "2", "-o", f"cache_dir={tree.parent / 'cache'}", *options]
    environment = {**os.environ, "PYTHONPATH": str(tree), **more}
    return subprocess.run(
        command, cwd=tree, capture_output=True, text=True, timeout=limit_s, check=False, env=environment
    )


def reached(mutants: Sequence[Mutant], options: Sequence[str]) -> dict[str, list[str]]:
    """Run tests once; return for every mutant's name the tests that reach its place."""
    with tempfile.TemporaryDirectory() as folder:
        tree, notes = _copy(Path(folder)), Path(folder) / "notes"
        notes.mkdir()
        (tree / "mutant_probe.py").write_text(_PROBE)
        for path in {m.path for m in mutants}:
            file = tree / path
            here = [(i, m) for i, m in enumerate(mutants) if m.path == path]
            file.write_text(instrumented(here, file.read_text(encoding="utf-8")), encoding="utf-8")
        done = _pytest(tree, options, 36000.0, MUTANT_PROBE_FOLDER=str(notes))
        print(done.stdout[-2000:])
        found: dict[str, set[str]] = {m.name: set() for m in mutants}
        for file in notes.iterdir():
            for row in file.read_text().splitlines():
                number, _, test = row.partition("\t")
                found[mutants[int(number)].name].add(test)
    return {name: sorted(tests) for name, tests in found.items()}


def verdict_of(mutant: Mutant, tests: Sequence[str], tree: Path, options: Sequence[str]) -> tuple[str, str]:
    """Run tests on a tree with a mutant; return ``killed``, ``survived`` or ``not judged``, and what failed."""
    tests = sorted({test.partition("[")[0] for test in tests})
    there = [test for test in tests if _exists(test, tree)]
    if not there:
        return ("not judged", f"{len(tests)} tests are gone: run reach again") if tests else ("survived", "no test")
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as chosen:
        chosen.write("\n".join(there))
        chosen.flush()
        try:
            done = _pytest(tree, ["-x", "-rfE", "--timeout", "300", *options, f"@{chosen.name}"], 3000.0)
        except subprocess.TimeoutExpired:
            return "not judged", "not done within 3000 s"
    if done.returncode in (0, 5):  # 5: no test of these marks
        return "survived", ""
    why = [row for row in done.stdout.splitlines() if row.startswith(("FAILED", "ERROR"))]
    # Workers that stop at the first failure are interrupted: 2.
    return (
        ("killed", why[0]) if why and done.returncode in (1, 2) else ("not judged", (done.stdout + done.stderr)[-400:])
    )


def _exists(test: str, tree: Path) -> bool:
    """Return whether a test or the file of a doctest exists: pytest runs nothing where one name is unknown."""
    path, _, name = test.partition("::")
    file = tree / path
    return file.is_file() and (
        not path.startswith("tests/") or f"def {name.rpartition('::')[2]}(" in file.read_text(encoding="utf-8")
    )


def _killing_test(known: dict[str, Any]) -> list[str]:
    """Return the test that an earlier result names."""
    return [w for w in known.get("why", "").split() if "::" in w][:1]


def run(
    mutants: Sequence[Mutant],
    tests: dict[str, list[str]],
    results: Path,
    options: Sequence[str],
    before: dict[str, Any] | None = None,
) -> None:
    """Judge every mutant that has no result yet; write the results after each."""
    known = json.loads(results.read_text()) if results.exists() else {}
    with tempfile.TemporaryDirectory() as folder:
        tree = _copy(Path(folder))
        for number, mutant in enumerate(mutants, 1):
            if known.get(mutant.name, {}).get("verdict", "not judged") != "not judged":
                continue
            text = (ROOT / mutant.path).read_text(encoding="utf-8")
            try:
                (tree / mutant.path).write_text(mutated(mutant, text), encoding="utf-8")
            except ValueError as changed:
                print(f"{number}/{len(mutants)} {changed}", flush=True)
                continue
            begun = time.monotonic()
            verdict, why = verdict_of(mutant, _killing_test((before or {}).get(mutant.name, {})), tree, options)
            if verdict != "killed":
                verdict, why = verdict_of(mutant, tests[mutant.name], tree, options)
            (tree / mutant.path).write_text(text, encoding="utf-8")
            if verdict == "killed" and verdict_of(mutant, _killing_test({"why": why}), tree, options)[0] != "survived":
                verdict, why = "not judged", f"fails without the mutant too: {why}"
            took_s = round(time.monotonic() - begun, 1)
            count = len(tests[mutant.name])
            known[mutant.name] = {"verdict": verdict, "tests": count, "seconds": took_s, "why": why}
            results.write_text(json.dumps(known, indent=1) + "\n")
            print(
                f"{number}/{len(mutants)} {mutant.name}: {verdict} ({count} tests, {took_s} s) {why[:120]}", flush=True
            )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="tools.mutants", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("action", choices=("draw", "reach", "run"))
    parser.add_argument("--count", type=int, default=60)
    parser.add_argument("--seed", type=int, default=30)
    parser.add_argument("--reached", type=Path, default=Path("build/mutants-reached.json"), metavar="FILE")
    parser.add_argument("--results", type=Path, default=Path("build/mutants-results.json"), metavar="FILE")
    parser.add_argument("--before", type=Path, metavar="FILE", help="results of an earlier run")
    parser.add_argument("--part", default="1/1", metavar="K/N", help="the K-th of N parts of the list")
    parser.add_argument("tests", nargs="*", help="of these files alone (draw, reach)")
    parser.add_argument("-m", dest="marks", default="not slow", help="marks of the tests, as pytest takes them")
    return parser


def main() -> None:
    """Run the command line."""
    given = _parser().parse_args()
    options = ["-m", given.marks, *given.tests]
    given.reached.parent.mkdir(parents=True, exist_ok=True)
    if given.action == "draw":
        candidates = draw(3 * given.count, given.seed)
        tests = reached(candidates, options)
        drawn = [m for m in candidates if tests[m.name]][: given.count]
        LIST.write_text(json.dumps([asdict(m) for m in drawn], indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        given.reached.write_text(json.dumps({m.name: tests[m.name] for m in drawn}, indent=1) + "\n")
        return
    part, parts = map(int, given.part.split("/"))
    mutants = [Mutant(**m) for m in json.loads(LIST.read_text(encoding="utf-8"))]
    if given.action == "reach":
        known = json.loads(given.reached.read_text()) if given.reached.exists() else {}
        found = {name: sorted({*tests, *known.get(name, ())}) for name, tests in reached(mutants, options).items()}
        given.reached.write_text(json.dumps(found, indent=1) + "\n")
    else:
        before = json.loads(given.before.read_text()) if given.before else None
        run(mutants[part - 1 :: parts], json.loads(given.reached.read_text()), given.results, options, before)


if __name__ == "__main__":
    main()
