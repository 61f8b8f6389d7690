"""What of a traced step its own calls of ``torch.compile`` compile, and in which mode."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

import roller  # noqa: E402
from roller.insight.trace.trace import Trace  # noqa: E402
from tests.insight.trace.programs import traced_bytes  # noqa: E402
from tests.insight.trace.test_entry_files import MLP, ROWS, WEIGHTS, iterates, traced  # noqa: E402
from tests.offenders import every  # noqa: E402


@every(
    ("text", "mode"),
    [
        (MLP.replace("nn.Sequential(", "torch.compile(nn.Sequential(").replace("4))", "4)))"), "default"),
        (
            MLP.replace("    return", "    m =") + "    m.compile(mode='reduce-overhead')\n    return m\n",
            "reduce-overhead",
        ),
    ],
)  # fmt: skip
def test_a_compiled_model_is_traced_as_eager_and_priced_as_compiled(tmp_path, text, mode):
    trace, eager = (traced(tmp_path, one, ROWS, iterates()) for one in (text, MLP))
    assert [w for w in trace.warnings if w.startswith("torch.compile") and "as the compiler fuses them" in w]
    assert traced_bytes(trace)["parameter"] == WEIGHTS and trace.forecast("a100").notes == trace.warnings
    assert trace.options["compiled"] == {"modules": [""], "mode": mode}
    assert [o.name for o in trace.steady()] == [o.name for o in eager.steady()]
    found, asked = trace.forecast("a100"), eager.forecast("a100", policy="compiled")
    assert asked.device_s < found.device_s < eager.forecast("a100").device_s  # the loss is not compiled
    assert mode == "reduce-overhead" or asked.host_s < found.host_s < eager.forecast("a100").host_s
    assert trace.memory("a100") == found.memory and trace.at(batch=8).options["compiled"] == trace.options["compiled"]


def test_a_compiled_function_is_said_to_be_priced_as_eager(tmp_path):
    trace = traced(tmp_path, "@torch.compile\ndef loss(y):\n    return y.tanh()\n" + MLP, ROWS, iterates())
    assert [w for w in trace.warnings if w.startswith("torch.compile") and "eager" in w]
    assert "compiled" not in trace.options


@every("options", ["disable=True", "backend='eager'", "backend=print"])
@every("call", ["m = torch.compile(m, {})", "m.compile({})"])
def test_a_compile_call_that_generates_no_kernels_is_priced_as_eager(tmp_path, call, options):
    text = MLP.replace("    return", "    m =") + f"    {call.format(options)}\n    return m\n"
    trace, eager = (traced(tmp_path, one, ROWS, iterates()) for one in (text, MLP))
    assert "compiled" not in trace.options and trace.forecast("a100").device_s == eager.forecast("a100").device_s
    assert [w for w in trace.warnings if w.startswith("torch.compile") and "not described" in w]
    assert not [w for w in trace.warnings if "as the compiler fuses them" in w]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of what the compiler imports
@every(
    ("options", "mode"),
    [({}, "default"), ({"options": {"triton.cudagraphs": True}}, "reduce-overhead"), ({"mode": "max-autotune"}, ""),
     ({"backend": "eager"}, None), ({"disable": True}, None)],
)  # fmt: skip
def test_the_mode_of_a_model_that_was_compiled_before_is_read(options, mode):
    wrapped, called = (torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU()) for _ in range(2))
    called.compile(**options)
    for model in (torch.compile(wrapped, **options), called):
        found = roller.trace(model, torch.zeros(2, 8)).options.get("compiled")
        assert (found and found["mode"]) == ("reduce-overhead" if mode == "" else mode)  # which captures graphs, too


def test_graphs_that_an_option_captures_are_captured(tmp_path):
    text = MLP.replace("    return", "    m =") + "    m.compile(options={'triton.cudagraphs': True})\n    return m\n"
    assert traced(tmp_path, text, ROWS, iterates()).options["compiled"]["mode"] == "reduce-overhead"


CHAIN = """
class Chain(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(64, 4096), nn.Linear(4096, 64)
    def forward(self, x):
        return self.last(self.first(x).tanh().exp().neg().sigmoid())
def model_provider():
    return torch.compile(Chain())
"""


def test_the_verb_names_operators_of_the_step_that_is_compiled(tmp_path, cli):
    step = traced(tmp_path, CHAIN, ROWS, iterates())
    capacity = ("memory_layers.global.capacity_bytes", 1.5e9)
    spec = roller.load_spec("t4", dict([capacity]))
    memory = step.memory(spec, batch=2**16)
    assert not memory.fits
    failing = step.at(batch=2**16, device=spec).as_run(spec).operators[memory.oom_operator]
    arguments = ("--device", "t4", "--batch", 2**16, "--set", "=".join(map(str, capacity)))
    out = " ".join(cli("memory", tmp_path / "entry.py", *arguments)[1].split())
    assert f"It fails in {failing.phase}: {failing.name}" in out


def test_a_snapshot_is_that_of_the_step_that_is_compiled(tmp_path, cli):
    from roller.insight.memory.snapshot import read_snapshot

    def written(verb, model):
        traced(tmp_path, model, ROWS, iterates())
        cli(verb, tmp_path / "entry.py", "--device", "a100", "--batch", 512, "--snapshot", tmp_path / "s.pickle")
        return [entry["size"] for entry in read_snapshot(tmp_path / "s.pickle")["device_traces"][0]]

    for verb in ("memory", "profile"):
        assert 0 < len(written(verb, CHAIN)) < len(written(verb, CHAIN.replace("torch.compile(Chain())", "Chain()")))


def test_the_memory_of_a_change_is_that_of_the_policy():
    from roller.insight.step_profile.profiling import profile
    from roller.insight.whatif.memory_change_trace_options import MemoryChange

    model = torch.nn.Sequential(torch.nn.Linear(64, 4096), torch.nn.Tanh(), torch.nn.Sigmoid(), torch.nn.Dropout())
    step = roller.trace(model, torch.zeros(512, 64), optimizer="sgd")
    compiled = step.forecast("a100", policy="compiled").memory
    assert step.memory_with(MemoryChange(), "a100", policy="compiled") == compiled != step.memory("a100")
    assert profile(step, "a100", policy="compiled").memory_of(MemoryChange()) == compiled


def test_each_compiled_module_keeps_its_mode(tmp_path):
    layers = "    for m, mode in zip(model[::2], (None, 'reduce-overhead')):\n        m.compile(mode=mode)\n"
    text = MLP.replace("    return", "    model =") + layers + "    return model\n"
    trace = traced(tmp_path, text, ROWS, iterates())
    assert trace.options["compiled"] == {
        "modules": ["0", "2"], "mode": "default", "modes": ["default", "reduce-overhead"]
    }  # fmt: skip
    names = [o.name for o in trace.as_run("a100").steady()]
    assert "aten.relu.default" in names and any(name.startswith("inductor.") for name in names)


@every("criterion", ["F.mse_loss(y.tanh(), x[:, :4])", "crit(y.tanh(), x[:, :4])"])
def test_a_loss_of_the_step_runs_as_eager_beside_a_compiled_model(tmp_path, criterion):
    text = MLP.replace("nn.Sequential(", "torch.compile(nn.Sequential(").replace("4))", "4)))")
    body = f"y = m(x); loss = {criterion}; opt.zero_grad(); loss.backward(); opt.step()"
    before = "opt = torch.optim.SGD(m.parameters()); crit = nn.MSELoss()"
    trace = traced(tmp_path, text, ROWS, iterates(body, before))
    outside = [o.name.split(".")[1] for o in trace.steady() if o.outside and o.phase != "optimizer"]
    assert [n for n in outside if n not in ("slice", "ones_like")] == [
        "tanh", "mse_loss", "mse_loss_backward", "tanh_backward"
    ]  # fmt: skip
    run = [o.name.split(".")[1] for o in trace.as_run("a100").steady()]
    assert {"tanh", "mse_loss", "mse_loss_backward", "tanh_backward"} <= set(run)
    assert any("fused_relu" in name for name in run)
    whole = [o.name.split(".")[1] for o in trace.as_run("a100", "compiled").steady()]
    assert "mse_loss" not in whole and any("tanh_mse_loss" in name for name in whole)
    assert Trace.from_json(trace.to_json()).operators == trace.operators


def test_what_the_root_computes_itself_is_within_it(tmp_path):
    text = """
class Root(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(64, 64)
    def forward(self, x):
        return self.layer(x.exp()).tanh()
def model_provider():
    return torch.compile(Root())
"""
    trace = traced(tmp_path, text, ROWS, iterates("m(x).neg().sum().backward(); opt.step(); opt.zero_grad()"))
    within = {o.name.split(".")[1] for o in trace.steady() if not o.outside}
    outside = {o.name.split(".")[1] for o in trace.steady() if o.outside}
    assert {"exp", "tanh", "tanh_backward"} <= within and {"neg", "sum"} <= outside and "neg" not in within
    assert "tanh" not in outside


def test_what_calls_a_part_of_a_compiled_model_is_not_compiled(tmp_path):
    text = MLP.replace("nn.Sequential(", "torch.compile(nn.Sequential(").replace("4))", "4)))")
    trace = traced(tmp_path, text, ROWS, iterates("m[1](m[0](x)).exp().sum().backward(); opt.step(); opt.zero_grad()"))
    assert not any("inductor" in o.name for o in trace.as_run("a100").operators)


def test_a_loss_module_of_a_script_is_not_part_of_a_compiled_network(tmp_path):
    from roller.insight.capture.script_tracer import trace_script

    (tmp_path / "train.py").write_text(
        "import torch\nfrom torch import nn\n"
        "net = torch.compile(nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Sigmoid()))\n"
        "criterion, opt = nn.MSELoss(), torch.optim.SGD(net.parameters(), 0.1)\n"
        "for _ in range(8):\n    loss = criterion(net(torch.zeros(8, 64)), torch.zeros(8, 64))\n"
        "    opt.zero_grad(); loss.backward(); opt.step()\n"
    )
    run = [o.name.split(".")[1] for o in trace_script(tmp_path / "train.py", device="a100").as_run("a100").steady()]
    assert "mse_loss" in run and "mse_loss_backward" in run and any("fused_tanh_sigmoid" in name for name in run)
