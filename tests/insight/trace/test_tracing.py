"""Traces of small models: what runs, where it belongs, what it holds, and what is said of bad input."""

from __future__ import annotations

from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

import roller  # noqa: E402
from roller.insight.trace.trace import AllocEvent, FreeEvent, Trace  # noqa: E402
from roller.insight.tracing import trace_entry  # noqa: E402
from tests.offenders import every  # noqa: E402


class Net(nn.Module):
    def __init__(self, **options):
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16, **options)
        self.drop, self.head = nn.Dropout(0.1), nn.Linear(16 * 64, 10)

    def forward(self, x):
        return self.head(self.drop(torch.relu(self.norm(self.conv(x)))).flatten(1))


class Blocks(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(32, 128), nn.GELU(), nn.Linear(128, 32)) for _ in range(3))

    def forward(self, x):
        for block in self.blocks:
            x = x + block(x)
        return x


def net_trace(**options) -> Trace:
    options = {"optimizer": "adamw", **options}
    targets = [torch.zeros(4, dtype=torch.long)]
    return roller.trace(Net(), torch.zeros(4, 3, 8, 8), loss=nn.CrossEntropyLoss(), targets=targets, **options)


def names(trace: Trace, phase: str) -> list[str]:
    return [o.name.split(".")[1] for o in trace.steady() if o.phase == phase]


def held(trace: Trace) -> int:
    """Bytes at the peak."""
    live = most = 0
    for event in trace.events:
        live += event.size_bytes if isinstance(event, AllocEvent) else -trace.storages[event.storage].size_bytes
        most = max(most, live)
    return most


def test_device_chooses_its_own_kernels():
    trace = net_trace()
    assert "cudnn_batch_norm" in names(trace, "forward") and "native_dropout" in names(trace, "forward")
    assert "cudnn_batch_norm_backward" in names(trace, "backward")
    assert all(name.startswith("_foreach") for name in names(trace, "optimizer"))
    mask = next(o for o in trace.operators if "native_dropout" in o.name).outputs[1]
    assert mask.dtype == "bool" and trace.storages[mask.storage].size_bytes == 4 * 16 * 64


def test_fused_optimizer_is_one_operator():
    assert names(net_trace(optimizer=lambda p: torch.optim.AdamW(p, fused=True)), "optimizer")[-1] == "_fused_adamw_"


def test_backward_belongs_where_its_forward_does():
    trace = net_trace()
    place = {o.name.split(".")[1]: (o.module, o.source) for o in trace.steady()}
    for forward, backward in (
        ("convolution", "convolution_backward"), ("cudnn_batch_norm", "cudnn_batch_norm_backward"),
        ("native_dropout", "native_dropout_backward"), ("relu", "threshold_backward"),
    ):  # fmt: skip
        assert place[forward] == place[backward]
    assert place["convolution"][0] == "conv" and __file__.endswith(place["convolution"][1][0])


def test_kinds_and_names():
    trace = net_trace()
    found = {(s.kind, s.name): s.size_bytes for s in trace.storages.values() if s.name}
    size = 10 * 1024 * 4
    assert found["parameter", "head.weight"] == found["gradient", "head.weight"] == size
    assert found["optimizer_state", "head.weight"] == size
    assert found["buffer", "norm.running_mean"] == 64
    kinds = {o.name: trace.storages[o.outputs[0].storage].kind for o in trace.steady() if o.phase == "forward"}
    assert kinds["aten.convolution.default"] == "activation" and kinds["aten.relu.default"] == "activation"


def test_events_are_in_order_and_balance():
    trace = net_trace(iterations=4)
    alive, last = set(), -1
    for event in trace.events:
        assert event.operator >= last
        last = event.operator
        if isinstance(event, FreeEvent):
            alive.remove(event.storage)
        else:
            assert event.storage not in alive
            alive.add(event.storage)
    steady = [trace.operators[a:b] for a, b in zip(trace.iterations[1:], trace.iterations[2:], strict=False)]
    assert [o.name for o in steady[0]] == [o.name for o in steady[1]] == [o.name for o in steady[2]]
    lasting = {"parameter", "gradient", "optimizer_state", "buffer", "input"}
    assert {trace.storages[number].kind for number in alive} <= lasting
    read = Trace.from_json(trace.to_json())
    assert read.to_json() == trace.to_json() and read.operators == trace.operators and read.events == trace.events


