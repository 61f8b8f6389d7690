"""What a trace says of TF32 and of images with channels innermost."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

import roller  # noqa: E402
from roller.insight.trace.pytorch.tf32_switches import operator_kinds_allowing_tf32  # noqa: E402
from roller.insight.tracing import trace_entry  # noqa: E402

ENTRY = """
import torch
{switch}

def model_provider():
    layers = torch.nn.Conv2d(8, 8, 3, padding=1), torch.nn.MaxPool2d(2), torch.nn.ReLU()
    return torch.nn.Sequential(*layers).cuda(){layout}

def input_provider(batch_size=4):
    return (torch.zeros(batch_size, 8, 16, 16, device="cuda"),)

def iteration_provider(model):
    return lambda x: model(x{layout}).sum().backward()
"""
LAST = ".to(memory_format=torch.channels_last)"


def traced(tmp_path, switch="", layout="", channels=8):
    path, text = tmp_path / "entry.py", ENTRY.format(switch=switch, layout=layout)
    path.write_text(text.replace("2d(8, 8", f"2d({channels}, {channels}").replace("size, 8,", f"size, {channels},"))
    return trace_entry(path)


@pytest.mark.parametrize(
    ("switch", "kinds"),
    [
        ("", ["convolution"]),
        ("torch.backends.cudnn.allow_tf32 = False", []),
        ("torch.backends.cuda.matmul.allow_tf32 = True", ["convolution", "product"]),
        ("torch.set_float32_matmul_precision('high')", ["convolution", "product"]),
    ],
)
def test_switches_of_tf32_in_an_entry_file_are_read_and_restored(tmp_path, switch, kinds):
    step = traced(tmp_path, switch)
    assert step.options["tf32"] == kinds
    assert step.at(batch=8).options["tf32"] == kinds
    assert operator_kinds_allowing_tf32() == ["convolution"]


@pytest.mark.skipif(not hasattr(torch.backends, "fp32_precision"), reason="a release without shared precisions")
def test_a_precision_that_kinds_share_is_read_after_another_entry_file_and_restored(tmp_path):
    switch = "torch.backends.fp32_precision = 'tf32'"
    for text in (switch, "torch.backends.cuda.matmul.allow_tf32 = True", switch):
        assert traced(tmp_path, text).options["tf32"] == ["convolution", "product"]
        matmul, conv = torch.backends.cuda.matmul, torch.backends.cudnn.conv
        assert [x.fp32_precision for x in (torch.backends, matmul, conv)] == ["none", "none", "tf32"]
        assert torch.get_float32_matmul_precision() == "highest"


def test_an_option_overrides_the_switches(tmp_path):
    step = traced(tmp_path, "torch.backends.cudnn.allow_tf32 = False", channels=512)
    usual, none, both = (step.forecast("a100", batch=256, tf32=x).device_s for x in (None, False, True))
    assert both < usual == none


def test_channels_last_of_an_entry_file_goes_through_convolutions_pools_and_pointwise_operators(tmp_path):
    for layout, innermost in (("", False), (LAST, True)):
        step = traced(tmp_path, layout=layout)
        names = ("aten.convolution.default", "aten.max_pool2d_with_indices.default", "aten.relu.default")
        made = [o.outputs[0] for o in step.steady() if o.name in names]
        assert len(made) == 3 and all((t.stride[1] == 1) == innermost for t in made)


def test_filters_alone_decide_the_layout_of_a_convolution():
    x = torch.empty(2, 8, 4, 4, device="meta")
    step = roller.trace(torch.nn.Conv2d(8, 8, 3).to(memory_format=torch.channels_last), x)
    assert [o.outputs[0].stride[1] for o in step.steady() if o.name == "aten.convolution.default"] == [1]


class Tokens(torch.nn.Module):
    """Pixels after a first token, which leaves gaps between samples."""

    def __init__(self):
        super().__init__()
        self.mix, self.norm = torch.nn.Conv2d(8, 8, 3, padding=1, groups=8), torch.nn.BatchNorm2d(8)

    def forward(self, x):
        return self.norm(self.mix(x[:, 1:].transpose(1, 2).unflatten(2, (4, 4))))


def test_strides_with_gaps_suggest_channels_last_as_well():
    step = roller.trace(Tokens(), torch.empty(2, 17, 8, device="meta"), device="rtx3090")
    image = next(o for o in step.steady() if "convolution" in o.name)
    assert image.inputs[0].stride == (136, 1, 32, 8)  # a sample has 17 tokens
    assert image.outputs[0].stride == (128, 1, 32, 8)
