"""A traced step asked again: other batches, devices, precision, checkpointing, and the largest batch."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

import roller  # noqa: E402
from roller.insight.trace.pytorch.transform_step_inputs import resize_batch  # noqa: E402
from roller.insight.tracing import trace_entry  # noqa: E402
from tests.offenders import every  # noqa: E402


class Blocks(nn.Module):
    def __init__(self, width=256):
        super().__init__()
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)) for _ in range(3)
        )

    def forward(self, x):
        for block in self.blocks:
            x = x + block(x)
        return x


def traced(batch=8, **options):
    arguments = {"optimizer": "adamw", "loss": lambda y, t: (y - t).square().mean(), **options}
    return roller.trace(Blocks, torch.zeros(batch, 256), targets=[torch.zeros(batch, 256)], **arguments)


def shapes(trace):
    return [(o.name, *(t.shape for t in o.outputs)) for o in trace.steady()]


def test_another_batch_is_what_tracing_it_gives():
    step = traced()
    again = step.at(batch=24)
    assert shapes(again) == shapes(traced(24)) and again.options["batch"] == 24
    assert again.events == traced(24).events and shapes(step.at(batch=8)) == shapes(step)


def test_precision_and_checkpointing_are_what_tracing_them_gives():
    step = traced()
    assert shapes(step.at(amp="bf16")) == shapes(traced(amp="bf16"))
    assert shapes(step.at(amp="bf16").at(amp="fp32")) == shapes(step)
    assert shapes(step.at(checkpoint=True)) == shapes(traced(checkpoint=True)) != shapes(step)


def test_devices_share_a_trace_where_nothing_asks_for_their_capability():
    step = traced()
    assert step.at(device="v100") is step.at(device="h100")

    class Attends(nn.Module):
        def forward(self, x):
            return nn.functional.scaled_dot_product_attention(x, x, x)

    step = roller.trace(Attends(), torch.zeros(2, 4, 64, 64, dtype=torch.float16))
    assert step.at(device="v100") is not step.at(device="a100") is step.at(device="a100-80")
    assert shapes(step.at(device="v100"))[0][0] != shapes(step.at(device="a100"))[0][0]


@pytest.mark.parametrize("checkpoint", [False, True])
def test_the_largest_batch_fits_and_one_more_does_not(checkpoint):
    small = roller.load_spec("t4", {"memory_layers.global.capacity_bytes": 2.7e9})
    step = traced()
    found = step.max_batch(small, checkpoint=checkpoint)
    assert found.memory.fits and not found.over.fits
    assert step.memory(small, batch=found.batch, checkpoint=checkpoint).fits
    assert not step.memory(small, batch=found.batch + 1, checkpoint=checkpoint).fits
    assert len(found.tried) <= 4  # the line through two batches guesses it
    assert step.forecast(small, batch=found.batch + 1, checkpoint=checkpoint).throughput == 0.0


def test_more_fits_with_checkpointing():
    small = roller.load_spec("t4", {"memory_layers.global.capacity_bytes": 2.7e9})
    assert traced().max_batch(small, checkpoint=True).batch > traced().max_batch(small).batch


@every(
    ("tensor", "shape", "stride"),
    [
        (torch.zeros(4, 3, 5, 5).to(memory_format=torch.channels_last), (7, 3, 5, 5), (75, 1, 15, 3)),
        (torch.zeros(4, 6), (7, 6), (6, 1)),
        (torch.zeros(6, 4).t(), (7, 6), (1, 7)),
        (torch.zeros(6, 4), (6, 4), (4, 1)),
        (torch.zeros(()), (), ()),
    ],
)
def test_inputs_of_another_batch_keep_their_layout(tensor, shape, stride):
    found = resize_batch({"x": [tensor]}, 4, 7)["x"][0]
    assert tuple(found.shape) == shape and found.stride() == stride and found.dtype == tensor.dtype


def test_samples_may_lie_on_another_axis():
    step = roller.trace(nn.LSTM(16, 32), torch.zeros(10, 4, 16), loss=lambda y: y[0].sum(), batch_axis=1)
    assert step.options["batch"] == 4
    assert any(t.shape[:2] == (10, 6) for o in step.at(batch=6).steady() for t in o.outputs)


ENTRY = """
import torch
from torch import nn

def model_provider():
    return nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 8))

def input_provider(batch_size=16):
    return torch.zeros(batch_size, 64), torch.zeros(batch_size, dtype=torch.long)

def iteration_provider(model):
    optimizer, loss = torch.optim.AdamW(model.parameters()), nn.CrossEntropyLoss()
    SCALER
    def step(x, y):
        optimizer.zero_grad()
        BACKWARD
    return step
