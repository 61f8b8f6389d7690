"""The project's frames of every operator, from the line that calls the model to the one that calls the operator.

Each line of the programs below names in its comment the operators that it calls, and those of their backward.
"""

import json
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")

from roller.errors import ArtifactError, ModelError
from roller.insight.trace.trace import Frame, FreeEvent, Trace
from roller.insight.tracing import trace, trace_entry
from tests.offenders import every

HEAD = """
import warnings
import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

def input_provider(batch_size=4):
    return (torch.zeros(batch_size, 8),)
"""
STEP = """
def model_provider():
    return Net()

def iteration_provider(model):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)  # optimizer
    def step(x):
        loss = model(x).sum()  # model: sum, expand
        loss.backward()  # ones_like
        optimizer.step()  # _foreach_add_
        optimizer.zero_grad()
    return step
"""
LINEAR = "t, addmm, mm, detach, sum, view, _unsafe_view"
NETS = {
    "calls in calls": f"""
class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(8, 8)
    def forward(self, x):
        return act(self.fc(x))  # {LINEAR}

def act(x):
    return torch.relu(x)  # relu, threshold_backward

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.Sequential(*[Block() for _ in range(2)])
    def forward(self, x):
        return self.blocks(x)  # outer
""",
    "a comprehension, a lambda and a decorator": f"""
def twice(function):
    return lambda module, x: function(module, function(module, x))  # outer

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(8, 8) for _ in range(2)])
    @twice
    def forward(self, x):
        found = [layer(x) for layer in self.layers]  # {LINEAR}, add
        return (found[0] *  # mul
                found[1])
""",
    "checkpointing": f"""
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(8, 8)
    def inner(self, x):
        x = self.fc(x)  # {LINEAR}
        return torch.tanh(x)  # tanh, tanh_backward
    def forward(self, x):
        return checkpoint(self.inner, x, use_reentrant=False)  # outer
""",
    "a function with a backward of its own": f"""
class Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.square()  # pow
    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        return 2 * x * gradient  # mul

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(8, 8)
    def forward(self, x):
        x = self.fc(x)  # {LINEAR}
        return Square.apply(x)  # outer
""",
    "a function that is looked up before": f"""
class Cube(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x ** 3  # pow
    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        return 3 * x * gradient  # mul

cube = Cube.apply

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(8, 8)
    def forward(self, x):
        x = cube(self.fc(x))  # {LINEAR}
        return torch.tanh(x)  # tanh, tanh_backward
""",
    "a gradient that has a gradient": """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(8, 8))
    def forward(self, x):
        x = x.detach().requires_grad_()
        y = x @ self.weight  # mm, t, add
        y = torch.exp(y)  # exp, mul
        (g,) = torch.autograd.grad(y.sum(), x, create_graph=True)  # sum, ones_like, expand, mm, t, mul
        return torch.sin(g)  # sin, cos, mul
""",
    "parameters of its own and hooks": """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(8, 8))
        self.weight.register_hook(lambda gradient: gradient * 2)  # mul
    def forward(self, x):
        x = x @ self.weight  # mm, t
        return functional.gelu(x)  # gelu, gelu_backward
""",
    "normalisation and dropout": f"""
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.drop, self.fc = nn.LayerNorm(8), nn.Dropout(0.1), nn.Linear(8, 8)
    def forward(self, x):
        x = self.norm(x)  # native_layer_norm, native_layer_norm_backward
        x = self.drop(x)  # native_dropout, native_dropout_backward, bernoulli_, div_, mul, empty_like
        return x + self.fc(x)  # {LINEAR}, add, add_
""",
}


UNSEEN = {
    "a scripted function": """
def plain(x: torch.Tensor):
    return torch.sigmoid(x) * 2

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # scripting is deprecated
    scripted = torch.jit.script(plain)

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(8, 8)
    def forward(self, x):
        x = self.fc(x)  # LINEAR
        x = scripted(x)  # sigmoid, mul, sigmoid_backward, neg, add, rsub
        return torch.tanh(x)  # tanh, tanh_backward
""",
    "a function over a batch": """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(8, 8)
    def forward(self, x):
        x = self.fc(x)  # LINEAR
        x = torch.vmap(torch.exp)(x)  # exp, mul
        return torch.tanh(x)  # tanh, tanh_backward
""",
}


def words_of(line):
    return [word.strip() for word in line.partition("#")[2].removeprefix(" model:").split(",")]


def traced(tmp_path, net):
    (tmp_path / "pyproject.toml").touch()
    path = tmp_path / "steps" / "entry.py"
    path.parent.mkdir(exist_ok=True)
    path.write_text(HEAD + net + STEP)
    return trace_entry(path), path.read_text().splitlines()


