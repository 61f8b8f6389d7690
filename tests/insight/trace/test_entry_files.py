"""Entry files as people write them: what is on the device, what a step decides by values, what is said of the rest."""

from __future__ import annotations

import gc
import json
import re
import sys
import textwrap

import pytest

torch = pytest.importorskip("torch")

import roller  # noqa: E402
from roller.insight.trace.pytorch.transform_step_inputs import move_to_device  # noqa: E402
from roller.insight.trace.trace import AllocEvent  # noqa: E402
from roller.insight.tracing import trace_entry  # noqa: E402
from tests.insight.trace.programs import traced_bytes  # noqa: E402
from tests.offenders import every  # noqa: E402

HEAD = "import copy, dataclasses, functools\nimport torch\nimport torch.nn.functional as F\nfrom torch import nn\n"
MLP = "def model_provider():\n    return nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 4))\n"
ROWS = "def input_provider(batch_size=8):\n    return torch.zeros(batch_size, 64)\n"
TRAIN = "opt.zero_grad(); m(x).square().mean().backward(); opt.step()"
WEIGHTS = 4 * (64 * 128 + 128 + 128 * 4 + 4)


def iterates(body=TRAIN, before="opt = torch.optim.AdamW(m.parameters())", args="x"):
    """Return the third function of an entry file."""
    inner = textwrap.indent(textwrap.dedent(body), " " * 8)
    return (
        f"def iteration_provider(m):\n{textwrap.indent(textwrap.dedent(before), '    ')}\n"
        f"    def step({args}):\n{inner}\n    return step\n"
    )


def traced(folder, *parts, **options):
    """Return the trace of an entry file of these parts."""
    path = folder / "entry.py"
    path.write_text(HEAD + "".join(parts))
    return trace_entry(path, **options)


def names(trace, phase=None):
    return [o.name.split(".")[1] for o in trace.steady() if phase in (None, o.phase)]


def most(trace):
    """Bytes at the peak."""
    live = peak = 0
    for event in trace.events:
        live += event.size_bytes if isinstance(event, AllocEvent) else -trace.storages[event.storage].size_bytes
        peak = max(peak, live)
    return peak


HALF = """
def model_provider():
    model = nn.Sequential(*[nn.Linear(512, 512, bias=False) for _ in range(8)]).half()
    model.requires_grad_(False); model[-1].requires_grad_(True)
    return model
def input_provider(batch_size=1):
    return torch.zeros(batch_size, 512, dtype=torch.float16)
"""


def test_what_is_built_and_cast_on_the_host_is_not_on_the_device(tmp_path):
    sgd = "opt = torch.optim.SGD([p for p in m.parameters() if p.requires_grad], lr=.1)"
    one = 512 * 512 * 2
    trace = traced(tmp_path, HALF, iterates("opt.zero_grad(); m(x).float().sum().backward(); opt.step()", sgd))
    assert traced_bytes(trace) == {"parameter": 8 * one, "gradient": one, "optimizer_state": 0}
    assert most(trace) < 9 * one + 100_000
    # On the device, the copy that is cast is there until it has been cast.
    moved = HALF.replace(".half()", ".cuda().half()")
    assert most(traced(tmp_path, moved, iterates(TRAIN, sgd))) > 9 * one + one


CLIPPED = {
    "norm": ["_foreach_norm", "stack", "linalg_vector_norm", "add", "reciprocal", "mul", "clamp", "_foreach_mul_"],
    "value": ["_foreach_clamp_min_", "_foreach_clamp_max_"],
}


@every("kind", CLIPPED)
@every("device", ["a100", "cpu-avx2"])
def test_a_list_of_gradients_is_clipped_by_one_operator(tmp_path, kind, device):
    call = f"clip_grad_{kind}_(m.parameters(), 1.0)"
    clip = TRAIN.replace("opt.step()", f"{call}; opt.step()")
    head = f"from torch.nn.utils import clip_grad_{kind}_\n"  # a name of its own, as many files have it
    found = names(traced(tmp_path, head, MLP, ROWS, iterates(clip), device=device), "optimizer")
    assert found[: len(CLIPPED[kind])] == CLIPPED[kind]


