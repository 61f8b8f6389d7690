"""What the pages show is what the result files hold, and what the package has."""

from __future__ import annotations

import ast
import importlib.util
import json
import math
import re
import sys

import roller
import roller_runtime
from roller.cli.lazy_commands import VERBS
from tests.docs.pages import DOCS, ROOT
from tests.offenders import every

RESULTS = ROOT / "benchmarks" / "results"
README = (ROOT / "README.md").read_text(encoding="utf-8")
WORDS = " ".join(README.split())
FIRST_PAGE = " ".join((DOCS / "index.md").read_text(encoding="utf-8").split())


def results(name):
    return json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))


def ratios(rows):
    return [row["ratio"] for row in rows if row["ratio"] is not None]


def mean(values):
    return math.exp(sum(map(math.log, values)) / len(values))


def test_the_readme_is_for_strangers():
    assert len(README.splitlines()) <= 150


def test_speeds_of_networks_are_those_of_the_results():
    data = results("onnx")
    speeds = ratios(data["models"])
    names = {row["model"] for row in data["models"]}
    said = (
        f"{len(names)} networks run {mean(speeds):.2f} times as fast as with ONNX Runtime {data['run']['onnxruntime']}"
    )
    assert said in FIRST_PAGE
    assert said + f" (geometric mean of {len(speeds)} cases, {min(speeds):.2f} to {max(speeds):.2f};" in WORDS
    assert f"| {mean(speeds):.2f} ({len(speeds)} cases) |" in WORDS


def test_speeds_of_operators_are_those_of_the_results():
    data = results("cpu")
    speeds = ratios(data["operators"])
    version = data["run"]["torch"].partition("+")[0]
    said = (
        f"{len(speeds)} operators {mean(speeds):.2f} times as fast as with the best of PyTorch {version}, ONNX Runtime"
    )
    assert said in FIRST_PAGE
    assert said + f" and NumPy ({min(speeds):.2f} to {max(speeds):.2f};" in WORDS
    assert f"The slowest of the {len(speeds)} operators, a depthwise convolution, reaches {min(speeds):.2f}" in WORDS
    slowest = min(data["operators"], key=lambda row: row["ratio"] or math.inf)
    assert slowest["kind"] == "depthwise"


def test_the_comparison_with_tuning_is_that_of_the_results():
    data = results("metaschedule")
    rows = data["operators"]
    speeds = [row["ratio"]["median"] for row in rows]
    tuned, constructed = [row["tuning"]["seconds"] for row in rows], [row["top_k_s"] for row in rows]
    assert f"| {min(constructed):.1f} to {max(constructed):.1f}, ten candidates timed |" in WORDS
    assert f"| {min(tuned):.0f} to {max(tuned):.0f}, {data['run']['trials']} trials |" in WORDS
    assert f"| {mean(speeds):.2f} (4 operators, one at {min(speeds):.2f}) |" in WORDS
    assert len(rows) == 4 and data["run"]["date"] in WORDS


def test_the_picture_is_drawn_from_the_results():
    spec = importlib.util.spec_from_file_location("speed_picture", DOCS / "speed_picture.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    del sys.modules[spec.name]
    found = module.speeds()
    assert sum(map(len, found.networks.values())) == len(ratios(results("onnx")["models"]))
    assert sum(map(len, found.measured.values())) == len(ratios(results("cpu")["operators"]))
    for palette in module.PALETTES:
        text = (module.IMAGES / f"speed-{palette.name}.svg").read_text(encoding="utf-8")
        assert f"drawn from {found.digest}" in text, "run `python docs/speed_picture.py` (extra bench)"


def documented():
    return set(re.findall(r"^::: (\S+)", "\n".join(p.read_text() for p in (DOCS / "api").glob("*.md")), re.MULTILINE))


@every("name", sorted(set(roller.__all__) - {"ops", "RollerError"}))
def test_every_public_name_is_in_the_api_reference(name):
    value = getattr(roller, name)
    assert f"{value.__module__}.{value.__qualname__}" in documented(), f"roller.{name}: give it its place in docs/api"


@every("name", sorted(set(roller_runtime.__all__) - {"__version__"}))
def test_every_public_name_of_the_runtime_is_in_the_api_reference(name):
    value = getattr(roller_runtime, name)
    if getattr(roller.errors, name, None) is value:
        return  # docs/api/errors.md shows all errors of that module
    assert f"{value.__module__}.{value.__qualname__}" in documented(), f"roller_runtime.{name}: add it to docs/api"


@every("name", sorted(set(roller.ops.__all__) - {"ONNX_NAMES", "REGISTRY"}))
def test_every_operator_is_in_the_api_reference(name):
    value = getattr(roller.ops, name)
    assert f"{value.__module__}.{value.__qualname__}" in documented(), f"roller.ops.{name}: add it to the reference"


def test_what_the_api_reference_names_is_there():
    for path in documented():
        module, _, name = path.rpartition(".")
        try:
            known = hasattr(importlib.import_module(module), name) or importlib.util.find_spec(path)
        except ModuleNotFoundError as error:  # a module that needs PyTorch, where there is none
            assert error.name == "torch", path
            known = name in names_of_source(ROOT / f"{module.replace('.', '/')}.py")
        assert known, path


def names_of_source(file):
    found = set()
    for node in ast.parse(file.read_text(encoding="utf-8")).body:
        found |= {node.name} if isinstance(node, (ast.ClassDef, ast.FunctionDef)) else set()
        found |= {t.id for t in node.targets if isinstance(t, ast.Name)} if isinstance(node, ast.Assign) else set()
    return found


def test_names_of_a_module_that_cannot_be_imported_are_those_of_its_source():
    found = names_of_source(ROOT / "roller/insight/trace/pytorch/block_wise.py")
    assert {"BlockWise", "Lion", "AdamW8bit", "update_block_wise"} <= found and "torch" not in found


def test_every_verb_is_on_the_page_of_the_command_line():
    text = (DOCS / "command-line.md").read_text(encoding="utf-8")
    assert len(VERBS) >= 11
    assert [v for v in VERBS if f"`roller {v}" not in text] == []


def test_every_result_has_a_page():
    pages = "\n".join(p.read_text(encoding="utf-8") for p in (DOCS / "results").glob("*.md"))
    assert [p.name for p in RESULTS.glob("*.md") if f'"benchmarks/results/{p.name}"' not in pages] == []


def test_every_result_of_a_machine_says_so():
    """The pages say on which machine: the reports must."""
    for name in ("onnx", "cpu", "metaschedule"):
        assert f"processor {results(name)['run']['processor']}" in (RESULTS / f"{name}.md").read_text(encoding="utf-8")
