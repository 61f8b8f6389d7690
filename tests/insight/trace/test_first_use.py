"""Entry files of a first use: what crosses to the host, sparse gradients, flags of values that nobody knows."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from roller.errors import ModelError, RollerError  # noqa: E402
from roller.insight.whatif.parse_what_if_scenarios import parse_what_if_option  # noqa: E402
from roller.insight.whatif.predict import what_if  # noqa: E402
from tests.insight.trace.test_entry_files import ROWS, iterates, traced  # noqa: E402

WIDE = "def model_provider():\n    return nn.Sequential(*[nn.Linear(1024, 1024) for _ in range(4)])\n"
MANY = "def input_provider(batch_size=4096):\n    return torch.zeros(batch_size, 1024)\n"
FLAT = "def model_provider():\n    return nn.Linear(64, 64)\n"
UPDATE = "\nloss.backward(); opt.step(); opt.zero_grad()"


def test_a_copy_of_a_tensor_of_the_host_is_priced(tmp_path):
    body = "with torch.autograd.graph.save_on_cpu():\n    loss = m(x).square().mean()" + UPDATE
    step = traced(tmp_path, FLAT, ROWS, iterates(body))
    assert step.forecast("a100").iteration_s > 0
    assert len({o.signature for o in step.steady()}) > 1


def test_what_a_link_to_the_host_takes_is_said_where_it_counts(tmp_path):
    body = "with torch.autograd.graph.save_on_cpu():\n    loss = m(x).square().mean()" + UPDATE
    (tmp_path / "near").mkdir()
    far = traced(tmp_path, WIDE, MANY, iterates(body))
    near = traced(tmp_path / "near", WIDE, MANY, iterates("loss = m(x).square().mean()" + UPDATE))
    said = [n for n in far.forecast("a100").notes if "between host and device" in n]
    # Three activations of 16 MiB and the loss' own go and come, and so do the weights behind the first layer.
    assert len(said) == 1 and int(said[0].split()[5]) >= 2 * 4 * 16
    assert said[0] in far.graph("a100").notes
    assert not any("host" in n for n in near.forecast("a100").notes)


def test_sparse_gradients_cost_the_rows_they_hold(tmp_path):
    sparse = "def model_provider():\n    return nn.Embedding(100_000, 64, sparse=True)\n"
    tokens = "def input_provider(batch_size=8):\n    return torch.zeros(batch_size, 16, dtype=torch.long)\n"
    step = traced(tmp_path, sparse, tokens, iterates("m(x).mean().backward(); opt.step(); opt.zero_grad()",
                                                     "opt = torch.optim.SparseAdam(m.parameters())"))  # fmt: skip
    # Less than the time of reading the whole table once.
    assert 0 < step.forecast("a100").device_s < 100_000 * 64 * 4 / 1e12
    with pytest.raises(RollerError, match="got a sparse gradient"):  # never reduced for nothing
        step.forecast("a100", devices=8)
    with pytest.raises(RollerError, match="got a sparse gradient"):
        what_if(step.graph("a100"), parse_what_if_option("ddp:devices=8"))


@pytest.mark.parametrize(
    "condition", ["torch.isfinite(loss)", "torch.isfinite(out).all()", "not torch.isnan(out).any()", "loss < 1e9",
                  "not (loss > 1e5)", "loss == loss"]
)  # fmt: skip
def test_an_update_that_a_finite_loss_allows_is_traced(tmp_path, condition):
    body = f"out = m(x); loss = out.square().mean()\nif {condition}:\n    loss.backward(); opt.step(); opt.zero_grad()"
    step = traced(tmp_path, FLAT, ROWS, iterates(body))
    assert any(o.phase == "optimizer" for o in step.steady())
    assert any("is taken for it" in w for w in step.warnings)


def test_a_flag_that_numbers_do_not_decide_stays_down(tmp_path):
    body = "loss = m(x).square().mean()\nif torch.isnan(loss):\n    raise ValueError" + UPDATE
    assert traced(tmp_path, FLAT, ROWS, iterates(body)).forecast("a100").iteration_s > 0


def test_what_a_trace_says_is_said_of_its_what_ifs(tmp_path):
    step = traced(tmp_path, FLAT, ROWS, iterates("loss = m(x).mean()\nloss.item()" + UPDATE))
    assert step.warnings and set(step.warnings) <= set(step.graph("a100").notes)


def test_a_batch_that_the_inputs_do_not_follow_is_refused(tmp_path):
    fixed = "def input_provider(batch_size=8):\n    return torch.zeros(8, 64)\n"
    step = traced(tmp_path, FLAT, fixed, iterates("m(x).mean().backward(); opt.step(); opt.zero_grad()"))
    assert step.forecast("a100").iteration_s > 0
    with pytest.raises(ModelError, match=r"expected inputs of 64 samples, got the shapes of 8: \(8, 64\)"):
        step.forecast("a100", batch=64)