"""
PLAIN = ENTRY.replace("SCALER", "").replace("BACKWARD", "loss(model(x), y).backward(); optimizer.step()")
SCALED = ENTRY.replace("SCALER", "scaler = torch.amp.GradScaler('cuda')").replace(
    "BACKWARD", "scaler.scale(loss(model(x), y)).backward(); scaler.step(optimizer); scaler.update()"
)


@pytest.mark.parametrize("amp", ["bf16", "fp16"])
def test_mixed_precision_around_an_entry_file_is_that_of_a_traced_model(tmp_path, amp):
    (tmp_path / "train.py").write_text(PLAIN)
    found = trace_entry(tmp_path / "train.py", amp=amp)
    model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 8))
    same = roller.trace(
        model, torch.zeros(16, 64), optimizer="adamw", amp=amp, loss=nn.CrossEntropyLoss(),
        targets=[torch.zeros(16, dtype=torch.long)],
    )  # fmt: skip
    assert shapes(found) == shapes(same) and found.options["amp"] == amp
    assert torch.Tensor.backward.__name__ == "backward" and not trace_entry(tmp_path / "train.py").options["amp"]


def test_a_file_that_scales_its_loss_itself_takes_no_second_scale(tmp_path):
    (tmp_path / "train.py").write_text(SCALED)
    assert trace_entry(tmp_path / "train.py", amp="bf16")
    with pytest.raises(roller.RollerError, match="Leave amp out"):
        trace_entry(tmp_path / "train.py", amp="fp16")


def test_bfloat16_is_refused_where_it_would_be_emulated(tmp_path):
    (tmp_path / "train.py").write_text(PLAIN)
    with pytest.raises(roller.RollerError, match=r"expected fp16 or fp32, got bf16.*Use float16") as caught:
        trace_entry(tmp_path / "train.py", amp="bf16", device="t4")
    assert "on the CPU" not in str(caught.value)


def test_an_entry_file_that_names_a_gpu_runs_on_the_processor_asked_about(tmp_path):
    text = PLAIN.replace("torch.zeros(batch_size, 64)", "torch.zeros(batch_size, 64, device='cuda')")
    (tmp_path / "plain.py").write_text(PLAIN)
    (tmp_path / "named.py").write_text(
        text.replace("def iteration_provider(model):", "def iteration_provider(model):\n    model.to('cuda').cuda()")
    )
    assert (tmp_path / "named.py").read_text().count("cuda") == 3
    named, plain = (trace_entry(tmp_path / f"{name}.py", device="cpu") for name in ("named", "plain"))
    assert shapes(named) == shapes(plain)


def test_bad_changes_are_one_clear_error():
    step = traced()
    for change, match in (
        ({"batch": 0}, "at least 1"), ({"batch": True}, "at least 1"), ({"amp": "int8"}, "fp32, fp16 or bf16"),
        ({"device": "mi50"}, "a CUDA device"), ({"checkpoint": "nothing.*"}, "finds none"),
    ):  # fmt: skip
        with pytest.raises(roller.RollerError, match=match):
            step.at(**change)


def test_options_that_are_not_given_are_those_of_the_step():
    """``at`` of a step in another precision keeps it, and so do the forecasts and the memory of that step."""
    first = roller.trace(lambda: torch.nn.Linear(512, 512), torch.zeros(64, 512), optimizer="adam")
    half = first.at(amp="fp16")
    assert half.at(batch=32).options["amp"] == "fp16" and half.at().options["batch"] == 64
    assert half.at(batch=32).at(amp="fp32").options["batch"] == 32
    assert half.forecast("a100").iteration_s == first.forecast("a100", amp="fp16").iteration_s
    assert half.forecast("a100").iteration_s != first.forecast("a100").iteration_s
    assert half.memory("a100").total_bytes == first.memory("a100", amp="fp16").total_bytes
    small = first.at(batch=8)
    assert small.forecast("a100").batch == 8 and first.forecast("a100").batch == 64
    assert small.at() is first.at(batch=8)  # traced once


def test_profile_and_curve_are_of_the_steps_own_precision():
    from roller.insight.step_profile.profiling import profile

    first = roller.trace(lambda: torch.nn.Linear(512, 512), torch.zeros(64, 512), optimizer="adam")
    asked, given = profile(first, "a100", amp="fp16"), profile(first.at(amp="fp16"), "a100")
    assert given.amp == asked.amp == "fp16" and given.iteration_s == asked.iteration_s
    assert given.batch_curve() == asked.batch_curve()
    for point in given.batch_curve().computed[:3]:
        assert point.iteration_s == first.forecast("a100", batch=point.batch, amp="fp16").iteration_s
