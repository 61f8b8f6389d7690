"""Documented names of the release before: each is found, and says what it is called now."""

import importlib
import json
import sys

import pytest

import roller.insight
from roller.core.renamed import MODULES, NAMES
from roller.insight.step.graph import StepGraph
from roller.insight.trace.trace import AllocEvent
from roller.insight.whatif.parse_what_if_scenarios import read_scenarios
from roller.insight.whatif.whatifs import ZeroTime
from tests.insight.step.graphs import training
from tests.offenders import every

assert roller.insight


@every("old", sorted(MODULES))
def test_an_old_module_has_the_names_of_the_new_ones(old):
    module = importlib.import_module(old)
    assert module.__name__ == old and sys.modules[old] is module
    for home in MODULES[old]:
        new = importlib.import_module(home)
        name = next(n for n in vars(new) if not n.startswith("_") and getattr(vars(new)[n], "__module__", "") == home)
        with pytest.warns(DeprecationWarning, match=f"is now {home}.{name}"):
            assert getattr(module, name) is getattr(new, name)
    with pytest.raises(AttributeError, match="no_such_name"):
        module.no_such_name  # noqa: B018


@every("old", sorted(NAMES))
def test_an_old_name_is_the_new_one(old):
    module, _, name = old.rpartition(".")
    with pytest.warns(DeprecationWarning, match=f"{name} is now .*{NAMES[old]};"):
        found = getattr(importlib.import_module(module), name)
    assert getattr(found, "__name__", NAMES[old]) == NAMES[old] or name == "Because"


def test_names_that_moved_are_imported_as_they_were():
    with pytest.warns(DeprecationWarning, match="records.Alloc is now roller.insight.trace.trace.AllocEvent"):
        from roller.insight.records import Alloc
    with pytest.warns(DeprecationWarning, match="step.TracedStep is now roller.insight.traced_step.TracedStep"):
        from roller.insight.step import TracedStep
    assert Alloc is AllocEvent and TracedStep.__name__ == "TracedStep"
    with pytest.raises(ImportError, match="nothing"):
        from roller.insight.step import nothing  # noqa: F401


def test_parameters_and_keys_by_their_old_names(tmp_path):
    path = tmp_path / "old.yaml"
    path.write_text("prices: {cast: 3}\nchanges: [{free: {kind: data}}]")
    with pytest.warns(DeprecationWarning) as said:
        read = read_scenarios(path)
    assert read.measured_us == {"cast": 3.0} and read.changes["changes"] == (ZeroTime(kind="data"),)
    assert any("prices is now called measured_us" in str(w.message) for w in said)
    assert any("free is now called zero-time" in str(w.message) for w in said)
    profile = tmp_path / "profile.json"
    profile.write_text(json.dumps({"traceEvents": [
        {"ph": "X", "cat": "cpu_op", "name": "aten::add", "ts": 1, "dur": 2, "pid": 1, "tid": 1}
    ]}))  # fmt: skip
    with pytest.warns(DeprecationWarning, match="prices is now measured_us"):
        assert roller.from_kineto(profile, prices={"cast": 3.0}).measured_kernels_us == {"cast": 3.0}


def test_methods_that_became_functions_answer_and_say_so():
    graph = training()
    assert isinstance(graph, StepGraph)
    with pytest.warns(DeprecationWarning, match="StepGraph.replay is now roller.insight.step.replay.replay"):
        assert graph.replay().iteration_us == roller.replay(graph).iteration_us
    with pytest.warns(DeprecationWarning, match="StepGraph.what_if is now roller.insight.whatif.predict.what_if"):
        old = graph.what_if(lambda one: one)
    assert old.iteration_us == roller.what_if(graph, lambda one: one).iteration_us
