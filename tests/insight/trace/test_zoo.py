"""Models of well-known libraries trace, and hold what a real step holds; each where its library is installed."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.slow

import roller  # noqa: E402
from benchmarks.insight import zoo  # noqa: E402
from tests.insight.trace.programs import real_bytes, traced_bytes  # noqa: E402

#: What does not trace, and why: a kernel that PyTorch has no rule of shapes of in float32.
REFUSED = {"MixtralForCausalLM"}


@pytest.mark.parametrize("name", zoo.TRANSFORMERS)
def test_transformers(name):
    pytest.importorskip("transformers")
    make, inputs = zoo.transformers_of(name)
    if name in REFUSED:
        with pytest.raises(roller.RollerError, match="expected a model that runs on shapes"):
            roller.trace(make, inputs, optimizer="adamw")
        return
    trace = roller.trace(make, inputs, optimizer="adamw")
    model = make().train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    model(**inputs).loss.backward()
    optimizer.step()
    states = [t for s in optimizer.state.values() for t in s.values() if isinstance(t, torch.Tensor) and t.dim()]
    grads = [p.grad for p in model.parameters() if p.grad is not None]
    sizes = [sum(t.untyped_storage().nbytes() for t in each) for each in (list(model.parameters()), grads, states)]
    assert list(traced_bytes(trace).values()) == sizes


@pytest.mark.parametrize("name", zoo.TIMM)
def test_timm(name):
    zoo.declare_torchvision()
    timm = pytest.importorskip("timm")
    (found,) = zoo.of_timm([name])
    weights = sum(p.numel() * 4 for p in timm.create_model(name).parameters())
    assert found.said == "" and found.weights_bytes == weights
    assert found.optimizer_bytes == 2 * found.gradients_bytes <= 2 * weights


def test_detectors_of_torchvision():
    zoo.declare_torchvision()
    pytest.importorskip("torchvision")
    found = list(zoo.of_torchvision())
    assert len(found) == len(zoo.DETECTORS) and [row.said for row in found] == [""] * len(found)


def test_a_module_of_lightning(tmp_path):
    pytest.importorskip("lightning")
    (found,) = zoo.of_lightning()
    path = tmp_path / "entry.py"
    path.write_text(zoo.LIGHTNING.replace("step(batch):", "step(*batch):"))
    real = real_bytes(path, 2)
    assert [found.weights_bytes, found.gradients_bytes, found.optimizer_bytes] == list(real.values())
