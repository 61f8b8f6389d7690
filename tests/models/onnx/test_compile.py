"""Whole models from a file to results, against ONNX Runtime."""

import numpy as np
import pytest

import roller
from roller.errors import ModelError, NoCandidateError, RollerError
from roller.models.batch import worker_tasks
from tests.models.onnx.models import runtime
from tests.models.onnx.networks import tower, unsupported


def test_a_model_agrees_with_onnx_runtime_at_any_batch():
    model = tower(blocks=2)
    rng = np.random.default_rng(1)
    events = []
    for batch in (1, 3):
        session = roller.compile_model(model, batch=batch, top_k=1, progress=events.append)
        feeds = {"x": rng.standard_normal((batch, 8, 8, 8), dtype=np.float32)}
        np.testing.assert_allclose(session.run(None, feeds)[0], runtime(model, feeds)[0], rtol=1e-4, atol=1e-5)
    assert {e.phase for e in events} >= {"cache", "construct", "build", "time"}
    assert events[-1].done == events[-1].total


def test_a_warm_compile_builds_nothing(monkeypatch):
    model = tower()
    roller.compile_model(model, batch=1, top_k=1, progress=False)
    monkeypatch.setattr(worker_tasks.BuildTask, "run", lambda task: pytest.fail("built again"))
    monkeypatch.setattr(worker_tasks.ConstructTask, "run", lambda task: pytest.fail("constructed again"))
    path_or_bytes = model.SerializeToString()
    assert roller.compile_model(path_or_bytes, batch=1, top_k=1, progress=False).name == "tower"


def test_what_cannot_be_compiled_is_refused_before_anything_is(monkeypatch):
    monkeypatch.setattr(worker_tasks.ConstructTask, "run", lambda task: pytest.fail("constructed"))
    with pytest.raises(ModelError, match=r"(?s)2 nodes it cannot.*Mystery.*Riddle"):
        roller.compile_model(unsupported())


def test_a_device_that_is_not_here_gives_every_kernel():
    made = roller.compile_model(tower(), "v100", batch=1, top_k=1, progress=False)
    assert set(made.artifacts) == set(made.plan.program.kernels)
    assert all("__global__" in a.source for a in made.artifacts.values())
    assert all(made.plan.predicted_s[key] > 0 for key in made.artifacts)
    for use in (made.session, lambda: made.run({})):
        with pytest.raises(RollerError, match=r"compiled for 'v100', which is no device of this machine\. Save it"):
            use()


def test_kernels_that_fail_are_all_named(monkeypatch):
    def refuse(task):
        raise ValueError("no luck")

    monkeypatch.setattr(worker_tasks.BuildTask, "run", refuse)
    with pytest.raises(NoCandidateError, match=r"tower on .*: (\d+) of \1 kernels have no candidate.* no luck"):
        roller.compile_model(tower(), batch=1, top_k=1, progress=False)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"budget_s": -1}, "budget_s: expected seconds of at least 0, or None, got -1"),
        ({"workers": 0}, "workers: expected a whole number of at least 1, got 0"),
        ({"executor": 3}, "executor: expected a concurrent.futures.Executor, got int"),
        ({"executor": 3, "scheduler": "tcp://x"}, "scheduler: expected none beside executor="),
    ],
)
def test_wrong_arguments_are_named(arguments, message):
    with pytest.raises(RollerError, match=message):
        roller.compile_model(tower(), **arguments)