@every("name", sorted({**NETS, **UNSEEN}))
def test_a_stack_begins_where_the_model_is_called_and_ends_where_the_operator_is(name, tmp_path):
    found, lines = traced(tmp_path, {**NETS, **UNSEEN}[name].replace("LINEAR", LINEAR))
    forward, calls = set(), set()
    for operator in found.steady():
        assert operator.stack and {f.file for f in operator.stack} == {"steps/entry.py"}, operator
        outer, inner = (lines[f.line - 1] for f in (operator.stack[0], operator.stack[-1]))
        said = f"{operator.phase} {operator.name}: {inner}"
        assert operator.name.split(".")[1] in words_of(inner), said
        if operator.phase == "optimizer":
            assert "optimizer.step()" in outer, said
        elif operator.name == "aten.ones_like.default":  # before the engine comes to a node
            assert "backward()" in inner or "autograd.grad" in inner, said
        else:
            assert "model(x)" in outer, said
            if operator.phase == "forward":
                forward.add(operator.stack)
                calls |= {operator.stack[:n] for n in (1, 2)}
            else:
                # a hook, a function's own backward and what runs again add their lines to those of the forward
                assert operator.stack in forward or any(operator.stack[:n] in calls for n in (1, 2)), said
    assert {o.phase for o in found.steady()} == {"forward", "backward", "optimizer"}


def test_what_a_differentiated_backward_runs_is_not_computed_again(tmp_path):
    found, _ = traced(tmp_path, NETS["a gradient that has a gradient"])
    assert not any(o.recomputed for o in found.operators)
    again, _ = traced(tmp_path, NETS["checkpointing"])
    assert {o.name for o in again.steady() if o.recomputed} >= {"aten.addmm.default", "aten.tanh.default"}


