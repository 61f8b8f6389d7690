"""A script is traced whole: its steps, batch, networks and precision are those that it takes; nothing is trained."""

import hashlib
import sys
import types

import pytest

torch = pytest.importorskip("torch")

from roller.errors import ModelError  # noqa: E402
from roller.insight.trace.options import TraceOptions  # noqa: E402
from roller.insight.trace.pytorch.script_runner import Script, ScriptRunner  # noqa: E402
from roller.insight.tracing import trace  # noqa: E402

HEAD = """
import sys, torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
import sink
"""
PLAIN = """
model = nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3)).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
loader = DataLoader(TensorDataset(torch.randn(40, 6), torch.randint(3, (40,))), batch_size=4, num_workers=3)
for x, y in loader:
    loss = nn.functional.cross_entropy(model(x.cuda()), y.cuda())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
sink.ended = True
"""


class Done(BaseException):
    """Ends a script within it, as the process does that it has in use."""


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Return a function that traces the text of a script in this process; what it knows is in ``run.sink``."""
    sink = types.ModuleType("sink")
    monkeypatch.setitem(sys.modules, "sink", sink)
    monkeypatch.setattr(sys, "argv", list(sys.argv))
    monkeypatch.setattr(sys, "path", list(sys.path))

    def traced(text, *arguments, batch=None, calls=None):
        path = tmp_path / "train.py"
        path.write_text(HEAD + text)
        found = []

        def finish(one):
            found.append(one)
            raise Done

        tracer = ScriptRunner(Script(path, arguments), TraceOptions(batch, "a100"), calls, finish)
        try:
            return tracer.run()
        except Done:
            return found[0]

    traced.sink = sink
    return traced


def _is_copy(operator):
    return operator.name == "aten._to_copy.default" and not operator.inputs


def _rows(operators):
    return [
        (o.phase, o.name, [t.shape for t in o.inputs], [t.shape for t in o.outputs], o.module)
        for o in operators
        if o.phase in ("forward", "backward", "optimizer") and not _is_copy(o)
    ]


def test_the_step_of_a_script_is_that_of_its_model(run):
    found = run(PLAIN)
    model = torch.nn.Sequential(torch.nn.Linear(6, 5), torch.nn.ReLU(), torch.nn.Linear(5, 3))
    wanted = trace(
        model, torch.zeros(4, 6), targets=(torch.zeros(4, dtype=torch.int64),), loss=torch.nn.functional.cross_entropy,
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9), device="a100",
    )  # fmt: skip
    assert _rows(found.steady()) == _rows(wanted.steady())
    assert found.options["mode"] == "script"
    assert (found.options["batch"], found.options["accumulate"], found.samples) == (4, 1, 4)
    assert (found.options["optimizer"], found.options["networks"]) == ("SGD", {"model": "Sequential"})
    assert (found.options["loss"], found.options["amp"], found.options["checkpoint"]) == ("train.py:13", None, [])
    assert {s.name for s in found.storages.values() if s.kind == "parameter"} == {
        "0.weight", "0.bias", "2.weight", "2.bias"
    }  # fmt: skip
    assert found.registered["0.weight"][0].line == 7
    copies = filter(_is_copy, found.steady())
    assert [found.storages[o.outputs[0].storage].kind for o in copies] == ["input", "input"]


def test_it_ends_as_soon_as_its_steps_repeat(run):
    found = run(PLAIN)
    assert found.options["calls"] == 2
    assert not hasattr(run.sink, "ended")


def test_the_number_of_steps_can_be_asked_for(run):
    assert len(run(PLAIN, calls=5).iterations) == 6


def test_another_batch_is_that_of_the_loader_even_beyond_its_data(run):
    found = run(PLAIN, batch=64)
    assert found.options["batch"] == 64
    assert {t.shape[0] for o in found.steady() if o.name == "aten.addmm.default" for t in o.outputs} == {64}


def test_a_batch_that_no_loader_gives_is_refused(run):
    text = PLAIN.replace("for x, y in loader:", "for x, y in [(torch.zeros(4, 6), torch.zeros(4).long())] * 4:")
    with pytest.raises(ModelError, match="expected a loader that gives 7 samples, got no DataLoader"):
        run(text, batch=7)


def test_the_batch_is_that_of_the_step_where_a_smaller_one_is_fetched_ahead(run):
    ahead = """
def ahead(batches):
    held = None
    for batch in batches:
        if held is not None: yield held
        held = batch
    yield held
"""
    text = ahead + PLAIN.replace(
        "torch.randn(40, 6), torch.randint(3, (40,))", "torch.randn(11, 6), torch.randint(3, (11,))"
    )
    found = run(text.replace("in loader:", "in ahead(loader):"))
    assert (found.options["calls"], found.options["batch"]) == (2, 4)
    assert {t.shape[0] for o in found.steady() if o.name == "aten.addmm.default" for t in o.outputs} == {4}


def test_the_batch_of_a_last_step_alone_is_its_own(run):
    text = PLAIN.replace("torch.randn(40, 6), torch.randint(3, (40,))", "torch.randn(3, 6), torch.randint(3, (3,))")
    found = run(text)
    assert (found.options["calls"], found.options["batch"]) == (1, 3)


def test_batches_of_an_accumulated_step_are_counted(run):
    text = PLAIN.replace("for x, y", "for n, (x, y)").replace("in loader", "in enumerate(loader)")
    text = text.replace("    optimizer.zero_grad()\n", "").replace(
        "    optimizer.step()", "    if n % 3 == 2: optimizer.step(); optimizer.zero_grad()"
    )
    found = run(text)
    assert (found.options["batch"], found.options["accumulate"], found.samples) == (4, 3, 12)
    assert sum(o.name == "aten._log_softmax.default" for o in found.steady()) == 3


def test_a_script_of_the_processor_is_that_of_a_device_and_leaves_its_weights_alone(run):
    kept = """
