"""What a CPU runs of a step, traced on shapes, is what PyTorch runs there: operators, shapes and layouts."""

from __future__ import annotations

import json
import runpy

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

import roller  # noqa: E402
from roller.errors import ModelError  # noqa: E402
from roller.insight.tracing import trace_entry  # noqa: E402

_SILENT = ("aten.detach.", "aten.detach_.", "aten.lift_fresh.", "aten.alias.", "prim.", "profiler.")


def tensors(value):
    """Yield shape and strides of every tensor in results."""
    if isinstance(value, torch.Tensor):
        yield tuple(value.shape), tuple(value.stride())
    elif isinstance(value, (tuple, list)):
        for part in value:
            yield from tensors(part)


class Seen(TorchDispatchMode):
    """Writes down what really runs."""

    def __init__(self):
        super().__init__()
        self.found = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        if not str(func).startswith(_SILENT):
            self.found.append((str(func), list(tensors(result))))
        return result


class Attention(nn.Module):
    """A block of a transformer, with a mask or causal."""

    def __init__(self, masked=False, drop=0.0):
        super().__init__()
        self.qkv, self.out, self.norm = nn.Linear(16, 48), nn.Linear(16, 16), nn.LayerNorm(16)
        self.masked, self.drop = masked, drop

    def forward(self, x):
        q, k, v = (t.view(*t.shape[:2], 2, 8).transpose(1, 2) for t in self.qkv(self.norm(x)).chunk(3, -1))
        mask = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool, device=x.device) if self.masked else None
        drop = self.drop if self.training else 0.0
        y = F.scaled_dot_product_attention(q, k, v, mask, drop, is_causal=not self.masked)
        return x + F.gelu(self.out(y.transpose(1, 2).flatten(2)))


class Recurrent(nn.Module):
    """Long short-term memory, and what reads its last step."""

    def __init__(self, **options):
        super().__init__()
        self.lstm = nn.LSTM(8, 12, batch_first=True, **options)
        self.out = nn.LazyLinear(3)
        self.out(self.lstm(torch.zeros(1, 2, 8))[0][:, -1])

    def forward(self, x):
        return self.out(self.lstm(x)[0][:, -1])


class Up(nn.Module):
    """Down and up again, as in a UNet."""

    def __init__(self):
        super().__init__()
        self.down = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.GroupNorm(2, 8), nn.SiLU(), nn.MaxPool2d(2))
        self.up, self.last = nn.ConvTranspose2d(8, 8, 2, stride=2), nn.Conv2d(11, 3, 1)

    def forward(self, x):
        return self.last(torch.cat([self.up(self.down(x)), x], 1))


class Positions(nn.Module):
    """Words and their places, which are made in the forward."""

    def __init__(self):
        super().__init__()
        self.words, self.places, self.block = nn.Embedding(20, 16), nn.Embedding(8, 16), Attention(masked=True)

    def forward(self, x):
        return self.block(self.words(x) + self.places(torch.arange(x.shape[1])))


def cnn():
    """Return convolutions with batch norm and dropout."""
    return nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(0.1),
        nn.Linear(8, 4),
    )  # fmt: skip


IMAGE, ROWS = (2, 3, 8, 8), (2, 5, 8)
MODELS = {
    "cnn": (cnn, IMAGE),
    "mlp": (lambda: nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 4)), (3, 8)),
    "causal": (Attention, (2, 6, 16)),
    "mask": (lambda: Attention(masked=True), (2, 6, 16)),
    "dropped attention": (lambda: Attention(drop=0.1), (2, 6, 16)),
    "lstm": (lambda: Recurrent(num_layers=2, dropout=0.1), ROWS),
    "both ways": (lambda: Recurrent(bidirectional=True), ROWS),
    "no bias": (lambda: Recurrent(bias=False), ROWS),
    "unet": (Up, IMAGE),
    "words": (Positions, (2, 6)),
}


def case(name):
    """Return a model and its input."""
    make, shape = MODELS[name]
    torch.manual_seed(0)
    return make(), torch.zeros(shape, dtype=torch.int64) if name == "words" else torch.rand(shape)


def traced(trace):
    """Return names of the operators of the steady step."""
    return [o.name for o in trace.steady()]


@pytest.mark.parametrize("name", MODELS)
def test_inference_is_what_a_cpu_runs(name):
    model, x = case(name)
    model.eval()
    with torch.no_grad(), Seen() as seen:
        model(x)
    trace = roller.trace(model, x, device="cpu-avx2")
    assert traced(trace) == [n for n, _ in seen.found]
    for operator, (what, given) in zip(trace.steady(), seen.found, strict=True):
        assert [(t.shape, t.stride) for t in operator.outputs] == given, what