def test_model_is_left_alone():
    model = Net()
    before = {k: v.clone() for k, v in model.state_dict().items()}
    roller.trace(model, torch.zeros(4, 3, 8, 8), optimizer=torch.optim.SGD(model.parameters(), lr=0.1))
    assert all(torch.equal(v, before[k]) and v.device.type == "cpu" for k, v in model.state_dict().items())
    assert all(p.grad is None for p in model.parameters())
    assert not torch.cuda.is_available() or torch.version.cuda


def test_tied_weights_are_one_storage():
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.table, self.head = nn.Embedding(50, 16), nn.Linear(16, 50, bias=False)
            self.head.weight = self.table.weight

        def forward(self, x):
            return self.head(self.table(x))

    trace = roller.trace(Tied(), torch.zeros(4, dtype=torch.long), optimizer="sgd")
    assert [s.name for s in trace.storages.values() if s.kind == "parameter"] == ["table.weight"]


@every(
    ("pattern", "found"),
    [
        ("layers.*", ["layers.0", "layers.1"]), ("layers.0.*", ["layers.0.linear1", "layers.0.norm"]),
        ("**.norm", ["layers.0.norm", "layers.1.norm", "norm"]), ("**", ["layers", "norm"]), ("*", ["layers", "norm"]),
        ("layers.**", ["layers"]), ("layers.[0]", ["layers.0"]), ("layers", ["layers"]), ("layer", []), ("", []),
    ],
)  # fmt: skip
def test_patterns_of_checkpointing_stand_for_parts_of_paths(pattern, found):
    from roller.insight.trace.pytorch.model_copy import _outermost_paths, matches_path

    within = [f"layers.{n}{x}" for n in (0, 1) for x in ("", ".linear1", ".norm")]
    paths = ["", "layers", *within, "norm"]
    assert list(_outermost_paths(p for p in paths if matches_path(p, pattern))) == found


def test_checkpointing_runs_the_forward_again_and_holds_less():
    plain = roller.trace(Blocks, torch.zeros(512, 32), optimizer="sgd")
    saved = roller.trace(Blocks, torch.zeros(512, 32), optimizer="sgd", checkpoint=True)
    again = [o for o in saved.steady() if o.recomputed]
    assert saved.options["checkpoint"] == ["blocks.0", "blocks.1", "blocks.2"]
    assert {o.module for o in again} >= {"blocks.2.0", "blocks.0.1"} and all(o.phase == "backward" for o in again)
    assert not any(o.recomputed for o in plain.operators)
    assert held(saved) < held(plain)
    by_pattern = roller.trace(Blocks, torch.zeros(512, 32), optimizer="sgd", checkpoint="blocks.1")
    assert {o.module.split(".")[1] for o in by_pattern.operators if o.recomputed} == {"1"}


@pytest.mark.parametrize(("amp", "dtype"), [("bf16", "bfloat16"), ("fp16", "float16")])
def test_mixed_precision(amp, dtype):
    trace = net_trace(amp=amp)
    forward = {o.name.split(".")[1]: o for o in trace.steady() if o.phase == "forward"}
    assert forward["convolution"].outputs[0].dtype == forward["addmm"].outputs[0].dtype == dtype
    assert forward["nll_loss_forward"].outputs[0].dtype == "float32"
    # cuDNN's batch norm takes float16 and not bfloat16.
    assert ("cudnn_batch_norm" in forward) == (amp == "fp16")
    scaled = [o.name for o in trace.steady() if "_amp_" in o.name]
    assert len(scaled) == (2 if amp == "fp16" else 0)
    assert any(o.phase == "optimizer" and "_foreach" in o.name for o in trace.steady())
    assert all(trace.storages[n].kind != "gradient" or s.size_bytes for n, s in trace.storages.items())