MOVED = {
    "by the tracer": MLP,
    "by the provider": MLP.replace("nn.Linear(128, 4))", "nn.Linear(128, 4)).cuda()"),
    "to a name": MLP.replace("nn.Linear(128, 4))", "nn.Linear(128, 4)).to('cuda:0')"),
    "in a scope": "def model_provider():\n    with torch.device('cuda'):\n        return nn.Sequential("
                  "nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 4))\n",
    "by default": "torch.set_default_device('cuda')\n" + MLP,
    "if there is one": "device = 'cuda' if torch.cuda.is_available() else 'cpu'\n" + MLP,
    "of a state": "def model_provider():\n    a, b = (nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 4)) "
                  "for _ in range(2))\n    b.load_state_dict(a.state_dict())\n    return b\n",
    "of the module": "NET = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 4))\n"
                     "def model_provider():\n    return NET\n",
    "kept": "@functools.lru_cache\ndef model_provider():\n    return nn.Sequential(nn.Linear(64, 128), nn.ReLU(), "
            "nn.Linear(128, 4))\n",
    "without shapes": "def model_provider():\n    return nn.Sequential(nn.LazyLinear(128), nn.ReLU(), "
                      "nn.LazyLinear(4))\n",
}  # fmt: skip


@every("name", MOVED)
def test_a_model_comes_to_the_device_in_any_way(tmp_path, name):
    before = "m(torch.zeros(1, 64, device='cuda')); opt = torch.optim.AdamW(m.parameters())"
    trace = traced(tmp_path, MOVED[name], ROWS, iterates(before=before) if "Lazy" in MOVED[name] else iterates())
    expected = {"parameter": WEIGHTS, "gradient": WEIGHTS, "optimizer_state": 2 * WEIGHTS}
    assert traced_bytes(trace) == expected == traced_bytes(trace.at(batch=4))
    assert torch.get_default_dtype() == torch.float32 and torch.zeros(1).device.type == "cpu"


def test_tied_weights_stay_tied_and_average_copies_are_weights_too(tmp_path):
    tied = """
class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.table, self.head = nn.Embedding(50, 16, padding_idx=0), nn.Linear(16, 50, bias=False)
        self.head.weight = self.table.weight
    def forward(self, x):
        return self.head(self.table(x))
def model_provider():
    return Tied()
def input_provider(batch_size=4):
    return torch.zeros(batch_size, 3, dtype=torch.long)
"""
    copied = "opt = torch.optim.AdamW(m.parameters()); average = copy.deepcopy(m)"
    trace = traced(tmp_path, tied, iterates(before=copied))
    assert traced_bytes(trace) == {"parameter": 3200, "gradient": 3200, "optimizer_state": 6400}
    clones = [o for o in trace.operators if o.name == "aten.clone.default" and o.outputs[0].shape == (50, 16)]
    assert len(clones) == 1


@every(
    ("give", "args", "use"),
    [
        ("torch.zeros(batch_size, 64).pin_memory().to('cuda', non_blocking=True)", "x", "x"),
        ("torch.empty(batch_size, 64, pin_memory=True)", "x", "x.cuda(non_blocking=True)"),
        ("{'x': torch.zeros(batch_size, 64)}", "b", "b['x']"),
        ("{'x': torch.zeros(batch_size, 64)}", "x", "x"),
        ("[torch.zeros(batch_size, 64), 3]", "b", "b[0]"),
        ("Bag(torch.zeros(batch_size, 64))", "b", "b.x"),
        ("Bag(torch.zeros(batch_size, 64))", "b", "b.to(torch.device('cuda')).x"),
        ("Encoding({'x': torch.zeros(batch_size, 64)})", "b", "b.to('cuda').x"),
        ("next(iter(torch.utils.data.DataLoader(torch.zeros(64, 64), batch_size)))", "x", "x"),
        ("torch.zeros(batch_size, 64)", "x", "x + torch.zeros(64).to(x.device) + torch.ones(64).cuda()"),
        ("torch.zeros(batch_size, 64)", "x", "x + torch.zeros(64).to(x)"),
        ("torch.zeros(batch_size, 64)", "x", "x + torch.arange(64, device=x.device) * x.new_ones(64)"),
    ],
)  # fmt: skip
def test_inputs_come_in_any_shape(tmp_path, give, args, use):
    kinds = """
from collections import UserDict
@dataclasses.dataclass(frozen=True)
class Bag:
    x: torch.Tensor
    def to(self, device):
        return dataclasses.replace(self, x=self.x.to(device))
class Encoding(UserDict):
    def __getattr__(self, name):
        if name == 'data':
            raise AttributeError(name)
        return self.data[name]
    def to(self, device):
        self.data = {key: value.to(device) for key, value in self.data.items()}
        return self
"""
    given = f"def input_provider(batch_size=8):\n    return {give}\n"
    trace = traced(tmp_path, kinds, MLP, given, iterates(TRAIN.replace("m(x)", f"m({use})"), args=args))
    assert traced_bytes(trace)["gradient"] == WEIGHTS
    assert [o.outputs[0].shape for o in trace.steady() if o.name == "aten.addmm.default"] == [(8, 128), (8, 4)]


