"""Every model trains, traces and is predicted; what it holds is exact to the byte."""

import math

import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.slow

from roller.hardware import load_spec  # noqa: E402
from roller.suite.prediction import predict  # noqa: E402
from roller.suite.registry import MODELS  # noqa: E402
from roller.suite.short_training import train_on_one_batch  # noqa: E402
from roller.suite.tracing import trace_workload  # noqa: E402
from tests.insight.trace.programs import traced_bytes  # noqa: E402

DEVICES = ("p4000", "titanxp", "v100", "h100")


@pytest.mark.parametrize("name", MODELS)
def test_three_steps_on_one_batch_lower_the_loss(name):
    run = train_on_one_batch(MODELS[name])
    assert run.losses[-1] < run.losses[0] and all(math.isfinite(loss) for loss in run.losses), run.losses


@pytest.mark.parametrize("name", MODELS)
def test_many_steps_on_one_batch_stay_finite(name):
    """A measurement takes hundreds of iterations: one that diverges times other work, or fails."""
    assert all(math.isfinite(loss) for loss in train_on_one_batch(MODELS[name], steps=40).losses)


@pytest.mark.parametrize("name", MODELS)
def test_weights_gradients_and_optimizer_state_are_exact(name):
    run, workload = train_on_one_batch(MODELS[name], steps=1), MODELS[name].workload(reduced=True)
    traced = traced_bytes(trace_workload(name, workload, device="v100"))
    assert traced == {
        "parameter": run.weights_bytes, "gradient": run.gradients_bytes, "optimizer_state": run.optimizer_bytes
    }  # fmt: skip


@pytest.mark.parametrize("name", MODELS)
def test_a_prediction_on_each_device(name):
    found = list(predict([MODELS[name]], [load_spec(device) for device in DEVICES], reduced=True))
    assert [one.device for one in found] == list(DEVICES)
    for one in found:
        low, high = one.throughput_between
        assert one.fits and 0 < low <= one.throughput <= high
        assert 0 < one.compute_utilisation <= 1 and 0 < one.peak_share <= 1
        assert sum(one.memory.values()) == one.forecast.memory.total_bytes
        assert all(one.memory[kind] <= most for kind, most in one.most_memory.items())
        assert one.memory["other"] == 0 and min(one.memory.values()) >= 0
        weights = 4 * sum(p.numel() for p in MODELS[name].workload(reduced=True).build().parameters())
        assert one.memory["weights"] == weights
