"""Which tests a change selects, and how far from it they are."""

from __future__ import annotations

import subprocess

import pytest
from grimp.exceptions import SourceSyntaxError

from tests.tools.whole_graph import ROOT, graph, repository
from tools.affected.__main__ import main
from tools.affected.changes import UnknownRevision, UnreadableFile, changed_since, commit_of, is_ancestor
from tools.affected.data_files import ALWAYS
from tools.affected.import_graph import Repository, build_graph
from tools.affected.selection import Selected, select, test_files

#: Building the graph of this checkout takes seconds.
whole_graph = pytest.mark.slow


def selected(*changed: str) -> dict[str, Selected]:
    return {s.path: s for s in select(list(changed), graph(), repository())}


@whole_graph
def test_nearest_tests_come_first_and_say_why():
    found = select(["roller/explanation/explain.py"], graph(), repository())
    assert [s.distance for s in found] == sorted(s.distance for s in found)
    assert found[0] == Selected("roller/explanation/explain.py", 0, ())
    by_path = {s.path: s for s in found}
    assert by_path["tests/explanation/test_why_not.py"].distance == 1
    assert by_path["tests/cli/test_cli.py"].why == ("roller/cli/explain.py", "roller/explanation/explain.py")
    assert "tests/te/test_reader.py" not in by_path


@whole_graph
@pytest.mark.parametrize(
    ("changed", "reached"),
    [
        # Public names, verbs, facades.
        ("roller/insight/lint.py", "tests/insight/test_lint.py"),
        ("roller/cli/find_contradicted_spec_field.py", "tests/cli/test_manners.py"),
        ("roller/compiler/pipeline.py", "tests/test_pipeline.py"),
        # By the kind of a device, and by its target.
        ("roller/templates/gpu/checks.py", "tests/construction/test_program_names.py"),
        ("roller/compiler/dynamic/cpu.py", "tests/compiler/dynamic/test_symbolic_proof.py"),
        ("roller/probing/gpu/fit_model_constants.py", "tests/targets/test_conformance.py"),
        ("roller/templates/cpu/rows/emit.py", "tests/goldens/test_sources.py"),
        ("roller/backends/rocm/toolchain.py", "tests/targets/test_conformance.py"),
        ("roller/emulator/codelet_emulator.py", "tests/templates/test_bsp.py"),
        # Folders and names made of parts.
        ("roller/models/onnx/operators/reductions.py", "tests/models/onnx/operators/test_reductions.py"),
        ("examples/new_device.py", "tests/test_examples.py"),
        ("tests/models/onnx/families/making.py", "tests/models/onnx/test_random_families.py"),
        ("benchmarks/common.py", "tests/benchmarks/test_machine_code.py"),
        # Data files.
        ("hardware_specs/v100.yaml", "tests/hardware/test_specs.py"),
        ("roller/runtime/session/native_runner.c", "tests/models/session/test_runner.py"),
        ("microbench/gpu/l2.cu", "tests/probing/gpu/test_sources.py"),
        ("tests/goldens/candidates/v100.txt", "tests/goldens/test_candidates.py"),
        ("docs/explain.md", "tests/docs/test_blocks.py"),
        # Fixtures.
        ("tests/emulator/conftest.py", "tests/emulator/test_clock.py"),
    ],
)
def test_what_imports_do_not_show_is_reached(changed, reached):
    assert (ROOT / changed).exists() and reached in selected(changed)


@whole_graph
def test_leaves_select_little():
    everything = len(test_files(repository()))
    for path in (
        "roller/explanation/sensitivity.py",
        "roller/insight/sweep.py",
        "roller/cli/find_contradicted_spec_field.py",
    ):
        assert len(selected(path)) < everything / 5, path


@whole_graph
@pytest.mark.parametrize("path", ["conftest.py", "pyproject.toml", "roller/strange.xyz", "roller/no_longer_here.py"])
def test_a_file_that_no_rule_knows_selects_everything(path):
    assert selected(path).keys() == test_files(repository())


@whole_graph
def test_what_a_change_reaches_comes_before_what_it_selects_without_an_edge():
    found = selected("pyproject.toml", "tests/te/test_reader.py", "roller/explanation/explain.py")
    assert found.keys() == test_files(repository())
    assert found["tests/te/test_reader.py"].distance == 0 and found["tests/cli/test_cli.py"].distance == 2
    assert found["tests/tile/test_geometry.py"].distance == max(s.distance for s in found.values()) > 2