@every("device", ["a100", "cpu-avx2"])
def test_files_of_the_same_text_are_told_apart(device, tmp_path, monkeypatch):
    for name in ("stacks_one", "stacks_two"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    block = "from torch import nn\nclass Block(nn.Module):\n    def __init__(self):\n        super().__init__()\n"
    block += "        self.fc = nn.Linear(8, 8)\n    def forward(self, x):\n        return self.fc(x)\n"
    (tmp_path / "pyproject.toml").touch()
    for name in ("stacks_one", "stacks_two"):
        (tmp_path / f"{name}.py").write_text(block)
    head = HEAD + "import os, stacks_one, stacks_two\nos.chdir('/')\ndef Net():\n"
    head += "    return nn.Sequential(stacks_one.Block(), stacks_two.Block())\n"
    (tmp_path / "entry.py").write_text(head + STEP)
    monkeypatch.chdir(tmp_path)
    found = trace_entry("entry.py", device=device)
    files = {o.module: o.stack[-1].file for o in found.steady() if o.phase == "forward" and o.module}
    assert files["0.fc"] == "stacks_one.py" and files["1.fc"] == "stacks_two.py"
    lasts = {name: stack[-1].file for name, stack in found.registered.items()}
    assert lasts == {f"{n}.fc.{p}": files[f"{n}.fc"] for n in "01" for p in ("weight", "bias")}
    assert all(o.stack[0].file == "entry.py" for o in found.steady())


def test_a_folder_that_only_begins_like_that_of_pytorch_is_the_users(tmp_path):
    import torch

    from roller.insight.trace.pytorch.project_stack_frames import Stacks

    home = Path(torch.__file__).parent
    stacks = Stacks(tmp_path)
    assert stacks.is_foreign(str(home / "nn" / "a.py")) and stacks.is_foreign(json.__file__)
    library = Path(json.__file__).parents[1]
    assert not stacks.is_foreign(str(library.with_name(f"{library.name}_of_mine") / "a.py"))


def test_what_another_thread_runs_is_refused(tmp_path):
    net = """
import threading
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(8, 8)
    def forward(self, x):
        found = []
        thread = threading.Thread(target=lambda: found.append(self.fc(x)))
        thread.start()
        thread.join()
        return found[0]
"""
    with pytest.raises(ModelError, match="thread of the step, got fc in another one"):
        traced(tmp_path, net)


def test_a_parameter_that_is_added_later_knows_its_line(tmp_path):
    net = "Net = lambda: nn.Linear(8, 8)\n"
    path = tmp_path / "entry.py"
    late = "    model.late = nn.Parameter(torch.ones(1))\n    optimizer ="
    path.write_text(HEAD + net + STEP.replace("    optimizer =", late, 1))
    stack = trace_entry(path).registered["late"]
    assert "model.late" in path.read_text().splitlines()[stack[-1].line - 1]


def test_functions_are_named_and_stacks_are_shared(tmp_path):
    found, _ = traced(tmp_path, NETS["calls in calls"])
    relus = [o for o in found.steady() if o.name in ("aten.relu.default", "aten.threshold_backward.default")]
    names = ["iteration_provider.<locals>.step", "Net.forward", "Block.forward", "act"]
    assert len(relus) == 4 and len({id(o.stack) for o in relus}) == 2  # one of each block
    short = [f.function.rpartition(".")[2] for f in relus[0].stack]
    assert short == [n.rpartition(".")[2] for n in names]
    assert relus[0].source == relus[0].stack[-1][:2]


def test_frames_name_the_module_instance_that_runs_them(tmp_path):
    found, _ = traced(tmp_path, NETS["calls in calls"])
    for name in ("aten.relu.default", "aten.threshold_backward.default", "aten.addmm.default"):
        stacks = sorted({o.stack for o in found.steady() if o.name == name}, key=lambda s: s[2].module)
        assert [[f.module for f in s[:3]] for s in stacks] == [["", "", "blocks.0"], ["", "", "blocks.1"]]
        assert all(f.module == s[2].module for s in stacks for f in s[2:])
    again, _ = traced(tmp_path, NETS["checkpointing"])
    assert {f.module for o in again.operators for f in o.stack} == {""}


def test_parameters_know_the_lines_that_register_them(tmp_path):
    net = """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        layer = nn.TransformerEncoderLayer(8, 2, 16)
        self.copies = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(8, 2, bias=False)
    def forward(self, x):
        return self.head(self.copies(x))
"""
    found, lines = traced(tmp_path, net)
    of = {name: lines[stack[-1].line - 1] for name, stack in found.registered.items()}
    named = {s.name for s in found.storages.values() if s.kind == "parameter"}
    assert set(of) == named and "head.bias" not in of
    assert "self.head" in of["head.weight"]
    assert {of[name].split()[0] for name in of if name.startswith("copies")} == {"self.copies"}
    on_cpu = found.at(device="cpu-avx2")  # the model is copied there
    assert on_cpu.registered == found.registered
    # the layer that was copied is gone before the first step, with its parameters
    before = {e.storage for e in on_cpu.events if isinstance(e, FreeEvent) and e.operator < on_cpu.iterations[0]}
    assert {s.size_bytes for n, s in on_cpu.storages.items() if n in before} >= {4 * 3 * 8 * 8, 4 * 8 * 16}


def test_a_model_that_was_built_before_has_stacks_from_its_forward_on():
    import torch

    class Net(torch.nn.Module):
        def forward(self, x):
            return torch.relu(x)

    found = trace(Net(), torch.zeros(2, 2))
    (relu,) = [o for o in found.steady() if "relu" in o.name]
    (frame,) = relu.stack
    here = Path(__file__).resolve()
    assert here.as_posix().endswith(frame.file) and "torch.relu" in here.read_text().splitlines()[frame.line - 1]
    assert found.registered == {}


def test_what_is_written_is_read(tmp_path):
    found, _ = traced(tmp_path, NETS["checkpointing"])
    read = Trace.from_json(found.to_json())
    assert read.operators == found.operators and read.registered == found.registered and read.registered
    before, after = (len({id(o.stack) for o in t.operators}) for t in (found, read))
    assert before == after < len(read.operators)


def test_a_trace_of_version_1_is_read():
    old = {
        "format": "roller-trace", "version": 1, "events": [["alloc", 0, 16, -1, 0]], "iterations": [0, 2],
        "storages": {"0": {"kind": "input", "name": "", "size_bytes": 16}}, "options": {"batch": 2}, "warnings": [],
        "operators": [_old(0, ["/home/user/train.py", 7]), _old(1, None)],
    }  # fmt: skip
    read = Trace.from_json(json.dumps(old))
    assert read.operators[0].stack == (Frame("/home/user/train.py", 7),) and read.operators[1].stack == ()
    assert read.operators[0].source == ("/home/user/train.py", 7) and read.operators[1].source is None
    assert Trace.from_json(read.to_json()).operators == read.operators


def _old(index, source):
    tensor = {"shape": [2, 2], "stride": [2, 1], "dtype": "float32", "storage": 0, "offset": 0}
    return {
        "index": index, "name": "aten.relu.default", "phase": "forward", "inputs": [tensor], "outputs": [tensor],
        "arguments": {"self": {"tensor": 0}}, "module": "", "source": source, "stream": 0, "recomputed": False,
        "iteration": 0,
    }  # fmt: skip


@every("broken", [
    {"stacks": [[["a.py", 1]]]}, {"stacks": [[["a.py", "1", "f", ""]]]}, {"stacks": [[["a.py", 1, "f", 2]]]},
    {"stacks": []}, {"version": 3},
])  # fmt: skip
def test_stacks_that_are_none_are_refused(broken):
    operator = {**_old(0, None), "stack": 0}
    del operator["source"]
    whole = {
        "format": "roller-trace", "version": 2, "events": [], "iterations": [0, 1], "storages": {}, "options": {},
        "warnings": [], "operators": [operator], "stacks": [[["a.py", 1, "f", "m"]]], "registered": {"w": 0},
    }  # fmt: skip
    assert Trace.from_json(json.dumps(whole)).registered == {"w": (Frame("a.py", 1, "f", "m"),)}
    with pytest.raises(ArtifactError, match="Trace the model again"):
        Trace.from_json(json.dumps(whole | broken), "old.json")
