"""Switches of TF32, the release and compilation hold in everything that prices a traced step."""

from __future__ import annotations

import json
import math
from dataclasses import fields

import pytest

torch = pytest.importorskip("torch")

import roller  # noqa: E402
from roller.errors import RollerError  # noqa: E402
from roller.insight.cost.step_cost import price_step  # noqa: E402
from roller.insight.sensitivity import sensitivity_of_step  # noqa: E402
from roller.insight.step.from_trace import from_trace  # noqa: E402
from roller.insight.trace.pytorch.tf32_switches import allow_tf32_only_for, operator_kinds_allowing_tf32, preserve_tf32  # noqa: E402
from roller.insight.trace.trace import Trace  # noqa: E402
from roller.insight.whatif.predict import what_if  # noqa: E402
from roller.insight.whatif.whatifs.amp import AMP  # noqa: E402


@pytest.fixture(scope="module")
def step():
    def loss(y):
        return y.square().mean()

    with preserve_tf32():
        torch.backends.cuda.matmul.allow_tf32 = True
        model = torch.nn.Sequential(*(torch.nn.Linear(2048, 2048) for _ in range(2)))
        return roller.trace(model, torch.zeros(2048, 2048), loss=loss, optimizer="sgd")


def test_switches_that_pytorch_froze_are_written_and_restored(monkeypatch):
    # torch.testing._internal forbids its process to write them; a trace pins and restores them all the same.
    monkeypatch.setitem(vars(torch.backends.m), "__allow_nonbracketed_mutation_flag", False)
    with pytest.raises(RuntimeError, match="disable_global_flags"):
        torch.backends.cudnn.benchmark = False
    before = operator_kinds_allowing_tf32()
    with preserve_tf32():
        allow_tf32_only_for(["product"])
        assert operator_kinds_allowing_tf32() == ["product"]
    assert operator_kinds_allowing_tf32() == before and torch.backends.flags_frozen()


def seconds(step, **options):
    return math.fsum(price.seconds for _, price in price_step(step, roller.load_spec("a100"), **options).operators)


def test_the_sensitivity_starts_from_the_forecast(step):
    spec = roller.load_spec("a100")
    assert seconds(step, tf32=False) > 2 * seconds(step)
    for options in ({}, {"compiled": {"modules": [""], "mode": "default"}}):
        one = Trace(**{f.name: getattr(step, f.name) for f in fields(Trace)} | {"options": {**step.options, **options}})
        assert sensitivity_of_step(one, spec).sensitivity.seconds[0] == pytest.approx(seconds(one), rel=1e-9)


def test_the_what_if_of_mixed_precision_starts_from_tf32(step):
    graph = from_trace(step, "a100")
    assert graph.settings.tf32 == ("convolution", "product")
    found, wanted = what_if(graph, AMP()).iteration_us, 1e6 * step.forecast("a100", amp="fp16").iteration_s
    # Without the switch the product of the change would be four times too fast.
    assert found == pytest.approx(wanted, rel=0.15)


def test_a_switch_without_an_effect_is_refused(step):
    with pytest.raises(RollerError, match="tf32: expected none with policy roller"):
        price_step(step, roller.load_spec("a100"), "roller", tf32=True)


def test_a_word_is_no_switch(step):
    with pytest.raises(RollerError, match="tf32: expected True, False or None, got 'no'"):
        price_step(step, roller.load_spec("a100"), tf32="no")


def test_a_release_without_a_compiler_compiles_nothing(step):
    older = step.at(torch_release="1.13")
    assert price_step(older, roller.load_spec("a100")).operators
    with pytest.raises(RollerError, match=r"expected 2\.0 or newer for a compiled step, got 1\.13"):
        price_step(older, roller.load_spec("a100"), "compiled")


def test_the_switch_of_the_command_line_holds_in_profiles_sweeps_and_what_ifs(cli, tmp_path):
    entry = tmp_path / "entry.py"
    entry.write_text(
        "import torch\n"
        "def model_provider(): return torch.nn.Sequential(*(torch.nn.Linear(4096, 4096) for _ in range(2)))\n"
        "def input_provider(batch_size=4096): return (torch.zeros(batch_size, 4096),)\n"
        "def iteration_provider(model): return lambda x: model(x).square().sum().backward()\n"
    )
    for words, key in (
        (("profile", entry), "iteration_s"), (("forecast", entry), "iteration_s"),
        (("sweep", entry, "-d", "a100"), "iteration_s"),
        (("whatif", entry, "--do", "amp", "--device", "a100"), "baseline_us"),
    ):  # fmt: skip
        off, on = (json.loads(cli(*words, "--json", switch)[1])[0] for switch in ("--no-tf32", "--tf32"))
        assert off[key] > 3 * on[key], words
    code, _, err = cli("profile", entry, "--measure", "--tf32")
    assert code == 2 and "--tf32" in err