@every(
    ("device", "dtype", "head", "kernel"),
    [
        ("v100", torch.float32, 64, "efficient"), ("v100", torch.float16, 64, "efficient"),
        ("a100", torch.float16, 64, "flash"), ("a100", torch.float32, 64, "efficient"),
        ("a100", torch.bfloat16, 264, "efficient"), ("v100", torch.bfloat16, 64, "math"),
    ],
)  # fmt: skip
def test_attention_is_chosen_by_the_device(device, dtype, head, kernel):
    class Attend(nn.Module):
        def forward(self, q):
            return nn.functional.scaled_dot_product_attention(q, q, q, is_causal=True)

    trace = roller.trace(Attend(), torch.zeros(2, 4, 16, head, dtype=dtype), device=device, iterations=1)
    found = [o.name for o in trace.operators]
    if kernel == "math":
        assert "aten._safe_softmax.default" in found
    else:
        assert found == [f"aten._scaled_dot_product_{kernel}_attention.default"]


def test_recurrent_layers_are_one_operator():
    class Tagger(nn.Module):
        def __init__(self):
            super().__init__()
            self.lstm, self.head = nn.LSTM(8, 16, 2, dropout=0.5), nn.Linear(16, 2)

        def forward(self, x):
            return self.head(self.lstm(x)[0])

    trace = roller.trace(Tagger(), torch.zeros(5, 3, 8), optimizer="adam")
    assert names(trace, "forward").count("_cudnn_rnn") == names(trace, "backward").count("_cudnn_rnn_backward") == 1


