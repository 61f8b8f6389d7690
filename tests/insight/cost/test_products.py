"""Products of the mapping beside PyTorch's own count of floating-point operations, and beside counts by hand."""

from __future__ import annotations

import math

import pytest

torch = pytest.importorskip("torch")

from torch.utils.flop_counter import FlopCounterMode  # noqa: E402

import roller  # noqa: E402
from roller.insight.cost.gpu import operator_launches  # noqa: E402
from roller.insight.cost.kernel_launch_types import FusedKernel, MemoryKernel  # noqa: E402
from roller.insight.cost.operator_flops import operator_flops  # noqa: E402
from tests.insight.cost.calls import Draw, aten, recorded  # noqa: E402
from tests.insight.cost.cases_products import attentions, convolutions, products  # noqa: E402

#: What PyTorch's counter knows nothing of, or takes heads for tokens of.
UNCOUNTED = {"cudnn_convolution", "mv", "addmv", "dot", "vdot", "_flash_attention_forward", "_flash_attention_backward",
             "_efficient_attention_forward", "_efficient_attention_backward",
             "_scaled_dot_product_flash_attention_for_cpu", "_scaled_dot_product_flash_attention_for_cpu_backward"
}  # fmt: skip


def counted(call, *args, **kwargs):
    with FlopCounterMode(display=False) as counter:
        call(*args, **kwargs)
    return counter.get_total_flops()


def expected(case):
    """Return PyTorch's count; of a grouped convolution's gradients, the forward's for each of them.

    PyTorch counts the weights' gradient as if every filter saw every channel.
    """
    if case.row == "convolution_backward" and case.args[9] > 1:
        _, image, weight, _, *geometry, mask = case.args
        return sum(mask[:2]) * counted(aten.convolution.default, image, weight, None, *geometry)
    return counted(case.call, *case.args, **case.kwargs)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("family", [products, convolutions, attentions])
def test_products_multiply_as_often_as_pytorch_counts(family, seed):
    wrong, seen = [], 0
    for case in family(Draw(100 + seed)):
        if case.row in UNCOUNTED or case.results is not None or case.call is aten.addmm_.default:
            continue
        (operator,), _ = recorded(case.call, *case.args, **case.kwargs)
        wanted, found = expected(case), operator_flops(operator)
        seen += wanted > 0
        if wanted != found:
            wrong.append(f"{case} {case.args[-4:]}: expected {wanted}, got {found}")
    assert seen > 4 and not wrong, "\n".join(wrong)


class Net(torch.nn.Module):
    """Convolutions of every kind, a product, and attention of fewer heads of keys than of queries."""

    def __init__(self):
        super().__init__()
        self.convs = torch.nn.Sequential(
            torch.nn.Conv2d(3, 16, (7, 5), 2, (3, 1)), torch.nn.Conv2d(16, 16, 3, 1, 2, dilation=2),
            torch.nn.ConvTranspose2d(16, 8, 4, 2, 1), torch.nn.Conv2d(8, 32, 1, bias=False),
        )  # fmt: skip
        self.q, self.kv = torch.nn.Linear(32, 128), torch.nn.Linear(32, 2 * 32)

    def forward(self, x):
        x = self.convs(x).flatten(2).transpose(1, 2)
        q = self.q(x).unflatten(-1, (4, 32)).transpose(1, 2)
        k, v = self.kv(x).unflatten(-1, (2, 1, 32)).permute(2, 0, 3, 1, 4).expand(2, -1, 4, -1, -1)
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)


@pytest.mark.parametrize("amp", [None, "bf16"])
def test_a_traced_step_multiplies_as_often_as_pytorch_counts(amp):
    """The counter runs the step on the CPU, whose attention is of another name, and as often multiplied."""
    x = torch.zeros(2, 3, 32, 32)
    trace = roller.trace(Net(), x, loss=lambda y: y.sum(), amp=amp, device="a100")
    math_kernel = torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH)
    with FlopCounterMode(display=False) as counter, math_kernel:
        Net()(x).sum().backward()
    fused = [
        n for o in trace.steady() for n in operator_launches(o)[0] if isinstance(n, FusedKernel) and n.exponentials
    ]
    assert len(fused) == 2
    # Of attention the counter here takes the products apart: backward multiplies four times where weights are kept,
    # five where they are computed again.
    pair = 2 * math.prod(e.extent for e in fused[0].products[0].stages[0].axes)
    assert sum(operator_flops(o) for o in trace.steady()) == counter.get_total_flops() + pair