@whole_graph
def test_a_result_or_a_removed_test_selects_what_always_runs():
    for path in ("CHANGELOG.md", "benchmarks/results/any.md", "tests/test_no_longer_here.py"):
        assert set(selected(path)) == set(ALWAYS), path


@whole_graph
def test_a_name_for_type_checking_alone_is_no_edge():
    assert "roller/hardware/__init__.py" not in graph()["roller/targets/target.py"]
    assert "roller/targets/kinds.py" in graph()["roller/targets/target.py"]


@whole_graph
def test_functions_of_a_facade_are_nodes_of_their_own():
    lines = graph()["roller/compiler/pipeline.py::construct"]
    assert (
        "roller/construction/constructor.py" in lines
        and "roller/compiler/autotune/kernel_selection_strategies.py" not in lines
    )
    assert "roller/compiler/pipeline.py::construct" in graph()["tests/backends/test_cuda_device.py"]


@pytest.fixture
def checkout(tmp_path):
    """Return a repository of two commits on two branches, with a changed, a removed and a new file."""

    def git(*words):
        subprocess.run(["git", "-c", "user.name=n", "-c", "user.email=e@e", *words], cwd=tmp_path, check=True,
                       capture_output=True)  # fmt: skip

    git("init", "-b", "main")
    for name in ("kept.py", "changed.py", "gone.py"):
        (tmp_path / name).write_text(name * 20)
    git("add", ".")
    git("commit", "-m", "one")
    git("branch", "other")
    (tmp_path / "changed.py").write_text("new")
    git("commit", "-am", "two")
    (tmp_path / "gone.py").unlink()
    (tmp_path / "added.py").write_text("added")
    return tmp_path


def test_changes_are_those_of_the_working_tree_with_new_files(checkout):
    assert changed_since("other", checkout) == ["added.py", "changed.py", "gone.py"]
    assert changed_since("HEAD", checkout) == ["added.py", "gone.py"]
    assert is_ancestor("other", checkout) and len(commit_of("other", checkout)) == 40
    with pytest.raises(UnknownRevision, match="knows no commit 'nonsense'"):
        changed_since("nonsense", checkout)


def test_a_module_whose_text_changes_selects_its_examples_alone(checkout):
    def write(docstring, returned, *, path="roller/a.py"):
        (checkout / path).parent.mkdir(parents=True, exist_ok=True)
        (checkout / path).write_text(f'def f():\n    """{docstring}"""\n    return {returned}\n')

    for path in ("roller/a.py", "roller/b.py", "roller/c.py", "roller/cli/d.py"):
        write("Old.", 1, path=path)
    subprocess.run(["git", "add", "roller"], cwd=checkout, check=True)
    subprocess.run(["git", "-c", "user.name=n", "-c", "user.email=e@e", "commit", "-qm", "three", "roller"],
                   cwd=checkout, check=True)  # fmt: skip
    write("New.", 1)
    write("Old.", 2, path="roller/b.py")
    write("New.\n\n    >>> f()\n    1\n    ", 1, path="roller/c.py")
    write("New help.", 1, path="roller/cli/d.py")
    expected = ["added.py", "gone.py", "roller/b.py", "roller/c.py::doctests", "roller/cli/d.py"]
    assert changed_since("HEAD", checkout) == expected


def test_a_file_that_is_no_python_is_named(tmp_path, monkeypatch):
    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
    bad = tmp_path / "bad.py"
    bad.write_bytes(b"\xff")
    with pytest.raises(UnreadableFile, match=r"bad\.py: expected UTF-8, got invalid start byte at byte 0"):
        Repository(tmp_path)
    bad.write_text("x = 1\ndef (\n")

    def refuse(*_, **__):
        raise SourceSyntaxError(str(bad), 2, "def (")

    monkeypatch.setattr("grimp.build_graph", refuse)
    with pytest.raises(UnreadableFile, match=r"^bad.py:2: expected Python, got 'def \('"):
        build_graph(Repository(tmp_path))


def test_the_command_prints_distances_and_reasons(capsys, monkeypatch):
    command = "tools.affected.__main__"
    found = [
        Selected("roller/explanation/explain.py", 0, ()),
        Selected("tests/a.py", 2, ("roller/b.py", "roller/c.py")),
    ]
    monkeypatch.setattr(f"{command}.affected", lambda changed, root: found if changed == [found[0].path] else [])
    monkeypatch.chdir(ROOT / "roller")
    assert main(["explanation/explain.py"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines == ["  0 roller/explanation/explain.py", "  2 tests/a.py  <- roller/b.py <- roller/c.py"]
    assert main(["--since", "nonsense"]) == 2
    assert "knows no commit" in capsys.readouterr().err