sink.raw = [p.detach().numpy() for p in model.parameters()]
sink.before = [a.tobytes() for a in sink.raw]
optimizer ="""
    text = PLAIN.replace(".cuda()", "").replace("optimizer =", kept)
    found = run(text)
    own = _rows(found.steady())
    assert own == _rows(run(PLAIN).steady())
    assert found.options["changed_parameters"] == 0
    hashes = [hashlib.sha256(one).hexdigest() for one in run.sink.before]
    assert [hashlib.sha256(one.tobytes()).hexdigest() for one in run.sink.raw] == hashes
    assert any("the script trains on the CPU" in warning for warning in found.warnings)


def test_a_change_of_a_weight_is_counted(run):
    text = PLAIN.replace(
        "loader =", "scale = nn.Parameter(torch.ones(3))\nother = torch.optim.SGD([scale], 0.1)\nloader ="
    )
    found = run(
        text.replace("    optimizer.step()", "    optimizer.step()\n    scale.sum().backward()\n    other.step()")
    )
    assert found.options["changed_parameters"] == 2  # in each of two steps
    assert any("SGD updates parameters on the host" in warning for warning in found.warnings)


def test_two_networks_have_names_of_their_own(run):
    found = run("""
first, second = nn.Linear(4, 4).cuda(), nn.Linear(4, 4).cuda()
a = torch.optim.SGD(first.parameters(), lr=0.1)
b = torch.optim.Adam(second.parameters())
for n in range(20):
    x = torch.zeros(8, 4, device="cuda")
    a.zero_grad(); first(x).sum().backward(); a.step()
    b.zero_grad(); second(first(x).detach()).sum().backward(); b.step()
""")
    assert found.options["networks"] == {"first": "Linear", "second": "Linear"}
    assert found.options["optimizer"] == "SGD, Adam"
    assert (found.options["batch"], found.options["accumulate"]) == (8, 1)
    assert sum(o.name == "aten.addmm.default" for o in found.steady()) == 3
    assert {s.name for s in found.storages.values() if s.kind == "parameter"} == {
        "first.weight", "first.bias", "second.weight", "second.bias"
    }  # fmt: skip


def test_its_own_mixed_precision_is_seen(run):
    text = PLAIN.replace("    loss = ", '    with torch.autocast("cuda", dtype=torch.bfloat16): loss = ')
    found = run(text)
    assert (found.options["amp"], found.options["scales_loss"]) == ("bf16", False)
    assert "bfloat16" in {t.dtype for o in found.steady() for t in o.outputs}


def test_one_step_alone_is_a_trace_without_the_evaluation_behind_it(run):
    text = PLAIN.replace("sink.ended", "    break\nwith torch.no_grad(): model(x.cuda()); model(x.cuda())\nsink.ended")
    found = run(text)
    assert (len(found.iterations), found.options["calls"], run.sink.ended) == (2, 1, True)
    assert found.steady()[-1].phase == "optimizer"
    assert any("one call was traced" in warning for warning in found.warnings)


def test_what_fails_after_a_step_is_noted(run):
    found = run(PLAIN.replace("    optimizer.step()", "    optimizer.step()\n    raise OSError('disk full')"))
    assert any("it failed after an update" in warning and "disk full" in warning for warning in found.warnings)


def test_random_numbers_of_the_device_need_no_device(run):
    text = PLAIN.replace(
        "model =",
        """generator = torch.Generator(device="cuda").manual_seed(3)
assert isinstance(generator, torch.Generator) and isinstance(torch.default_generator, torch.Generator)
x = torch.randn(4, 6, generator=generator, device="cuda")
model =""",
    )
    assert run(text).options["batch"] == 4


def test_a_default_device_puts_all_on_it(run):
    text = PLAIN.replace("model =", 'torch.set_default_device("cuda")\nmodel =').replace(".cuda()", "")
    text = text.replace("loader =", "x, y = torch.randn(4, 6), torch.zeros(4).long()\nloader =")
    found = run(text.replace("for x, y in loader:", "for _ in range(9):"))
    torch.set_default_device(None)
    assert found.options["batch"] == 4
    assert not any("trains on the CPU" in warning for warning in found.warnings)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("print('no training')", "expected a script that trains, got its end without a step"),
        ("import argparse\nargparse.ArgumentParser().parse_args()", "got its end with status 2 without a step"),
        ("raise ValueError('no data here')", r"got ValueError at .*train.py:6: no data here"),
        (
            "import torch.distributed as dist\ndist.init_process_group('gloo', rank=0, world_size=1)",
            "expected a script that trains on one device, got one that starts a group of processes",
        ),
        (
            "w = torch.ones(3, requires_grad=True)\nfor _ in range(3):\n    w.sum().backward(); w.data -= w.grad",
            "expected a script that trains, got its end without a step of an optimizer",
        ),
        ("import nothing_of_this_name", "expected packages that are installed here, got none called 'nothing_of"),
    ],
)
def test_a_script_that_does_not_come_to_train_says_why(run, text, said):
    with pytest.raises(ModelError, match=said):
        run(text, *(["--odd"] if "argparse" in text else []))


def test_a_processor_is_refused(tmp_path):
    with pytest.raises(ModelError, match="expected a GPU for a training script"):
        ScriptRunner(Script(tmp_path / "train.py"), TraceOptions(device="cpu"), None, print)