@pytest.mark.parametrize("kind", ["flash", "efficient"])
def test_attention_by_tokens_multiplies_twice_forward_and_five_times_backward(kind):
    for case in attentions(Draw(7)):
        if case.row.startswith(f"_{kind}_attention"):
            back = case.row.endswith("backward")
            (batch, rows, heads, depth), columns = case.args[back].shape, case.args[1 + back].shape[1]
            (operator,), _ = recorded(case.call, *case.args)
            pair = 2 * batch * heads * rows * columns * depth
            assert operator_flops(operator) == (5 if back else 2) * pair


def test_what_a_causal_mask_hides_is_not_computed():
    def share(rows, columns, kind):
        q, k = (torch.empty(1, n, 2, 32, device="meta", dtype=torch.float16) for n in (rows, columns))
        args = [q, k, k, None, None, None, rows, columns, 0.0, kind, True]
        (operator,), _ = recorded(aten._efficient_attention_forward.default, *args)
        return operator_launches(operator)[0][0].share

    for rows, columns in ((8, 8), (4, 16), (16, 4), (1, 7)):
        seen = torch.ones(rows, columns).tril().mean().item()
        assert share(rows, columns, 1) == pytest.approx(seen) and share(rows, columns, 0) == 1.0
        if rows <= columns:
            ending = torch.ones(rows, columns).tril(columns - rows).mean().item()
            assert share(rows, columns, 2) == pytest.approx(ending)


def test_samples_behind_each_other_see_only_themselves():
    """Attention over 4 samples of 16 tokens in one row computes a quarter of what one sample of 64 does."""
    starts = torch.empty(5, dtype=torch.int32, device="meta")
    q = torch.empty(64, 3, 32, device="meta", dtype=torch.float16)
    (operator,), _ = recorded(
        aten._flash_attention_forward.default, q, q, q, starts, starts, 16, 16, 0.0, False, False,
        given=[q, torch.empty(3, 64, device="meta")],
    )  # fmt: skip
    assert operator_flops(operator) == 2 * 2 * 4 * 3 * 16 * 16 * 32


@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize(("kind", "gates"), [("LSTM", 4), ("GRU", 3), ("RNN", 1)])
def test_recurrent_layers_multiply_inputs_and_states(kind, gates, bidirectional):
    """Forward: of each step, gates by inputs and gates by states. Backward: twice that, for inputs and weights."""
    steps, batch, width, hidden, layers = 5, 3, 24, 16, 2
    model = getattr(torch.nn, kind)(width, hidden, layers, bidirectional=bidirectional)
    trace = roller.trace(model, torch.zeros(steps, batch, width), loss=lambda y: y[0].sum())
    ways = 1 + bidirectional
    inputs = width + (layers - 1) * ways * hidden
    once = 2 * steps * batch * ways * gates * hidden * (inputs + layers * hidden)
    by = {o.name: o for o in trace.steady() if "_cudnn_rnn" in o.name}
    assert all(operator_launches(o)[1] for o in by.values())
    assert operator_flops(by["aten._cudnn_rnn.default"]) == once
    assert operator_flops(by["aten._cudnn_rnn_backward.default"]) == 2 * once


def test_packed_sequences_and_projections():
    class Packed(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.lstm = torch.nn.LSTM(24, 16, proj_size=8)

        def forward(self, x):
            return self.lstm(torch.nn.utils.rnn.pack_padded_sequence(x, torch.tensor([6, 6, 6])))[0].data

    trace = roller.trace(Packed(), torch.zeros(6, 3, 24))
    (found,) = [o for o in trace.steady() if "_cudnn_rnn" in o.name]
    assert operator_launches(found)[1] and operator_flops(found) == 2 * 6 * 3 * (64 * 24 + 64 * 8 + 8 * 16)


def test_a_product_of_windows_moves_the_image_and_not_its_windows():
    """A volume's convolution names every element 27 times; memory gives it once."""
    x, w = (torch.empty(s, device="meta") for s in ((2, 16, 20, 20, 20), (16, 16, 3, 3, 3)))
    (operator,), (out,) = recorded(aten.convolution.default, x, w, None, [1] * 3, [1] * 3, [1] * 3, False, [0] * 3, 1)
    (launch,) = operator_launches(operator)[0]
    assert isinstance(launch, FusedKernel) and launch.read_bytes == 4 * (x.numel() + w.numel())
    assert launch.written_bytes == 4 * out.numel() and not [n for n in [launch] if isinstance(n, MemoryKernel)]