def test_padding_and_initial_values_under_no_grad(tmp_path):
    embedding = """
def model_provider():
    m = nn.Sequential(nn.Embedding(100, 8, padding_idx=0), nn.Flatten(), nn.Linear(8 * 16, 4))
    with torch.no_grad():
        m[0].weight[3].fill_(1.0); m[2].weight.normal_().clamp_(-1, 1); m[2].bias.zero_()
    nn.init.trunc_normal_(m[2].weight); nn.init.orthogonal_(m[0].weight)
    return m
def input_provider(batch_size=8):
    return torch.zeros(batch_size, 16, dtype=torch.long)
"""
    weights = 4 * (100 * 8 + 8 * 16 * 4 + 4)
    found = traced_bytes(traced(tmp_path, embedding, iterates()))
    assert found == {"parameter": weights, "gradient": weights, "optimizer_state": 2 * weights}


def test_what_is_saved_on_the_host_is_not_held(tmp_path):
    block = "nn.Sequential(nn.Linear(64, 64), nn.GELU())"
    deep = f"def model_provider():\n    return nn.Sequential(*[{block} for _ in range(4)])\n"
    rows = ROWS.replace("=8", "=4096")
    saving = """
    opt.zero_grad()
    with torch.autograd.graph.save_on_cpu(pin_memory=True):
        y = m(x).sum()
    y.backward(); opt.step()
    """
    plain, saved = (traced(tmp_path, deep, rows, iterates(body)) for body in (TRAIN, saving))
    one = 4096 * 64 * 4
    assert most(plain) - most(saved) > 4 * one
    assert sum(o.name == "aten._to_copy.default" for o in saved.steady()) >= 8  # and back again


@every(
    ("ones", "masked"), [("torch.ones(batch_size, 32)", False), ("torch.ones(batch_size, 32, dtype=torch.long)", False),
                         ("torch.ones(batch_size, 32, dtype=torch.long).index_fill(1, torch.tensor([3]), 0)", True)],
)  # fmt: skip
def test_a_mask_that_is_all_ones_is_left_out_as_in_a_real_run(tmp_path, ones, masked):
    model = """
class Attends(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(64, 192)
    def forward(self, x, mask):
        mask = None if (mask == 1).all() else mask[:, None, None, :].bool()
        q, k, v = self.qkv(x).view(*x.shape[:2], 3, 4, 16).permute(2, 0, 3, 1, 4)
        return F.scaled_dot_product_attention(q, k, v, mask)
def model_provider():
    return Attends()
"""
    given = f"def input_provider(batch_size=8):\n    return torch.zeros(batch_size, 32, 64), {ones}\n"
    trace = traced(tmp_path, model, given, iterates(TRAIN.replace("m(x)", "m(x, k)"), args="x, k"))
    attention = next(o for o in trace.steady() if "attention" in o.name)
    assert (attention.arguments["attn_bias"] is not None) == masked and trace.warnings == ()


def test_a_shape_that_depends_on_inputs_is_theirs():
    class Picks(torch.nn.Module):
        def forward(self, x, mask):
            return x[mask] * len(mask.nonzero()), x[x > 0]

    mask = torch.tensor([True, False, True, True])
    given = (torch.zeros(4, 600, 200), mask)
    found = roller.trace(Picks(), given, iterations=1)
    assert [o.outputs[0].shape for o in found.operators if "index" in o.name] == [(3, 600, 200), (4 * 600 * 200,)]
    assert any("3 of its 4 elements are true" in w for w in found.warnings)
    assert next(o.outputs[0].shape for o in found.at(batch=8).operators if "index" in o.name) == (6, 600, 200)
    shared = roller.trace(Picks(), given, iterations=1, share_nonzero=0.5)
    assert next(o.outputs[0].shape for o in shared.operators if "index" in o.name) == (2, 600, 200)


def test_numbers_of_the_device_are_known():
    class Numbers(torch.nn.Module):
        def forward(self, x):
            factor, sizes = torch.tensor(3.0, device=x.device), torch.as_tensor([1, 2], device=x.device)
            assert factor.item() == 3.0 and sizes.tolist() == [1, 2] and (sizes + 1).sum().item() == 5
            return x * factor

    for device in ("a100", "cpu-avx2"):
        assert roller.trace(Numbers(), torch.zeros(2, 3), device=device).warnings == ()


def test_constructors_read_the_values_they_would(tmp_path):
    dropped = """
class Dropped(nn.Module):
    def __init__(self):
        super().__init__()
        self.rates = [rate.item() for rate in torch.linspace(0, 0.3, 4)]
        self.layers = nn.ModuleList(nn.Linear(64, 64) for _ in self.rates)
    def forward(self, x):
        for rate, layer in zip(self.rates, self.layers):
            x = F.dropout(layer(x), rate) if rate else layer(x)
        return x
def model_provider():
    return Dropped()
"""
    trace = traced(tmp_path, dropped, ROWS, iterates())
    drops = [o.arguments["p"] for o in trace.steady() if o.name == "aten.native_dropout.default"]
    assert drops == pytest.approx([0.1, 0.2, 0.3]) and trace.warnings == ()


