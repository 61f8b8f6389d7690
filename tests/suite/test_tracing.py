"""Steps whose providers are given trace like entry files; CTC losses have gradients on shapes alone."""

import pytest

torch = pytest.importorskip("torch")

import roller  # noqa: E402
from roller.insight.tracing import trace_entry, trace_providers  # noqa: E402

ENTRY = """
import torch

def model_provider():
    return torch.nn.Linear(8, 4)

def input_provider(batch_size=16):
    return (torch.zeros(batch_size, 8),)

def iteration_provider(model):
    optimizer = torch.optim.Adam(model.parameters())

    def step(x):
        optimizer.zero_grad()
        model(x).sum().backward()
        optimizer.step()

    return step
"""


def test_providers_trace_as_the_entry_file_that_defines_them(tmp_path):
    path = tmp_path / "entry.py"
    path.write_text(ENTRY)
    names = {}
    exec(compile(ENTRY, str(path), "exec"), names)
    given = {name: names[name] for name in ("model_provider", "input_provider", "iteration_provider")}
    mine, entry = trace_providers("linear", path, **given), trace_entry(path)
    assert [(o.name, o.input_shapes) for o in mine.operators] == [(o.name, o.input_shapes) for o in entry.operators]
    assert mine.events == entry.events and mine.options["entry"] == "linear"
    product = next(o for o in mine.at(batch=3).steady() if "addmm" in o.name)
    assert (3, 8) in product.input_shapes and mine.at(batch=3).samples == 3


def test_a_provider_that_raises_is_named(tmp_path):
    def input_provider(batch_size=4):
        raise ValueError("no data")

    with pytest.raises(roller.RollerError, match=r"no data \(input_provider failed\)"):
        trace_providers(
            "broken", tmp_path / "x.py", model_provider=lambda: torch.nn.Linear(2, 2), input_provider=input_provider,
            iteration_provider=lambda model: model,
        )  # fmt: skip


def test_the_gradient_of_a_ctc_loss_has_the_shape_of_its_input():
    def loss(logits, letters):
        scores = logits.log_softmax(-1)
        return torch.nn.functional.ctc_loss(scores, letters, (10, 10), (3, 3))

    step = roller.trace(
        torch.nn.Linear(5, 7), torch.zeros(10, 2, 5), optimizer="sgd", loss=loss,
        targets=(torch.ones(2, 3, dtype=torch.long),), batch_axis=1,
    )  # fmt: skip
    (found,) = [o for o in step.steady() if "ctc_loss_backward" in o.name]
    assert found.outputs[0].shape == (10, 2, 7) and found.phase == "backward"