def test_values_that_are_read_get_a_declared_default():
    class Reads(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(8, 8)

        def forward(self, x):
            x = self.linear(x)  # whose weights are not known
            if x.isnan().any():
                raise ValueError
            kept = x[x > 0]
            return kept.sum() * x.mean().item() / max(1, int((x > 0).sum().cpu()))

    trace = roller.trace(Reads(), torch.zeros(4, 8), share_nonzero=0.5, iterations=1)
    assert any("item()" in w for w in trace.warnings) and any("share_nonzero" in w for w in trace.warnings)
    assert all(f"{Path(__file__).name}:" in w for w in trace.warnings)  # relative to the project
    assert next(o for o in trace.operators if o.name == "aten.index.Tensor").outputs[0].shape == (16,)


def test_device_reads_cuda():
    class Asks(nn.Module):
        def forward(self, x):
            assert x.is_cuda and x.device.type == "cuda" and torch.cuda.is_available()
            y = torch.ones(x.shape, device=x.device) + torch.zeros(3, device="cuda").to("cuda:0").cuda()
            return x + y

    trace = roller.trace(Asks(), torch.zeros(2, 3), iterations=1)
    assert [o.name for o in trace.operators][-1] == "aten.add.Tensor"


def test_what_models_are_made_of_runs():
    """Python functions of PyTorch that ask, by different means, whether a mode takes them over."""

    class Many(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True)
            self.gru, self.norm = nn.GRU(32, 32, batch_first=True), nn.InstanceNorm1d(32, affine=True)

        def forward(self, x):
            x = torch.utils.checkpoint.checkpoint(self.layer, x, use_reentrant=False)
            x = torch.einsum("bld,de->ble", x.unflatten(-1, (4, 8)).flatten(2), self.layer.linear1.weight[:32])
            assert "meta" in repr(x) and not torch.allclose(x, x)
            return self.gru(self.norm(x.transpose(1, 2)).transpose(1, 2))[0]

    for amp in (None, "bf16", "fp16"):
        trace = roller.trace(Many(), torch.zeros(2, 8, 32), optimizer="adam", amp=amp)
        assert any(o.recomputed and o.name == "aten.native_dropout.default" for o in trace.steady())
        assert ("cudnn_batch_norm" in names(trace, "forward")) == (amp != "bf16")
        assert "_cudnn_rnn" in names(trace, "forward") and "layer.linear1" in {o.module for o in trace.steady()}


@every(
    ("options", "match"),
    [
        ({"model": 3}, "expected a torch.nn.Module"),
        ({"inputs": torch.zeros(0, 8)}, "at least one sample"),
        ({"inputs": torch.zeros(2, 9)}, r"RuntimeError at .*test_tracing.py:\d+: .*let no shape depend on the values"),
        ({"optimizer": "adm"}, "did you mean 'adam'"),
        ({"optimizer": 3}, "expected a name, an optimizer"),
        ({"loss": lambda out: out}, "expected a tensor of no axes"),
        ({"amp": "int8"}, "expected fp32, fp16 or bf16"),
        ({"device": "gtx9999"}, "gtx9999"),
        ({"device": "cpu_generic_avx2"}, "device"),
        ({"attention": "fast"}, "expected auto"),
        ({"iterations": 0}, "at least 1"),
        ({"checkpoint": "nothing.*"}, "finds none"),
    ],
)
def test_bad_input_is_one_clear_error(options, match):
    class Fixed(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(8, 4)

        def forward(self, x):
            return self.linear(x)

    arguments = {"model": Fixed(), "inputs": torch.zeros(2, 8), "optimizer": "sgd", **options}
    with pytest.raises(roller.RollerError, match=match) as caught:
        roller.trace(arguments.pop("model"), arguments.pop("inputs"), **arguments)
    assert "Traceback" not in str(caught.value)


ENTRY = """
import torch
def model_provider():
    return torch.nn.Linear(8, 4).to("cuda")
def input_provider(batch_size=16):
    return torch.zeros(batch_size, 8, device="cuda"), torch.zeros(batch_size, dtype=torch.long).cuda()
def iteration_provider(model):
    optimizer = torch.optim.Adam(model.parameters())
    def step(x, y):
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
    return step
"""


SCALED = """
import torch
def model_provider():
    return torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 4))
def input_provider(batch_size=4):
    return (torch.zeros(batch_size, 8),)
def iteration_provider(model):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cuda")
    def step(x):
        with torch.autocast("cuda", dtype=torch.float16):
            loss = model(x.to("cuda")).sum()
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
    return step
"""


def test_scaled_and_clipped_gradients_lead_to_a_step(tmp_path):
    path = tmp_path / "scaled.py"
    path.write_text(SCALED)
    trace = trace_entry(path)
    update = names(trace, "optimizer")
    assert {"_foreach_norm", "_foreach_mul_", "_foreach_add_", "_amp_update_scale_"} <= set(update)
    assert trace.warnings == ()  # that gradients are finite is known, not read


@pytest.mark.parametrize("ending", ["import sys; sys.exit(0)", "raise SystemExit('enough')"])
def test_an_entry_file_that_ends_the_process_says_so(tmp_path, ending):
    path = tmp_path / "train.py"
    for broken in (f"{ENTRY}\n{ending}\n", ENTRY.replace("    optimizer =", f"    {ending}\n    optimizer =")):
        path.write_text(broken)
        with pytest.raises(roller.RollerError, match="got SystemExit"):
            trace_entry(path)


def test_an_entry_file_may_have_data_classes(tmp_path):
    path = tmp_path / "train.py"
    path.write_text(
        "from __future__ import annotations\nfrom dataclasses import dataclass\n"
        f"@dataclass\nclass Size:\n    n: int = 16\n{ENTRY}"
    )
    assert trace_entry(path).options["batch"] == 16


def test_a_program_that_is_no_entry_file_does_not_run(tmp_path):
    path = tmp_path / "program.py"
    path.write_text("open(__file__ + '.ran', 'w').close()\nfor step in range(3): print(step)\n")
    with pytest.raises(roller.RollerError, match="roller record program"):
        trace_entry(path)
    assert not (tmp_path / "program.py.ran").exists()


def test_entry_file(tmp_path):
    path = tmp_path / "train.py"
    path.write_text(ENTRY)
    trace = trace_entry(path)
    assert trace.options["batch"] == 16
    assert {o.phase for o in trace.steady()} == {"forward", "backward", "optimizer"}
    assert {o.source[0] for o in trace.steady()} == {"train.py"}
    assert trace_entry(path, batch=3).steady()[1].outputs[0].shape == (3, 4)
    for broken, match in (
        (ENTRY.replace("def input_provider", "def input_provder"), "did you mean 'input_provder'"),
        (ENTRY.replace("batch_size=16", "batch_size"), "default of batch_size"),
        (ENTRY.replace("    optimizer =", "    1 / 0\n    optimizer ="), r"ZeroDivisionError at .*train.py:8"),
    ):
        path.write_text(broken)
        with pytest.raises(roller.RollerError, match=match):
            trace_entry(path)