def test_wrappers_are_named_with_the_way_out(tmp_path):
    for wrap in ("nn.parallel.DistributedDataParallel", "nn.DataParallel"):
        with pytest.raises(roller.RollerError, match=r"plain model.*2xa100") as caught:
            traced(tmp_path, MLP, ROWS, iterates(before=f"m = {wrap}(m); opt = torch.optim.AdamW(m.parameters())"))
        assert "entry.py:" in str(caught.value)


def test_a_package_that_is_missing_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "torchao", None)  # an import raises ModuleNotFoundError
    with pytest.raises(roller.RollerError, match=r"torchao.*kernels of its own.*torch\.optim"):
        traced(tmp_path, MLP, ROWS, iterates(before="from torchao.optim import AdamW8bit"))
    with pytest.raises(roller.RollerError, match=r"none called 'no_such_package'.*entry\.py.*Install it"):
        traced(tmp_path, MLP, ROWS, iterates(before="import no_such_package"))


def test_questions_and_streams_of_cuda_are_answered(tmp_path):
    body = """
    with torch.cuda.stream(side):
        y = x.to('cuda', non_blocking=True)
    torch.cuda.current_stream().wait_stream(side); y.record_stream(torch.cuda.current_stream())
    start.record(); torch.cuda.synchronize(); torch.cuda.reset_peak_memory_stats()
    opt.zero_grad(); m(y).square().mean().backward(); opt.step()
    assert torch.cuda.max_memory_allocated() == 0 and torch.cuda.get_device_name(0)
    assert torch.cuda.get_device_properties(0).total_memory > 0 and torch.accelerator.is_available()
    """
    before = "side, start = torch.cuda.Stream(), torch.cuda.Event(enable_timing=True)\n"
    before += "opt = torch.optim.AdamW(m.parameters())"
    trace = traced(tmp_path, MLP, ROWS, iterates(body, before))
    assert traced_bytes(trace)["gradient"] == WEIGHTS and any("streams" in w for w in trace.warnings)
    made_up = [w.partition(":")[0] for w in trace.warnings if "the answer is made up" in w]
    assert made_up == ["torch.cuda.max_memory_allocated", "torch.cuda.get_device_properties"]


def test_objects_of_a_batch_that_refer_to_one_another_come_to_the_device_once():
    class Part:
        pass

    one, two = Part(), Part()
    one.rows, one.other, two.other = torch.ones(2), two, one
    there = move_to_device(one)
    assert there.rows.is_meta and there.other.other is there and not one.rows.is_meta


def test_weights_of_a_large_model_are_never_written(tmp_path):
    """A model of eight gigabytes is built, cast and traced in no memory."""
    import resource

    large = "def model_provider():\n    return nn.Sequential(*[nn.Linear(16384, 16384) for _ in range(8)]).bfloat16()\n"
    rows = "def input_provider(batch_size=1):\n    return torch.zeros(batch_size, 16384, dtype=torch.bfloat16)\n"
    gc.collect()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    trace = traced(tmp_path, large, rows, iterates())
    assert traced_bytes(trace)["parameter"] == 8 * (16384 * 16384 + 16384) * 2
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 500_000


def test_the_command_says_what_a_trace_says(cli, tmp_path):
    path = tmp_path / "entry.py"
    path.write_text(HEAD + MLP + ROWS + iterates(f"m(x).sum().item(); {TRAIN}"))
    code, out, _ = cli("memory", str(path), "--device", "a100")
    assert code == 0 and "item() reads a value" in " ".join(out.split())
    found = json.loads(cli("memory", str(path), "--device", "a100", "--json")[1])
    assert re.match(r"entry\.py:\d+: item\(\) reads a value", found[0]["notes"][0])  # relative to the project


def test_a_syntax_error_is_named_with_its_line(tmp_path):
    (tmp_path / "layers.py").write_text("def layer():\n    return (\n")
    words = r"expected Python at .*{}, got SyntaxError: .* \(the entry file could not be loaded\)\. Correct that line\."
    with pytest.raises(roller.RollerError, match=words.format(r"entry\.py:9")):
        traced(tmp_path, MLP, ROWS, "def iteration_provider(m)\n")
    with pytest.raises(roller.RollerError, match=words.format(r"layers\.py:2")):
        traced(tmp_path, "import layers\n", MLP, ROWS, iterates())
