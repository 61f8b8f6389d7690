"""What is missing is found before anything is compiled, and what a session may use is the caller's choice."""

from __future__ import annotations

import importlib.util
import json
import threading

import numpy as np
import onnx
import onnxruntime
import pytest

import roller
from roller.errors import BuildError, LaunchError, ModelError
from roller.models import compile as stages
from roller.models import onnxruntime_reference
from roller.models.batch.executors import ForkedWorkers
from roller.models.compile import partition_graph, read_folded_graph
from roller.models.disagreement_verdict import decide_which_is_right, run_references
from roller_runtime.plan.program_steps import Foreign
from roller_runtime.session.fallback_runtime import require_runtimes
from tests.models.onnx.networks import tower, unsupported


@pytest.fixture
def without(monkeypatch):
    """Pretend that a package is not installed."""

    def hide(package):
        found = importlib.util.find_spec
        monkeypatch.setattr(importlib.util, "find_spec", lambda name, *a: None if name == package else found(name, *a))

    return hide


def test_a_fallback_without_its_package_is_found_before_compiling(monkeypatch, without):
    without("onnxruntime")
    monkeypatch.setattr(stages, "compile_program", lambda *_, **__: pytest.fail("compiled"))
    with pytest.warns(roller.errors.RollerWarning), pytest.raises(LaunchError) as error:
        roller.compile_model(unsupported(), cache=False, fallback="onnxruntime")
    assert "expected the package onnxruntime" in str(error.value) and "roller[fallback]" in str(error.value)


def test_runtimes_are_asked_for_only_where_nodes_need_them(without):
    without("onnxruntime")
    require_runtimes([])
    with pytest.raises(LaunchError, match=r"computes 6 nodes \('0', '1', '2', '3', \.\.\.\)"):
        require_runtimes(
            [Foreign("onnxruntime", b"", nodes=tuple("0123")), Foreign("onnxruntime", b"", nodes=("4", "5"))]
        )


@pytest.mark.parametrize("fallback", ["onnxrutime", "", 3])
def test_a_runtime_nobody_knows_is_refused_before_the_model_is_read(monkeypatch, fallback):
    monkeypatch.setattr(stages, "read_folded_graph", lambda *_, **__: pytest.fail("read"))
    with pytest.raises(ModelError, match="fallback: expected 'onnxruntime' or None, got "):
        roller.compile_model(b"", fallback=fallback)


def test_a_missing_c_compiler_is_found_before_anything_is_constructed(monkeypatch):
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setattr(ForkedWorkers, "map", lambda *_, **__: pytest.fail("constructed"))
    with pytest.raises(BuildError, match=r"expected a C compiler \(cc, .* found none\. Install .*apt-get"):
        roller.compile_model(tower(), batch=1, cache=False)
    with pytest.raises(BuildError, match="compiling for this processor: expected a C compiler"):
        roller.compile(roller.ops.matmul(8, 8, 8), cache=False)
    assert roller.compile(roller.ops.matmul(8, 8, 8), "v100", cache=False).source, "a GPU's source needs none"


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    x = np.random.default_rng(0).standard_normal((1, 8, 8, 8), dtype=np.float32)
    session = roller.compile_model(tower(), batch=1, deterministic=True, threads=1, cache=False)
    return session.save(folder / "tower"), session, x, session.run(x)


def test_threads_of_a_session_are_the_callers(saved):
    folder, session, x, y = saved
    assert session.cores == 1 and "1 thread" in repr(session)
    for threads in (1, 2):
        again = roller.load_model(folder, threads=threads)
        assert again.cores == threads
        before = threading.active_count()
        np.testing.assert_array_equal(again.run(x), y)
        assert threading.active_count() == before
    assert roller.load_model(folder).cores == 1, "as it was compiled"


@pytest.mark.parametrize("threads", [0, -1, True, 1.5, "2"])
def test_a_number_of_threads_that_is_none_is_refused(saved, threads):
    message = "threads: expected a whole number of at least 1, got "
    with pytest.raises(LaunchError, match=message):
        roller.load_model(saved[0], threads=threads)
    with pytest.raises(LaunchError, match=message):
        roller.compile_model(tower(), batch=1, threads=threads)