@pytest.mark.parametrize(
    ("name", "optimizer"),
    [(n, "adam") for n in MODELS] + [("mlp", o) for o in ("sgd", "momentum", "adamw", "adamw_fused")],
)
def test_training_is_what_a_cpu_runs(name, optimizer):
    model, x = case(name)
    trace = roller.trace(model, x, optimizer=optimizer, loss=lambda y: y.square().mean(), device="cpu-avx2")
    kinds = {
        "adam": torch.optim.Adam, "adamw": torch.optim.AdamW, "sgd": torch.optim.SGD,
        "momentum": lambda p, lr: torch.optim.SGD(p, lr=lr, momentum=0.9),
        "adamw_fused": lambda p, lr: torch.optim.AdamW(p, lr=lr, fused=True),
    }  # fmt: skip
    chosen = kinds[optimizer](model.parameters(), lr=0.1)
    for _ in range(2):
        with Seen() as seen:
            chosen.zero_grad()
            model(x).square().mean().backward()
            chosen.step()
    assert traced(trace) == [n for n, _ in seen.found]


@pytest.mark.parametrize("clip", ["clip_grad_norm_", "clip_grad_value_"])
def test_clipping_is_what_a_cpu_runs(tmp_path, clip):
    path = tmp_path / "train.py"
    path.write_text(
        f"import torch\nfrom torch.nn.utils import {clip}\n"
        "def model_provider():\n    return torch.nn.Linear(8, 4)\n"
        "def input_provider(batch_size=4):\n    return (torch.zeros(batch_size, 8),)\n"
        "def iteration_provider(model):\n"
        "    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"
        "    def step(x):\n"
        "        optimizer.zero_grad()\n        model(x).sum().backward()\n"
        f"        {clip}(model.parameters(), 1.0)\n        optimizer.step()\n"
        "    return step\n"
    )
    entry = runpy.run_path(str(path))
    step, inputs = entry["iteration_provider"](entry["model_provider"]()), entry["input_provider"]()
    with Seen() as seen:
        step(*inputs)
    assert traced(trace_entry(path, device="cpu-avx2")) == [n for n, _ in seen.found]


def test_a_gpu_and_a_cpu_share_no_trace():
    model, x = case("mlp")
    trace = roller.trace(model, x, optimizer="adam", loss=lambda y: y.sum())
    names = lambda t: {o.name for o in t.steady() if o.phase == "optimizer"}  # noqa: E731
    assert any("foreach" in n for n in names(trace))
    assert not any("foreach" in n for n in names(trace.at(device="cpu-avx2")))
    assert names(trace.at(device="a100")) == names(trace)
    assert trace.at(device="cpu-avx2").options["libraries"] == []


@pytest.mark.parametrize("name", MODELS)
def test_a_forecast_of_a_cpu_knows_every_operator(name):
    model, x = case(name)
    step = roller.trace(model, x, optimizer="adam", loss=lambda y: y.sum(), device="cpu-avx2")
    found = step.forecast("cpu-avx2")
    assert found.unmapped_share == 0.0 and found.iteration_s == pytest.approx(found.host_s + found.device_s)
    assert found.memory.fits and found.memory.peak.reserved_bytes == found.memory.peak.requested_bytes


def test_a_forecast_of_a_processor_by_the_command(cli, tmp_path):
    entry = tmp_path / "train.py"
    entry.write_text(
        "import torch\n"
        "def model_provider():\n    return torch.nn.Linear(64, 8)\n"
        "def input_provider(batch_size=4):\n    return (torch.zeros(batch_size, 64),)\n"
        "def iteration_provider(model):\n"
        "    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"
        "    def step(x):\n"
        "        optimizer.zero_grad()\n        model(x).sum().backward()\n        optimizer.step()\n"
        "    return step\n"
    )
    code, out, _ = cli("forecast", str(entry), "--device", "cpu-avx2,a100", "--json")
    rows = json.loads(out)
    assert code == 0 and [r["device"] for r in rows] == ["cpu-avx2", "a100"] and rows[0]["iteration_s"] > 0
    code, out, _ = cli("memory", str(entry), "--device", "cpu-avx2", "--json")
    found = json.loads(out)[0]
    assert code == 0 and found["reserved_bytes"] == found["requested_bytes"]
    assert "expected one processor" in cli("forecast", str(entry), "--device", "2xcpu-avx2")[2]


def test_mixed_precision_on_a_cpu_is_refused():
    model, x = case("mlp")
    with pytest.raises(ModelError, match="amp: expected fp32 on a CPU, got 'bf16'"):
        roller.trace(model, x, amp="bf16", device="cpu-avx2")