def test_calls_of_a_gpu_use_no_threads():
    with pytest.raises(LaunchError, match="threads: expected none for a GPU"):
        roller.compile_model(tower(), "v100", batch=1, threads=2)


def test_a_model_is_held_to_onnx_runtime(cli, tmp_path, monkeypatch):
    path = tmp_path / "tower.onnx"
    onnx.save(tower(), path)
    code, out, _ = cli("check", path, "--batch", "1", "--sets", "2", "--threads", "1")
    assert code == 0 and "tower: agrees" in out and f"onnxruntime {onnxruntime.__version__}" in out
    code, out, _ = cli("check", path, "--batch", "1", "--tolerance", "0", "--json")
    assert '"with"' in out and code == (0 if '"ok": true' in out.split('"outputs"')[0] else 1)

    def wrong(self, *arguments):
        return [np.full((1, 5), 7, np.float32)]

    monkeypatch.setattr("roller_runtime.session.cpu_session.Session.run", wrong)
    code, out, _ = cli("check", path, "--batch", "1", "--threads", "1")
    assert code == 1 and "tower: DIFFERS" in out
    assert f"{tower().graph.output[0].name}: ONNX Runtime is right: onnx's reference evaluator agrees with it\n" in out


def test_where_onnx_runtime_is_wrong_the_reference_says_so(cli, tmp_path, monkeypatch):
    path = tmp_path / "tower.onnx"
    onnx.save(tower(), path)
    right = onnxruntime_reference.run_onnxruntime

    def optimised_wrongly(*arguments, optimised=True):
        outputs, version = right(*arguments, optimised=optimised)
        return (tuple(o + 1 for o in outputs) if optimised else outputs), version

    monkeypatch.setattr("roller.models.onnxruntime_reference.run_onnxruntime", optimised_wrongly)
    code, out, _ = cli("check", path, "--batch", "1", "--threads", "1")
    said = "roller is right: onnx's reference evaluator agrees with it, and ONNX Runtime does without its optimisations"
    assert code == 1 and said in out
    code, out, _ = cli("check", path, "--batch", "1", "--threads", "1", "--json")
    assert code == 1 and json.loads(out)["outputs"][0]["right"] == "roller"


def test_who_is_right_in_words():
    assert (
        decide_which_is_right(False, True, False).right
        == decide_which_is_right(False, True, None).right
        == "onnxruntime"
    )
    assert decide_which_is_right(True, False, False).right == decide_which_is_right(None, None, True).right == "roller"
    assert [
        decide_which_is_right(*v).right for v in ((None, None, False), (False, False, True), (True, True, None))
    ] == [None] * 3
    assert (
        "differs from both" in decide_which_is_right(False, False, False).why
        and "no answer" in decide_which_is_right(None, None, None).why
    )


def test_a_model_that_the_reference_does_not_take_is_judged_by_what_is_left(monkeypatch):
    program = partition_graph(read_folded_graph(tower(), batch=1))
    feeds = {n: np.zeros(program.values[n].shape, np.float32) for n in program.inputs}
    assert run_references(tower(), program, feeds).reference is not None
    monkeypatch.setattr("roller.models.disagreement_verdict.MAX_ELEMENTS", 1)
    found = run_references(tower(), program, feeds)
    assert found.reference is None and found.unoptimised is not None
    monkeypatch.setattr("roller.models.disagreement_verdict.MAX_ELEMENTS", 1 << 26)
    found = run_references(b"nonsense", program, feeds)
    assert found.reference is None and found.unoptimised is None


def test_a_check_without_its_peer_compiles_nothing(cli, monkeypatch, without):
    monkeypatch.setattr("roller.cli.check.compile_or_list_unsupported", lambda *_, **__: pytest.fail("compiled"))
    code, _, err = cli("check", "m.onnx", "-d", "v100")
    assert code == 1 and "--device: expected one of this machine" in err
    without("onnxruntime")
    code, _, err = cli("check", "m.onnx")
    assert code == 1 and "expected the package onnxruntime to compare with" in err and "roller[fallback]" in err
